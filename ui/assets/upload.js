// Sets the accessible name of an upload zone, which Gradio leaves untranslated.
const zone = document.getElementById(props.zone);
const name = () =>
  zone.querySelectorAll('[aria-label="common.upload"]').forEach((button) =>
    button.setAttribute("aria-label", props.label));
if (zone) {
  name();
  new MutationObserver(name).observe(zone, { childList: true, subtree: true, attributes: true, attributeFilter: ["aria-label"] });
}
