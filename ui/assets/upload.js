// Sets the accessible name of an upload zone, which Gradio leaves untranslated.
const { zone: id, label } = props;
const zone = document.getElementById(id);
const name = () =>
  zone.querySelectorAll('[aria-label="common.upload"]').forEach((button) =>
    button.setAttribute("aria-label", label));
if (zone) {
  name();
  new MutationObserver(name).observe(zone, { childList: true, subtree: true, attributes: true, attributeFilter: ["aria-label"] });
}
