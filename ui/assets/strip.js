// The status bar above the tabs, the alerts, and the web app's addresses (#runs, #runs/<id>).
const { h, duration, number } = studio;
const link = element.querySelector(".ps-strip");
const tabNames = props.tabs;
let artifacts = null;
let app = null;
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

// The target of a click on the status bar, and its content.
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

// Alerts: each is shown once, on any tab. Alerts of failed runs stay until they are closed.

const toasts = element.querySelector(".ps-toasts");
const MOST_TOASTS = 3;
const QUIET_SECONDS = 600;
const MOST_REMEMBERED = 200;
const memory = `studio-alerts-${props.workspace}`;
const OPEN_SECONDS = 60;
const open = new Map(); // run and kind -> element

const recall = () => {
  try {
    return JSON.parse(localStorage.getItem(memory));
  } catch {
    return null;
  }
};
const remember = (shown) => {
  const newest = Object.entries(shown).sort(([, a], [, b]) => b.time - a.time).slice(0, MOST_REMEMBERED);
  try {
    localStorage.setItem(memory, JSON.stringify(Object.fromEntries(newest)));
  } catch {
    // Without local storage, alerts are shown again after a reload.
  }
};

// A repeated kind of alert is shown again only after a while, the end of a run each time. A new
// visitor sees no alerts of ended runs.
const takeNotices = (notices) => {
  const before = recall();
  const shown = before ?? {};
  const now = Date.now() / 1000;
  for (const notice of notices) {
    const about = `${notice.run} ${notice.kind}`;
    const last = shown[about];
    if (last && notice.number <= last.number) continue;
    const isNew = before ? !last || notice.bad || now - last.time > QUIET_SECONDS : !notice.over;
    if ((isNew || open.has(about)) && notice.run !== studio.viewing) toast(about, notice);
    shown[about] = { number: notice.number, time: isNew || !last ? now : last.time };
  }
  if (notices.length || !before) remember(shown);
};

const close = (about) => {
  open.get(about)?.remove();
  open.delete(about);
};

// The view of a run shows its alerts, so their toasts are closed.
const closeSeen = () => [...open.keys()].filter((about) => about.startsWith(`${studio.viewing} `)).forEach(close);

const toast = (about, notice) => {
  close(about);
  const see = h("a", { href: "#runs", "data-go": `runs/${notice.run}`, onclick: () => close(about) }, "See the run →");
  const shut = h("button", { type: "button", "aria-label": "Close", onclick: () => close(about) }, "✕");
  const node = h("div", { class: notice.bad ? "ps-toast bad" : "ps-toast", role: "alert" },
    shut, h("b", {}, notice.title), h("span", { class: "kind" }, notice.kind), h("p", {}, notice.message), see);
  open.set(about, node);
  toasts.append(node);
  if (!notice.bad) setTimeout(() => open.get(about) === node && close(about), 1000 * OPEN_SECONDS);
  while (open.size > MOST_TOASTS) close([...open.keys()][0]);
};

const tabButton = (name) => document.getElementById(`tab-${name}-button`);

// An address without a tab opens the first tab.
let led = false;
const openPlace = () => {
  const { tab } = studio.place();
  led = true;
  if (tabNames.includes(tab) || !tab) tabButton(tab || tabNames[0])?.click();
  led = false;
  window.dispatchEvent(new CustomEvent("ps-place"));
};

// A click on a tab adds an entry to the browser's history; Back returns to the previous tab.
const followTabs = () => {
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.('button[role="tab"]');
    const name = tabNames.find((one) => button?.id === `tab-${one}-button`);
    if (!name) return;
    const { tab } = studio.place();
    if (!led && (tab || tabNames[0]) !== name) history.pushState(null, "", `#${name}`);
    else if (!led && !tab) history.replaceState(null, "", `#${name}`);
    setTimeout(studio.repaint, 100);
  });
  window.addEventListener("hashchange", openPlace);
};

// Without a tab in the address, the Runs tab opens if a run is active or queued.
const openFirstPlace = (status) => {
  if (tabNames.includes(studio.place().tab)) openPlace();
  else if (status.running.length || status.queued) studio.go("runs");
  else return;
  opened = true;
};

followTabs();
// A user who has already clicked or typed is not moved to another tab.
for (const kind of ["pointerdown", "keydown"]) document.addEventListener(kind, () => (opened = true), { once: true });
studio.poll(element, 1000, async () => {
  const status = await studio.ask(server.studio_status);
  if (status.problem) throw new Error(status.problem.problem);
  // The app was restarted, perhaps with other components or another workspace.
  if (app !== null && app !== status.app) return location.reload();
  app = status.app;
  draw(status);
  closeSeen();
  takeNotices(status.notices);
  if (artifacts !== status.artifacts) trigger("artifacts");
  artifacts = status.artifacts;
  if (!opened) openFirstPlace(status);
});
