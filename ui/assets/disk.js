// Disk usage of the workspace: a bar, and a table in which artifacts can be deleted.
const { h, ago } = studio;
const section = element.querySelector(".ps-disk");
const part = (name) => section.querySelector(`.ps-disk-${name}`);
const body = section.querySelector("tbody");
let seen = "";
let confirming = ""; // the artifact whose deletion is to be confirmed

const keyOf = (artifact) => `${artifact.kind} ${artifact.name}`;

const drawParts = ({ parts, total }) => {
  const sum = parts.reduce((all, one) => all + one.bytes, 0);
  part("total").textContent = total;
  part("parts").replaceChildren(...parts.map((one) => h("i", { class: one.part, style: `flex-grow:${Math.max(one.bytes / sum, 0.004)}` })));
  part("legend").replaceChildren(...parts.map((one) => h("li", { class: one.part }, one.title, " ", h("b", {}, one.size))));
};

const drawRow = (artifact) =>
  h("tr", {},
    h("td", { class: "name" }, h("b", {}, artifact.name), h("small", {}, artifact.title)),
    h("td", { "data-label": "Size", class: "size" }, h("span", {}, artifact.size)),
    h("td", { "data-label": "Made", class: "made" }, h("span", {}, ago(artifact.created), madeBy(artifact))),
    h("td", { "data-label": "Links" }, h("span", {}, ...ties(artifact))),
    h("td", { class: "ps-actions" }, ...actions(artifact)));

const madeBy = ({ run }) => run && h("small", {}, h("a", { href: "#runs", "data-go": `runs/${run}` }, "its run"));

const ties = (artifact) => {
  const line = (label, text, kind = "") => text && h("small", { class: kind }, `${label} ${text}`);
  const lines = [
    line("made from", artifact.made_from),
    line("turned into", artifact.turned_into),
    line("files in", artifact.location),
    line("needed by", artifact.needed_by, "needed"),
  ].filter(Boolean);
  return lines.length ? lines : ["–"];
};

const actions = (artifact) => {
  const button = (label, kind, onclick) => h("button", { type: "button", class: `ps-button ${kind}`, onclick, "aria-label": `${label}: ${artifact.title} ${artifact.name}` }, label);
  if (confirming !== keyOf(artifact)) return [button("Delete", "", () => confirm(artifact))];
  const note = artifact.turned_into ? "Delete it for good? What was made from it stays." : "Delete it for good?";
  return [h("span", { role: "alert" }, note), button("Delete it", "danger", () => remove(artifact)), button("Keep it", "", () => confirm(null))];
};

let listed = null;
let drawn = ""; // the shown content: redrawn only when it changes, so that a focused button keeps the focus
const draw = () => {
  drawParts(listed);
  const text = JSON.stringify([listed.artifacts, confirming]);
  if (drawn !== text) body.replaceChildren(...listed.artifacts.map(drawRow));
  drawn = text;
  body.parentElement.hidden = listed.artifacts.length === 0;
  section.hidden = listed.parts.every((one) => one.part === "other");
  element.querySelector(".ps-disk-empty").hidden = !section.hidden;
};

const confirm = (artifact) => {
  confirming = artifact ? keyOf(artifact) : "";
  part("problem").replaceChildren();
  draw();
  body.querySelector(".danger")?.focus();
};

const remove = async (artifact) => {
  if (confirming !== keyOf(artifact)) return; // a second click
  confirming = "";
  const answer = await studio.ask(server.delete_one, { kind: artifact.kind, name: artifact.name });
  part("problem").replaceChildren(...(answer.problem ? [studio.problemCard(answer.problem)] : []));
  draw();
  await refresh();
};

const refresh = studio.poll(element, 4000, async () => {
  if (!studio.isShown(element)) return;
  const answer = await studio.ask(server.disk_use, { seen });
  if (answer.problem) return part("problem").replaceChildren(studio.problemCard(answer.problem));
  if (!answer.artifacts) return;
  seen = answer.seen;
  listed = answer;
  draw();
});
window.addEventListener("ps-place", () => studio.place().tab === "workspace" && setTimeout(refresh, 50));
