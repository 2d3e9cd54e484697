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

const describe = (run) => {
  const share = progressOf(run);
  const parts = [run.progress, run.eta_seconds >= 1 && run.state === "running" ? `${duration(run.eta_seconds)} left` : ""];
  return [
    h("span", { class: `ps-dot ${run.state}`, "aria-hidden": "true" }),
    h("b", {}, run.title),
    drawBar(share),
    h("span", { class: "ps-strip-text" }, parts.filter(Boolean).join(" · ") || run.state),
  ];
};

const draw = ({ running, queued, last }) => {
  const waiting = queued ? h("span", { class: "ps-strip-more" }, `${number(queued)} waiting`) : null;
  const current = running[0] ?? null;
  if (current) {
    link.dataset.go = `runs/${current.id}`;
    return link.replaceChildren(...describe(current), waiting ?? "");
  }
  link.dataset.go = last ? (last.model ? `playground/${last.model}` : `runs/${last.id}`) : "corpus";
  if (queued) {
    link.dataset.go = "runs";
    return link.replaceChildren(h("span", { class: "ps-dot queued" }), h("span", { class: "ps-strip-text" }, "Starting the next run…"), waiting);
  }
  if (!last) {
    return link.replaceChildren(h("span", { class: "ps-dot" }), h("span", { class: "ps-strip-text" }, "Nothing has run here yet. Begin with the text to learn from."));
  }
  const next = last.model && last.state === "done" ? "Try it in the Playground →" : "See the run →";
  if (!last.model || last.state !== "done") link.dataset.go = `runs/${last.id}`;
  return link.replaceChildren(
    h("span", { class: `ps-dot ${last.state}`, "aria-hidden": "true" }),
    h("b", {}, last.title),
    h("span", { class: "ps-strip-text" }, `${last.label}. ${next}`),
  );
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
