// Example sentences as buttons. The value is a list of sentences; a click fires `pick` with one.
const chips = element.querySelector(".ps-chips");
const draw = () =>
  chips.replaceChildren(
    ...(Array.isArray(props.value) ? props.value : []).map((sentence) =>
      studio.h("button", { type: "button", onclick: () => trigger("pick", { sentence }) }, sentence)),
  );
watch("value", draw);
draw();

// The address #playground/<model> selects that model.
const choose = () => {
  const { tab, argument } = studio.place();
  if (tab === "playground" && argument) trigger("choose", { model: argument });
};
window.addEventListener("ps-place", choose);
choose();

// In the text boxes for a model, Enter submits and Shift+Enter begins a new line. The Enter of an
// input method only accepts its suggestion.
const BUTTONS = { "playground-text": "playground-ask", "playground-prompt": "playground-write", "playground-scored": "playground-score", "playground-classified": "playground-classify", "playground-pair": "playground-classify", "playground-tagged": "playground-tag" };
const onEnter = (event) => {
  const box = event.target.closest?.(Object.keys(BUTTONS).map((id) => `#${id}`).join(","));
  if (!box || event.target.tagName !== "TEXTAREA" || event.key !== "Enter" || event.isComposing) return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  // Gradio listens for the keypress that follows and would submit on Shift+Enter.
  event.stopImmediatePropagation();
  if (event.shiftKey || event.type === "keypress") return;
  event.preventDefault();
  if (!event.repeat) document.getElementById(BUTTONS[box.id])?.click();
};
if (!studio.asksOnEnter) for (const type of ["keydown", "keypress"]) window.addEventListener(type, onEnter, true);
studio.asksOnEnter = true;
