// Example sentences as buttons. The value: a list of sentences; a click fires `pick` with one.
const chips = element.querySelector(".ps-chips");
const draw = () =>
  chips.replaceChildren(
    ...(Array.isArray(props.value) ? props.value : []).map((sentence) =>
      studio.h("button", { type: "button", onclick: () => trigger("pick", { sentence }) }, sentence)),
  );
watch("value", draw);
draw();

// The address #playground/<model> chooses that model.
const choose = () => {
  const { tab, argument } = studio.place();
  if (tab === "playground" && argument) trigger("choose", { model: argument });
};
window.addEventListener("ps-place", choose);
choose();
