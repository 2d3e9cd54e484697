// Offers a new artifact beside a field that keeps another one: "New: run-a. Use it?" The value is
// {names: {field: names, newest first}, before: {field: names when last told}}.
const { h } = studio;
const { form } = props;
const offered = new Map(); // field -> name

const draw = (field) => {
  const block = document.getElementById(`${form}-${field}`);
  block?.querySelector(":scope > .ps-offer")?.remove();
  const name = offered.get(field);
  if (!block || !name) return;
  const close = (use) => {
    offered.delete(field);
    draw(field);
    if (use) studio.fill(form, { [field]: name });
    // Not its input: a menu with the focus opens, and keeps the text that it shows.
    block.tabIndex = -1;
    block.focus();
  };
  block.append(h("p", { class: "ps-offer", role: "status" }, "New: ", h("b", {}, name), ". ",
    h("button", { type: "button", onclick: () => close(true) }, "Use it"),
    h("button", { type: "button", "aria-label": `Don’t use ${name}`, onclick: () => close(false) }, "×")));
};

watch("value", () => {
  const { names = {}, before = {} } = props.value ?? {};
  for (const [field, known] of Object.entries(before)) {
    const [newest] = names[field];
    const chosen = studio.valueOf(form, field);
    if (known.length && newest && !known.includes(newest) && chosen && chosen !== newest) offered.set(field, newest);
    if (!names[field].includes(offered.get(field)) || offered.get(field) === chosen) offered.delete(field);
    draw(field);
  }
});
studio.heard.add((id, field) => {
  if (id !== form || offered.get(field) !== studio.valueOf(form, field)) return;
  offered.delete(field);
  draw(field);
});
