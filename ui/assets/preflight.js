// The progress of a preflight, then its report. The value is {settings, price}.
const { h, ago, duration } = studio;
const section = element.querySelector(".ps-preflight");
let seen = "";
let chosen = ""; // the report selected in the list; if none, the report follows the settings
let state = null;

const link = (run, words) => h("a", { href: "#runs", "data-go": `runs/${run}` }, words);

const progress = (run) => {
  const waits = run.state === "queued";
  const words = waits ? "Waiting for its turn" : run.state === "stopping" ? "Stopping" : run.note || "Starting";
  const share = run.total && run.done ? `width:${((100 * run.done) / run.total).toFixed(0)}%` : "";
  const bar = h("div", { class: share ? "ps-bar" : "ps-bar unknown", role: "progressbar", "aria-label": "The check" }, h("i", { style: share }));
  return h("div", { class: "ps-preflight-progress" },
    h("p", {}, h("span", { class: `ps-dot ${run.state}`, "aria-hidden": "true" }), h("span", {}, words), link(run.id, "See the run →")),
    waits ? null : bar);
};

const failure = ({ run, error }) => {
  const more = h("p", {}, link(run, "See the run →"));
  return studio.problemCard(error ?? { problem: "The check did not finish" }, more);
};

// The settings of the report that differ from the form.
const otherwise = ({ differences }) =>
  differences.length
    ? [h("p", { class: "ps-preflight-other" }, h("b", {}, "This was found for other settings: "), differences.join("; "), ".")]
    : [];

const show = (name) => {
  chosen = name;
  refresh();
};

const line = (one, shown) =>
  h("li", {},
    h("button", { type: "button", "aria-current": String(one.name === shown), onclick: () => show(one.name) },
      h("span", { class: `ps-dot ${one.fits ? "done" : "failed"}`, "aria-hidden": "true" }),
      h("span", {}, `${one.fits ? "fits" : "does not fit"} · ${one.text}`),
      h("time", {}, ago(one.created))));

const list = (listed, shown, open) =>
  listed.length < 2
    ? []
    : [h("details", { class: "ps-preflight-list", open }, h("summary", {}, `All checks (${listed.length})`), h("ul", {}, listed.map((one) => line(one, shown))))];

const draw = ({ run, failure: failed, report, listed }) => {
  const open = section.querySelector("details")?.open ?? false;
  const parts = [...(run ? [progress(run)] : []), ...(failed ? [failure(failed)] : [])];
  if (report) {
    const use = (batch_size) => trigger("use", { batch_size });
    parts.push(...otherwise(report), studio.preflightCard(report.card, { used: report.used, use }), ...list(listed, report.name, open));
  }
  section.hidden = parts.length === 0;
  section.classList.toggle("busy", Boolean(run));
  section.replaceChildren(...parts);
};

const refresh = studio.poll(element, 1000, async () => {
  if (!studio.isShown(element.parentElement)) return;
  const answer = await studio.ask(server.preflight_state, { ...props.value, report: chosen, seen });
  if (answer.problem) throw new Error(answer.problem.problem);
  if (answer.seen === undefined) return;
  seen = answer.seen;
  if (answer.run && !state?.run) chosen = ""; // show the report of the started check
  state = answer;
  draw(state);
});
watch("value", () => {
  chosen = "";
  refresh();
});
