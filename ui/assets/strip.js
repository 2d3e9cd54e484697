// The status bar above the tabs, the alerts, and the web app's addresses (#runs, #runs/<id>).
const { h, duration, number } = studio;
const link = element.querySelector(".ps-strip");
const tabNames = props.tabs;
let artifacts = null;
let app = null;

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

// Of several active runs the bar shows one that moves on: another stays only while it has moved lately.
const MOVES_SECONDS = 20;
const moved = new Map(); // run -> what it said last, and when that changed
let shown = "";
const pick = (running) => {
  const now = performance.now();
  for (const run of running) {
    const said = `${run.state} ${run.done} ${run.progress}`;
    if (moved.get(run.id)?.said !== said) moved.set(run.id, { said, at: moved.has(run.id) ? now : now - 1e9 * (run.done === 0) });
  }
  for (const id of moved.keys()) if (!running.some((run) => run.id === id)) moved.delete(id);
  const since = (run) => now - moved.get(run.id).at;
  const current = running.find((run) => run.id === shown);
  if (current && since(current) < 1000 * MOVES_SECONDS) return current;
  const liveliest = running.reduce((best, run) => (since(run) < since(best) ? run : best));
  shown = liveliest.id;
  return liveliest;
};

// The target of a click on the status bar, and its content.
const contents = ({ running, queued, last }) => {
  const run = running.length ? pick(running) : null;
  const others = [running.length > 1 && `${number(running.length - 1)} more running`, queued > 0 && `${number(queued)} waiting`];
  const more = others.some(Boolean) && h("span", { class: "ps-strip-more" }, others.filter(Boolean).join(" · "));
  if (run) return [`runs/${run.id}`, ...describe(run), more];
  if (queued) return ["runs", dot("queued"), say("The next run is about to start"), more];
  if (!last) return ["home", dot(""), say("Nothing has run here yet. Begin with the text to learn from.")];
  return [last.next[0], dot(last.state), h("b", {}, last.title), say(`${last.label}. ${last.next[1]} →`)];
};

// The states of the steps, for eyes and for screen readers.
const drawSteps = (steps) => {
  for (const [tab, state] of Object.entries(steps)) {
    for (const link of document.querySelectorAll(`.ps-nav ol [data-tab="${tab}"]`)) {
      if ((link.dataset.state ?? "") === state) continue;
      link.dataset.state = state;
      link.title = state;
    }
  }
};

// Below a start button: how its runs have ended, and the next step.
const drawStarted = (ended) => {
  for (const node of document.querySelectorAll(".ps-started[data-runs]")) {
    const last = node.dataset.runs.split(" ").at(-1);
    const [state, place, words] = ended[last] ?? [];
    if (!state || node.dataset.state === state) continue;
    node.dataset.state = state;
    node.append(h("span", { class: "ps-next" }, dot(state), `${state[0].toUpperCase()}${state.slice(1)}. `, h("a", { href: `#${place.split("/")[0]}`, "data-go": place }, `${words} →`)));
  }
};

const draw = (status) => {
  const [place, ...nodes] = contents(status);
  link.dataset.go = place;
  link.replaceChildren(...nodes.filter(Boolean));
  drawSteps(status.steps);
  drawStarted(status.ended);
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

// Marks the links to the open tab, in the navigation also those to the tab around it.
let current = "";
const markCurrent = () => {
  const around = props.parents[current] ?? current;
  const isStep = props.steps.includes(around);
  for (const link of document.querySelectorAll(":is(.ps-nav, .ps-bottom) [data-tab]")) {
    const { tab } = link.dataset;
    const value = tab === current ? "page" : tab === around || (isStep && tab === "train" && link.closest(".ps-bottom")) ? "true" : null;
    if (value) link.setAttribute("aria-current", value);
    else link.removeAttribute("aria-current");
  }
  document.querySelector(".ps-nav")?.toggleAttribute("data-step", isStep);
};

// An address without a tab opens the first tab.
const openPlace = () => {
  const { tab } = studio.place();
  if (tabNames.includes(tab) || !tab) {
    current = tab || tabNames[0];
    tabButton(current)?.click();
    markCurrent();
  }
  setTimeout(studio.repaint, 100);
  window.dispatchEvent(new CustomEvent("ps-place"));
};

// Menus close after a choice, with Escape, and with a click elsewhere.
const closeMenus = (except) => document.querySelectorAll(".ps-menu[open]").forEach((menu) => menu !== except && (menu.open = false));
const followTabs = () => {
  document.addEventListener("click", (event) => {
    closeMenus(event.target.closest?.("a") ? null : event.target.closest?.(".ps-menu"));
    if (!event.target.closest?.("[data-skip]")) return;
    event.preventDefault();
    const panel = document.getElementById(`tab-${current}`);
    panel?.setAttribute("tabindex", "-1");
    panel?.focus();
  });
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && event.target.closest?.(".ps-menu[open]");
    if (!menu) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
  window.addEventListener("hashchange", openPlace);
};

// Without a tab in the address, the page opens on Home.
const openFirstPlace = () => {
  if (tabButton(tabNames[0])) openPlace();
  else setTimeout(openFirstPlace, 20);
};

followTabs();
openFirstPlace();
// The page holds the first status; it is older if the browser shows it again after a while.
if (window.studioFirst?.status) draw(window.studioFirst.status);
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
});
