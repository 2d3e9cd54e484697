// The address #publish/<model> selects that model.
const choose = () => {
  const { tab, argument } = studio.place();
  if (tab === "publish" && argument) trigger("choose", { model: argument });
};
window.addEventListener("ps-place", choose);
choose();
