// Imports a run's exported settings into the form of their stage, whose tab opens first.
const tabs = JSON.parse(element.querySelector(".ps-import").dataset.tabs); // by stage
const file = element.querySelector(".ps-import input");
file.addEventListener("change", async () => {
  const text = await file.files[0]?.text();
  file.value = "";
  if (text === undefined) return;
  let stage = "";
  try {
    stage = JSON.parse(text).stage;
  } catch {} // The server reports the error.
  if (tabs[stage]) studio.go(tabs[stage]);
  setTimeout(() => trigger("settings", { text }), 150);
});
