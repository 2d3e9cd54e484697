// Gives the buttons of an upload zone their accessible names: Gradio's differ from the text that they
// show, or are left untranslated. Holds back other buttons while files are on their way.
const { zone: id, label } = props;
const zone = document.getElementById(id);
const name = () => {
  for (const button of zone.querySelectorAll("button[aria-label]")) {
    if (button.classList.contains("upload-container")) button.removeAttribute("aria-label");
    else if (button.getAttribute("aria-label") === "common.upload") button.setAttribute("aria-label", label);
  }
};

// A stage, preview or analysis that is started meanwhile would not know the files yet: the click
// comes again once the form has their path, or after the zone has given up.
const LOOK_MILLISECONDS = 500;
const ACTS = ".ps-buttons button, .ps-start-bar button";
let since = 0; // when files began to arrive, or 0
let pressed = null;
const begin = () => {
  since = performance.now();
  const look = setInterval(() => {
    const isEmpty = zone.querySelector(".upload-container") && !zone.querySelector(".file-preview");
    const hasGivenUp = isEmpty && performance.now() - since > 4 * LOOK_MILLISECONDS;
    if (!since || hasGivenUp || !zone.isConnected) {
      clearInterval(look);
      end();
    }
  }, LOOK_MILLISECONDS);
};
const end = () => {
  since = 0;
  const button = pressed;
  pressed = null;
  if (!button) return;
  button.removeAttribute("aria-busy");
  // Gradio hands the path to the form in its next frames.
  setTimeout(() => button.isConnected && !button.disabled && button.click(), LOOK_MILLISECONDS);
};
const hold = (event) => {
  const button = since && event.target.closest(ACTS);
  if (!button) return;
  event.stopImmediatePropagation();
  event.preventDefault();
  pressed = button;
  button.setAttribute("aria-busy", "true");
};

if (zone) {
  name();
  zone.addEventListener("change", (event) => event.target.files?.length && begin(), true);
  zone.addEventListener("drop", (event) => event.dataTransfer?.files.length && begin(), true);
  document.addEventListener("click", hold, true);
  studio.uploadEnded ??= {};
  studio.uploadEnded[id] = end;
  new MutationObserver(name).observe(zone, { childList: true, subtree: true, attributes: true, attributeFilter: ["aria-label"] });
}
