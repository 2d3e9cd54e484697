// Shows the values of automatic settings beside their fields, and warns of a plan that can't learn.
// The value is {notes: {form: {field: {value, reason}}}, warnings: [{sentence, form, values}]}.
const { h } = studio;
const drawn = new Set();

const draw = () => {
  const { notes = {}, warnings = [] } = props.value ?? {};
  drawn.forEach((node) => node.remove());
  drawn.clear();
  for (const [form, fields] of Object.entries(notes))
    for (const [field, { value, reason }] of Object.entries(fields)) {
      const block = document.getElementById(`${form}-${field}`);
      if (!block) continue;
      const note = h("p", { class: "ps-automatic" }, "Automatic: ", h("b", {}, value), `. ${reason}.`);
      block.append(note);
      drawn.add(note);
    }
  element.replaceChildren(...warnings.map(({ sentence, form, values, label }) => h("div", { class: "ps-warning ps-advice", role: "status" },
    h("span", {}, `${sentence}.`),
    label && h("button", { type: "button", class: "ps-button", onclick: () => studio.fill(form, values) }, label))));
};

watch("value", draw);
