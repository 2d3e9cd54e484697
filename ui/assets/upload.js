// Gives the buttons of an upload zone their accessible names: Gradio's differ from the text that they
// show, or are left untranslated.
const { zone: id, label } = props;
const zone = document.getElementById(id);
const name = () => {
  for (const button of zone.querySelectorAll("button[aria-label]")) {
    if (button.classList.contains("upload-container")) button.removeAttribute("aria-label");
    else if (button.getAttribute("aria-label") === "common.upload") button.setAttribute("aria-label", label);
  }
};
if (zone) {
  name();
  new MutationObserver(name).observe(zone, { childList: true, subtree: true, attributes: true, attributeFilter: ["aria-label"] });
}
