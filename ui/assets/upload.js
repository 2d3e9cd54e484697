// Sets the accessible name of the upload zone, which Gradio leaves untranslated.
const zone = document.getElementById("corpus-upload");
const name = () =>
  zone.querySelectorAll('[aria-label="common.upload"]').forEach((button) =>
    button.setAttribute("aria-label", "Upload files of text"));
if (zone) {
  name();
  new MutationObserver(name).observe(zone, { childList: true, subtree: true, attributes: true, attributeFilter: ["aria-label"] });
}
