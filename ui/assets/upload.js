// Names the upload zone: Gradio has no text for the name that it gives it.
const zone = document.getElementById("corpus-upload");
const name = () =>
  zone.querySelectorAll('[aria-label="common.upload"]').forEach((button) =>
    button.setAttribute("aria-label", "Upload files of text"));
if (zone) {
  name();
  new MutationObserver(name).observe(zone, { childList: true, subtree: true, attributes: true, attributeFilter: ["aria-label"] });
}
