// The preview of cleaning: groups that the user has opened or closed stay so when it is drawn again.
const chosen = new Map();
const groups = () => element.querySelectorAll("details[data-group]");
element.addEventListener("click", (event) => {
  const group = event.target.closest?.("summary")?.parentElement;
  if (group?.dataset.group) chosen.set(group.dataset.group, !group.open);
});
watch("value", () => groups().forEach((one) => {
  if (chosen.has(one.dataset.group)) one.open = chosen.get(one.dataset.group);
}));
