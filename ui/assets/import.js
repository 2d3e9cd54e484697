// Imports a run's exported settings into the form of their stage, whose tab opens first.
const tabs = JSON.parse(element.querySelector(".ps-import").dataset.tabs); // by stage
const file = element.querySelector(".ps-import input");
file.addEventListener("change", async () => {
  const text = await file.files[0]?.text();
  file.value = "";
  if (text === undefined) return;
  let settings = {};
  try {
    settings = JSON.parse(text) ?? {};
  } catch {} // The server reports the error, and that of a file without settings.
  if (settings.config && tabs[settings.stage]) studio.go(tabs[settings.stage]);
  setTimeout(() => trigger("settings", { text }), 150);
});
