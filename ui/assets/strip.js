// The line above the tabs that says what is running, and the page's addresses (#runs, #runs/<id>).
const { h, duration, number } = studio;
const link = element.querySelector(".ps-strip");
const tabNames = props.tabs;
let artifacts = null;
let page = null;
let opened = false;

const progressOf = (run) => (run.total ? Math.min(1, run.done / run.total) : null);

const drawBar = (share) =>
  h("span", { class: share === null ? "ps-bar unknown" : "ps-bar", "aria-hidden": "true" },
    h("i", { style: share === null ? "" : `width:${(100 * share).toFixed(1)}%` }));

const dot = (state) => h("span", { class: `ps-dot ${state}`, "aria-hidden": "true" });
const say = (text) => h("span", { class: "ps-strip-text" }, text);

const describe = (run) => {
  const share = progressOf(run);
  const parts = [run.progress, run.eta_seconds >= 1 && run.state === "running" ? `${duration(run.eta_seconds)} left` : ""];
  return [
    dot(run.state),
    h("b", {}, run.title),
    drawBar(share),
    say(parts.filter(Boolean).join(" · ") || run.state),
  ];
};

// What stands in the line, and where a click on it leads.
const contents = ({ running, queued, last }) => {
  const waiting = queued > 0 && h("span", { class: "ps-strip-more" }, `${number(queued)} waiting`);
  if (running.length) return [`runs/${running[0].id}`, ...describe(running[0]), waiting];
  if (queued) return ["runs", dot("queued"), say("The next run is about to start"), waiting];
  if (!last) return ["corpus", dot(""), say("Nothing has run here yet. Begin with the text to learn from.")];
  const ready = last.model && last.state === "done";
  const [place, next] = ready ? [`playground/${last.model}`, "Try it in the Playground →"] : [`runs/${last.id}`, "See the run →"];
  return [place, dot(last.state), h("b", {}, last.title), say(`${last.label}. ${next}`)];
};

const draw = (status) => {
  const [place, ...nodes] = contents(status);
  link.dataset.go = place;
  link.replaceChildren(...nodes.filter(Boolean));
};

const tabButton = (name) => document.getElementById(`tab-${name}-button`);

const openPlace = () => {
  const { tab } = studio.place();
  if (tabNames.includes(tab)) tabButton(tab)?.click();
  window.dispatchEvent(new CustomEvent("ps-place"));
};

// A click on a tab changes the address, without a new entry in the browser's history.
const followTabs = () => {
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.('button[role="tab"]');
    const name = tabNames.find((one) => button?.id === `tab-${one}-button`);
    if (!name) return;
    if (studio.place().tab !== name) history.replaceState(null, "", `#${name}`);
    setTimeout(studio.repaint, 100);
  });
  window.addEventListener("hashchange", openPlace);
};

// Who comes without an address while something runs sees it run.
const openFirstPlace = (status) => {
  if (tabNames.includes(studio.place().tab)) openPlace();
  else if (status.running.length || status.queued) studio.go("runs");
  else return;
  opened = true;
};

followTabs();
studio.poll(element, 1000, async () => {
  const status = await studio.ask(server.studio_status);
  if (status.problem) throw new Error(status.problem.problem);
  // The app was started anew, with other components or another workspace.
  if (page !== null && page !== status.page) return location.reload();
  page = status.page;
  draw(status);
  if (!opened) openFirstPlace(status);
  if (artifacts !== status.artifacts) trigger("artifacts");
  artifacts = status.artifacts;
});
