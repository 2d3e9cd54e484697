// The Runs tab: the list of runs and the selected run. It asks the server only for changes.
const { h, number, compact, duration, ago } = studio;
const body = element.querySelector("tbody");
const empty = element.querySelector(".ps-runs-empty");
const board = element.querySelector(".ps-runs-board");
const detail = element.querySelector(".ps-detail");
const queue = element.querySelector(".ps-queue");
const slots = queue.querySelector("select");
const ENDED = ["stopped", "done", "failed", "lost"];

const rows = new Map(); // id -> {run, cells}
const checked = new Set(); // the runs to compare
let selected = "";
let byHand = false; // true if the user selected it; otherwise the view follows the active run
let view = null; // the elements of the selected run
let followed = []; // the runs that this browser tab started last
const noted = new Set(); // all runs that this browser tab has started
let missed = ""; // the run last reported as missing
let shieldedUntil = 0; // until then, the view that replaces a deleted run ignores clicks
let deleted = ""; // the run last deleted here, which is not reported as missing

// The table.

const makeRow = (run) => {
  const cells = {
    check: h("input", { type: "checkbox", "aria-label": `Compare ${run.id}`, checked: checked.has(run.id), onchange: (event) => check(run.id, event.target.checked) }),
    name: h("button", { class: "ps-run-name", type: "button" }),
    state: h("td", { class: "state" }),
    progress: h("td", { class: "progress" }),
  };
  cells.row = h("tr", { onclick: () => choose(run.id) }, h("td", { class: "name" }, h("label", { class: "ps-check", onclick: (event) => event.stopPropagation() }, cells.check), cells.name), cells.state, cells.progress);
  return { run, cells };
};

const badge = (run) => h("span", { class: `ps-badge ${run.state}` }, run.label);

// The alerts of a run: the newest by name, the others as a count.
const alertBadges = (run) => {
  if (!run.alerts.length) return [];
  const more = run.alerts.length - 1;
  return [" ", h("span", { class: "ps-badge alert", title: run.alerts.join(", ") }, run.alerts[0], more ? ` +${more}` : "")];
};

const shareOf = (run) => (run.state === "done" ? 1 : run.total ? Math.min(1, run.done / run.total) : null);

const isActive = (run) => run.state === "running" || run.state === "stopping";

// Without a known total, the bar is animated while the run is active, and absent afterwards.
const bar = (run) => {
  const share = shareOf(run);
  if (share === null && !isActive(run)) return null;
  const attributes = { class: `ps-bar ${run.state}${share === null ? " unknown" : ""}`, role: "progressbar", "aria-label": "Progress", "aria-valuemin": 0, "aria-valuemax": 100 };
  if (share !== null) attributes["aria-valuenow"] = Math.round(100 * share);
  return h("div", attributes, h("i", { style: share === null ? "" : `width:${(100 * share).toFixed(1)}%` }));
};

const tagsOf = (run) => (run.tags.length ? [h("span", { class: "ps-tags" }, ...run.tags.map((tag) => h("span", { class: "ps-tag" }, tag)))] : []);

const titleOf = (id) => rows.get(id)?.run.title ?? id;

const spent = (run) => {
  if (run.state === "queued") return run.after.length ? `waits for ${run.after.map(titleOf).join(", ")}` : "waiting for a slot";
  if (run.state === "running" && run.eta_seconds >= 1) return `${duration(run.eta_seconds)} left`;
  if (!run.started) return "";
  // `started` is the start of the current attempt; pauses between attempts don't count.
  const seconds = (run.ended ?? Date.now() / 1000) - run.started + run.earlier_seconds;
  return `${ENDED.includes(run.state) ? "took" : "for"} ${duration(seconds)}${run.attempt > 1 ? `, in ${number(run.attempt)} attempts` : ""}`;
};

const fillRow = ({ run, cells }) => {
  cells.name.replaceChildren(h("b", {}, run.title), h("small", {}, run.id), ...tagsOf(run));
  cells.state.replaceChildren(badge(run), ...alertBadges(run));
  const shown = isActive(run) && bar(run);
  const facts = isActive(run) ? [run.metric || run.progress, spent(run)] : [run.metric || (run.state === "done" ? spent(run) : run.progress) || spent(run), ago(run.created)];
  cells.progress.replaceChildren(...(shown ? [shown] : []), h("small", {}, ...facts.filter(Boolean).map((fact) => h("span", {}, fact))));
  cells.row.classList.toggle("selected", run.id === selected);
  cells.name.setAttribute("aria-current", String(run.id === selected));
};

const takeRows = (runs) => {
  for (const run of runs) {
    if (rows.has(run.id)) rows.get(run.id).run = run;
    else rows.set(run.id, makeRow(run));
  }
  const sorted = [...rows.values()].sort(found ? (a, b) => placeOf(a) - placeOf(b) : (a, b) => b.run.position - a.run.position);
  sorted.forEach((row, index) => {
    fillRow(row);
    row.cells.row.hidden = found !== null && !found.has(row.run.id);
    if (body.children[index] !== row.cells.row) body.insertBefore(row.cells.row, body.children[index] ?? null);
  });
  empty.hidden = rows.size > 0;
  board.hidden = rows.size === 0;
};

// The filter and the order: the server finds the runs, also those that aren't listed yet.

const search = element.querySelector(".ps-search");
const SEARCH_MILLISECONDS = 4000;
let found = null; // id -> place, or null without a filter
let searched = 0;
const placeOf = ({ run }) => found.get(run.id) ?? Infinity;
const asked = () => ({ filter: search.elements.filter.value.trim(), sort: search.elements.sort.value });

// While a filter is being typed it may be incomplete, which is no error: one quiet line says so, and
// the list stays as it is. Enter shows the whole problem.
const told = search.querySelector(".ps-search-problem");
const tell = (...nodes) => told.replaceChildren(...nodes);
const find = async ({ isWhole = false } = {}) => {
  const question = asked();
  searched = performance.now();
  if (!question.filter && !question.sort) {
    found = null;
    tell();
    return takeRows([]);
  }
  const answer = await studio.ask(server.search_runs, question);
  if (JSON.stringify(question) !== JSON.stringify(asked())) return undefined;
  if (answer.problem) return isWhole ? tell(studio.problemCard(answer.problem)) : tell("Not a whole filter yet; Enter says why.");
  found = new Map(answer.ids.map((id, place) => [id, place]));
  tell(question.filter ? `${number(answer.ids.length)} ${answer.ids.length === 1 ? "run fits" : "runs fit"}.` : "");
  return takeRows(answer.runs);
};
const findAgain = () => (asked().filter || asked().sort ? performance.now() - searched > SEARCH_MILLISECONDS && find({ isWhole: Boolean(told.querySelector(".ps-error")) }) : undefined);
let typing = 0;
search.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => find(), 300);
});
search.addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(typing);
  find({ isWhole: true });
});
search.querySelector(".ps-help-inline").addEventListener("click", (event) => {
  const help = search.querySelector("#ps-search-help");
  help.hidden = !help.hidden;
  event.currentTarget.setAttribute("aria-expanded", String(!help.hidden));
});

const forget = (id) => {
  rows.get(id)?.cells.row.remove();
  rows.delete(id);
  check(id, false);
  if (selected !== id) return;
  // Its place stays empty until the list is requested again.
  shieldedUntil = performance.now() + 3 * SHIELDED_MILLISECONDS;
  view = null;
  detail.replaceChildren();
  selected = "";
  byHand = false;
  history.replaceState(null, "", "#runs");
};

// The runs chosen for a comparison, and the comparison, which takes the place of list and run.

const selection = element.querySelector(".ps-selection");
const comparing = element.querySelector(".ps-compare");
const MOST_COMPARED = 20;

const check = (id, on) => {
  if (on) checked.add(id);
  else checked.delete(id);
  const [button, note] = selection.children;
  button.disabled = checked.size < 2 || checked.size > MOST_COMPARED;
  button.textContent = checked.size ? `Compare ${checked.size}` : "Compare";
  note.textContent = checked.size > MOST_COMPARED ? `At most ${MOST_COMPARED} runs.` : checked.size < 2 ? "Select two or more runs." : "";
};

const here = (ids, place = "runs") => `${location.pathname}${ids.length ? `?compare=${ids.map(encodeURIComponent).join(",")}` : ""}#${place}`;
const showComparison = async () => {
  const ids = namedRun() ? [] : studio.compared();
  element.querySelector(".ps-runs").classList.toggle("comparing", ids.length > 0);
  comparing.hidden = !ids.length;
  if (!ids.length) return comparison.close();
  await comparison.open(ids);
  await comparison.refresh();
};

selection.querySelector("button").addEventListener("click", () => {
  history.pushState(null, "", here([...checked]));
  showComparison().then(() => comparing.querySelector("h3")?.focus({ preventScroll: true }));
  element.scrollIntoView({ block: "start" });
});

// The queue: active and waiting runs, and the number of concurrent runs.

const drawQueue = ({ active, queued, slots: allowed }) => {
  const parts = [active && `${number(active)} running`, queued && `${number(queued)} waiting`].filter(Boolean);
  queue.querySelector("span").textContent = parts.join(" · ") || "Nothing is running";
  if (document.activeElement === slots || slots.value === String(allowed)) return;
  const choices = [...new Set([1, 2, 3, 4, 6, 8, allowed])].sort((a, b) => a - b);
  slots.replaceChildren(...choices.map((one) => h("option", { value: one, selected: one === allowed }, String(one))));
};

slots.addEventListener("change", async () => {
  const answer = await studio.ask(server.set_run_slots, { slots: Number(slots.value) });
  if (answer.problem && view) showProblem(view, answer.problem);
  slots.blur();
  refresh();
});

// Older runs than the listed ones; `oldest` is the position of the last listed run.

const older = element.querySelector(".ps-older");
let oldest = null;
const showOlder = (answer) => {
  oldest = answer.oldest;
  older.hidden = !oldest || found !== null;
};
older.querySelector("button").addEventListener("click", async () => {
  const answer = await studio.ask(server.list_runs, { before: oldest });
  if (answer.problem) return view && showProblem(view, answer.problem);
  takeRows(answer.runs);
  showOlder(answer);
});

// The selected run.

// The charts of a run, as the server arranges them: its metrics become known while it goes on.
// Each chart keeps its element, so that it keeps the focus, too.
const arrangeCharts = (view, charts) => {
  const old = new Map(view.charts.map((one) => [one.key, one]));
  view.charts = charts.map(({ key, group, is_folded, lines, ...options }) => {
    const found = old.get(key);
    old.delete(key);
    const names = lines.map((line) => line.name);
    if (found) {
      found.chart.setLines(lines);
      return { ...found, group, is_folded, names };
    }
    const host = h("div", { class: "ps-chart-host", hidden: true });
    return { key, group, is_folded, host, names, chart: view.board.add(host, { lines, ...options }) };
  });
  old.forEach(({ host, chart }) => {
    view.board.remove(chart);
    host.remove();
  });
  const groups = [...new Set(view.charts.map(({ group }) => group))];
  for (const group of groups) {
    const members = view.charts.filter((one) => one.group === group);
    const box = group ? groupBox(view, group, members) : view.chartsBox;
    members.forEach(({ host }, index) => box.children[index] !== host && box.insertBefore(host, box.children[index] ?? null));
  }
  view.groups.forEach((section, group) => (section.hidden = !groups.includes(group)));
};

// A section of charts, closed if the server says so or if they are many.
const MOST_OPEN = 4;
const groupBox = (view, group, charts) => {
  if (!view.groups.has(group)) {
    const section = h("details", { class: "ps-chart-group", open: !charts[0].is_folded && charts.length <= MOST_OPEN }, h("summary", {}, group), h("div", { class: "ps-charts" }));
    view.groups.set(group, section);
    view.groupsBox.append(section);
  }
  return view.groups.get(group).lastChild;
};

const choose = (id) => {
  noteStarted();
  byHand = true;
  // If the list and a run don't fit side by side, the browser's Back button returns to the list.
  const change = isNarrow() && !namedRun() ? "pushState" : "replaceState";
  history[change](null, "", here([], `runs/${encodeURIComponent(id)}`));
  select(id);
  showChosen();
  refresh();
};

const isNarrow = () => matchMedia("(max-width: 899px)").matches;

// On a narrow screen, either the list is shown or the run named by the address.
const showChosen = () => {
  const isChosen = Boolean(namedRun());
  if (board.classList.contains("chosen") === isChosen) return;
  const hadFocus = board.contains(document.activeElement);
  board.classList.toggle("chosen", isChosen);
  if (!isNarrow()) return;
  element.scrollIntoView({ block: "start" });
  // The element that had the focus is hidden now.
  if (hadFocus) (isChosen ? view?.root.querySelector(".ps-back") : rows.get(selected)?.cells.name)?.focus();
};

// scrollIntoView would scroll the document, too. The list's header covers less than a row.
const showRow = (row) => {
  const list = row.closest(".ps-scroll");
  const above = row.offsetTop - list.scrollTop;
  if (above < row.offsetHeight || above + row.offsetHeight > list.clientHeight) list.scrollTop = row.offsetTop - (list.clientHeight - row.offsetHeight) / 2;
};

const select = (id) => {
  if (selected === id && view) return;
  selected = id;
  rows.forEach(fillRow);
  if (rows.has(id)) showRow(rows.get(id).cells.row);
  view?.board.close();
  view = makeView(id);
  detail.replaceChildren(view.root);
  if (performance.now() < shieldedUntil) shield(view.root);
};

// The results of start buttons name the queued runs. Newly started runs are followed until the user
// selects one.
const noteStarted = () => {
  const answers = [...document.querySelectorAll(".ps-started[data-runs]")].map((node) => node.dataset.runs.split(" "));
  for (const runs of answers.filter((some) => !noted.has(some[0]))) {
    runs.forEach((run) => noted.add(run));
    followed = runs;
    byHand = false;
  }
};

const makeView = (id) => {
  const part = (name, tag = "div") => h(tag, { class: name });
  const view = {
    id, after: 0, shape: "", charts: [], groups: new Map(), logSeen: "", stateSeen: "", latest: {}, figures: {}, confirming: "", asked: null,
    title: part("ps-detail-title"), progress: part("ps-detail-progress"), control: part("ps-actions ps-control"), tools: part("ps-actions ps-tools"), question: part("ps-question"),
    problem: part("ps-detail-problem"), ending: part("ps-detail-ending"), warnings: part("ps-detail-warnings"),
    next: part("ps-detail-next"), tiles: part("ps-tiles"), verdict: part("ps-verdict", "p"), devices: part("ps-note", "p"), report: part("ps-detail-report"), chartsBox: part("ps-charts"), groupsBox: part("ps-chart-groups"), facts: part("ps-detail-facts"),
    log: h("code", {}, ""),
  };
  const back = h("a", { class: "ps-back", href: "#runs", "data-go": "runs" }, "← All runs");
  view.head = h("div", { class: "ps-detail-head" }, back, view.title, view.control, view.tools, view.question);
  view.head.addEventListener("pointerleave", (event) => (event.pointerType === "mouse" ? release(view) : releaseLater(view)));
  view.board = new studio.ChartBoard(async (chart, lines, steps) => {
    const part = steps && { [id]: [Math.min(...Object.values(steps).map(([first]) => first)), Math.max(...Object.values(steps).map(([, last]) => last))] };
    const found = await studio.ask(server.run_curves, { runs: [id], names: lines.map((line) => line.name), steps: part, exact: true });
    return found.problem ? null : new Map(Object.entries(found.series[id] ?? {}));
  });
  view.board.controls.hidden = true;
  view.samples = part("ps-samples");
  view.samplesBox = h("details", { class: "ps-samples-box", hidden: true }, h("summary", {}, "Sample predictions"), view.samples);
  view.samplesBox.addEventListener("toggle", () => view.samplesBox.open && refreshSamples(view));
  view.logSearch = h("input", { type: "search", maxlength: 200, autocomplete: "off", oninput: () => ((view.logSeen = ""), clearTimeout(view.logTimer), (view.logTimer = setTimeout(() => refreshLog(view), 300))) });
  view.logCount = h("span", { role: "status" });
  const tools = h("div", { class: "ps-log-tools" }, h("label", {}, "Search ", view.logSearch), view.logCount, h("button", { type: "button", class: "ps-button", onclick: () => save(server.log_file, { run: id }) }, "Download"));
  view.logBox = h("details", { class: "ps-log" }, h("summary", {}, "Log"), tools, h("pre", { tabindex: "0", "aria-label": "End of the run's log" }, view.log));
  view.remote = part("ps-remote");
  view.phases = part("ps-phases", "ol");
  view.phasesBox = h("details", { class: "ps-phases-box", hidden: true }, h("summary", {}, "Phases"), view.phases);
  view.phasesBox.addEventListener("toggle", () => view.phasesBox.open && refreshPhases(view));
  view.root = h("div", {}, view.head, view.progress, view.next, view.remote, view.problem, view.ending, view.warnings, view.devices, view.report, view.verdict, view.tiles, view.board.controls, view.chartsBox, view.groupsBox, view.samplesBox, view.phasesBox, view.logBox, view.facts);
  view.logBox.addEventListener("toggle", () => view.logBox.open && refreshLog(view));
  return view;
};

// Each part is redrawn only when its content changes, so that a focused button keeps the focus.
// A redrawn part ignores clicks for a moment: a second click was meant for the previous button.
const redraw = (box, key, nodes) => {
  const text = JSON.stringify(key);
  if (box.dataset.seen === text) return false;
  if (box.dataset.seen !== undefined) shield(box);
  box.dataset.seen = text;
  box.replaceChildren(...nodes());
  return true;
};

const redrawQuietly = (box, key, nodes) => {
  const text = JSON.stringify(key);
  if (box.dataset.seen === text) return;
  box.dataset.seen = text;
  box.replaceChildren(...nodes());
};

const SHIELDED_MILLISECONDS = 700;
const shield = (box) => {
  box.style.pointerEvents = "none";
  setTimeout(() => (box.style.pointerEvents = ""), SHIELDED_MILLISECONDS);
};

// Keeps the size of removed elements, so that nothing else moves under the pointer.
const keepRoom = (box) => {
  box.style.minHeight = `${box.offsetHeight}px`;
  box.style.minWidth = `${box.offsetWidth}px`;
};

const drawHead = (view, run) => {
  // The action to confirm may no longer be possible; notes can be written in any state.
  if (view.headState !== run.state && view.confirming !== "edit") view.confirming = "";
  view.headState = run.state;
  view.run = run;
  const state = [run.state, run.saves, isAsked(view, run, "save"), isAsked(view, run, "")];
  redraw(view.title, [run.state, run.label, run.title, run.alerts, run.after, run.tags, run.notes], () => [
    h("h3", {}, run.title, " ", badge(run), ...alertBadges(run)),
    h("small", {}, run.id),
    ...awaited(run),
    ...tagsOf(run),
    ...(run.notes ? [h("p", { class: "ps-notes" }, run.notes)] : []),
  ]);
  if (!controls(view, run).length && view.control.childElementCount) keepRoom(view.control);
  redraw(view.control, state, () => controls(view, run));
  redraw(view.tools, [...state, run.model, run.extendable, run.checkpoint], () => tools(view, run));
  drawProgress(view, run);
  drawQuestion(view, run);
};

const drawProgress = (view, run) => {
  const shown = (isActive(run) || run.done) && bar(run);
  drawRemote(view, run);
  const facts = [run.remote ? run.remote.amount : run.progress, spent(run), `queued ${ago(run.created)}`].filter(Boolean).join(" · ");
  view.progress.replaceChildren(...(shown ? [shown] : []), h("small", {}, facts));
};

// A run on another machine: its phase, and what it has used so far.
const drawRemote = (view, run) => {
  const { remote } = run;
  if (!remote) return view.remote.replaceChildren();
  const counts = [remote.incarnation > 0 && `incarnation ${number(remote.incarnation)}`, remote.launch > 0 && `launch ${number(remote.launch)}`];
  const facts = [remote.place, ...counts, remote.spent].filter(Boolean).join(" · ");
  const error = studio.phaseError(remote);
  const phase = remote.phase && h("p", { class: "ps-phase" }, h("span", { class: `ps-badge ${PHASES[remote.phase] ?? "running"}` }, capital(remote.phase)), studio.phaseTime(remote));
  view.remote.replaceChildren(...(phase ? [phase] : []), ...(error ? [h("p", { class: "ps-warning" }, error)] : []), h("p", { class: "ps-note" }, facts));
  view.phasesBox.hidden = false;
};
const PHASES = { lost: "lost", preempted: "alert" };
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// The phases with their times, while the user has opened them.
const refreshPhases = async (view) => {
  const { phases = [] } = await studio.ask(server.run_phases, { run: view.id });
  const lines = phases.map(({ phase, incarnation, launch, since }) => {
    const counts = [incarnation > 0 && `incarnation ${incarnation}`, launch > 0 && `launch ${launch}`].filter(Boolean).join(", ");
    const when = new Date(since * 1000);
    return h("li", {}, h("time", { datetime: when.toISOString() }, when.toLocaleString("en", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false })), h("b", {}, capital(phase)), h("span", {}, counts));
  });
  redrawQuietly(view.phases, phases, () => lines);
};

const drawQuestion = (view, run) => {
  const box = view.question;
  if (view.confirming) box.style.minHeight = "";
  else if (box.childElementCount) keepRoom(box);
  const isNew = redraw(box, view.confirming, () => {
    if (view.confirming === "extend") return extension(view, run);
    if (view.confirming === "edit") return notesForm(view, run);
    if (view.confirming === "limits") return newLimits(view, run);
    return view.confirming ? confirmation(view, run) : [];
  });
  if (isNew && !view.confirming && !view.head.matches(":hover")) releaseLater(view);
};

// Runs when the pointer has left; delayed for touch, since a finger leaves at once and may return.
const release = (view) => !view.question.childElementCount && (view.question.style.minHeight = "");
const releaseLater = (view) => setTimeout(() => release(view), 2 * SHIELDED_MILLISECONDS);

// An action counts as requested until the run's state changes; if it is refused, for a few seconds.
const ASKED_MILLISECONDS = 8000;
const isAsked = (view, run, what) =>
  view.asked?.state === run.state && performance.now() < view.asked.until && (!what || view.asked.what === what);

const awaited = (run) =>
  run.state === "queued" && run.after.length
    ? [h("small", {}, " · waits for ", ...run.after.flatMap((id, index) => [index ? ", " : "", h("a", { href: "#runs", "data-go": `runs/${id}` }, titleOf(id))]))]
    : [];

const button = (label, kind, onclick, disabled = false) => h("button", { type: "button", class: `ps-button ${kind}`, onclick, disabled }, label);

const confirmFirst = (view, run, what) => (event) => {
  view.asking = event.currentTarget.textContent;
  view.confirming = what;
  drawHead(view, run);
  // The focus is on Cancel, so that a second Enter changes nothing. The scrolling is delayed until a
  // second click can't hit another element.
  (view.question.querySelector("input") ?? view.question.querySelector(".ps-leave"))?.focus({ preventScroll: true });
  setTimeout(() => view.question.scrollIntoView({ block: "nearest" }), SHIELDED_MILLISECONDS);
  view.question.querySelector("input")?.select();
};

// The buttons that stop an active run. No other buttons ever take their place.
const controls = (view, run) => {
  if (run.state === "queued") return [button("Remove from queue", "", () => act("abort"), isAsked(view, run, ""))];
  if (!isActive(run)) return [];
  const abort = button(run.saves ? "Stop without saving" : "Stop", "danger", confirmFirst(view, run, "abort"), isAsked(view, run, "abort"));
  const isStopping = run.state === "stopping" || isAsked(view, run, "");
  return run.saves ? [button("Stop and save", "", () => act("save"), isStopping), abort] : [abort];
};

const tools = (view, run) => {
  const clone = button("Clone", "", () => cloneRun(run));
  clone.title = "Copy these settings into the form";
  const notebook = run.remote?.notebook && button("Notebook", run.remote.incarnation ? "" : "primary", () => download(server.run_notebook, run));
  if (notebook) notebook.title = "Save the notebook that trains this run, to open it in Colab, Kaggle or Jupyter";
  const best = run.checkpoint && h("a", { class: "ps-button", href: "#playground", "data-go": `playground/${run.checkpoint}` }, "Try best checkpoint");
  if (!ENDED.includes(run.state)) return [clone, button("Edit", "", confirmFirst(view, run, "edit")), notebook, best].filter(Boolean);
  const edit = button("Edit", "", confirmFirst(view, run, "edit"));
  edit.title = "Change title, tags and notes";
  const report = button("Report", "", () => download(server.run_report, run));
  report.title = "Save this run as one HTML file";
  const open = run.model && run.state === "done" && h("a", { class: "ps-button primary", href: "#playground", "data-go": `playground/${run.model}` }, "Open in Playground");
  const publish = run.model && run.state === "done" && h("a", { class: "ps-button", href: "#publish", "data-go": `publish/${run.model}` }, "Publish");
  // A run at its limit would stop at once.
  const resume = run.remote?.at_limit ? confirmFirst(view, run, "limits") : () => act("resume");
  const again = run.state !== "done" && button(run.saves || run.keeps_parts ? "Resume" : "Run again", "", resume, isAsked(view, run, "resume"));
  const extend = run.extendable && button("Extend", "", confirmFirst(view, run, "extend"));
  const remove = button("Delete", "ps-last", confirmFirst(view, run, "delete"));
  return [clone, edit, report, again, extend, publish, open, best, remove].filter(Boolean);
};

// A question, and the labels of its buttons: confirm and cancel.
const CONFIRM = {
  abort: (run) => [
    run.keeps_parts ? "Stop this run? Resume goes on after its finished parts." : run.saves ? `Stop without saving? The steps since the last save are lost.${run.remote?.target ? " Its machine is deleted." : ""}` : "Stop this run? It saves nothing before its end, so its work is lost.",
    run.saves ? "Stop without saving" : "Stop",
    "Keep running",
  ],
  delete: () => ["Delete this run with its log, curves and checkpoints? Its artifact stays.", "Delete", "Cancel"],
};

// Downloads a text from the server as a file.
const download = (ask, run) => save(ask, { run: run.id });
const save = async (ask, question) => {
  const answer = await studio.ask(ask, question);
  if (answer.problem) return showProblem(view, answer.problem);
  const address = URL.createObjectURL(new Blob([answer.text], { type: "text/plain;charset=utf-8" }));
  h("a", { href: address, download: answer.name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
};

// The tab opens first, because its form doesn't exist before.
const cloneRun = (run) => {
  if (run.tab) studio.go(run.tab);
  setTimeout(() => trigger("clone", { run: run.id }), 150);
};

// Puts the largest batch size of a preflight into the form, whose tab opens first.
const useBatch = (batch_size) => {
  studio.go("train");
  setTimeout(() => trigger("use", { batch_size }), 150);
};

// Closes a question with its problem, and returns the focus to the button that asked it.
const leaveQuestion = (view) => {
  view.confirming = "";
  view.problem.replaceChildren();
  drawHead(view, view.run); // It may have gone on since the question.
  [...view.head.querySelectorAll("button")].find((one) => one.textContent === view.asking)?.focus();
};

// Extends an ended run to more steps than planned.
const extension = (view, run) => {
  const steps = h("input", { type: "text", inputmode: "numeric", value: String(run.total), "aria-label": "Total steps" });
  const close = () => leaveQuestion(view);
  const send = (event) => {
    event.preventDefault();
    act("extend", { steps: steps.value });
  };
  return [
    h("form", { class: "ps-extend", onsubmit: send },
      h("label", {}, "Total steps ", steps),
      h("button", { type: "submit", class: "ps-button primary" }, "Extend"),
      h("button", { type: "button", class: "ps-button ps-leave", onclick: close }, "Cancel")),
  ];
};

// Title, tags and notes of a run.
const notesForm = (view, run) => {
  const title = h("input", { type: "text", value: run.own_title, maxlength: 120, placeholder: run.title });
  const tags = h("input", { type: "text", value: run.tags.join(", "), maxlength: 800, placeholder: "baseline, long" });
  const notes = h("textarea", { rows: 3, maxlength: 10000 });
  notes.value = run.notes;
  const close = () => leaveQuestion(view);
  const send = async (event) => {
    event.preventDefault();
    const answer = await studio.ask(server.annotate, { run: run.id, title: title.value, tags: tags.value, notes: notes.value });
    view.problem.replaceChildren();
    if (answer.problem) return showProblem(view, answer.problem);
    close();
    return refresh();
  };
  return [
    h("form", { class: "ps-notes-form", onsubmit: send },
      h("label", {}, "Title", title), h("label", {}, "Tags, separated by commas", tags), h("label", {}, "Notes", notes),
      h("div", { class: "ps-actions" }, h("button", { type: "submit", class: "ps-button primary" }, "Save"),
        h("button", { type: "button", class: "ps-button ps-leave", onclick: close }, "Cancel"))),
  ];
};

// Resumes a run that has reached its limit, with larger ones.
const LIMITS = { max_hours: "Hours at most", max_cost: "Dollars at most" };
const newLimits = (view, run) => {
  const fields = Object.entries(run.remote.limits).map(([name, value]) => [name, h("input", { type: "text", inputmode: "decimal", value: String(value) })]);
  const close = () => leaveQuestion(view);
  const send = (event) => {
    event.preventDefault();
    act("resume", Object.fromEntries(fields.map(([name, field]) => [name, field.value])));
  };
  return [
    h("form", { class: "ps-extend", onsubmit: send },
      h("span", {}, `Its limit is reached (${run.remote.spent}). Resume with more:`),
      ...fields.map(([name, field]) => h("label", {}, `${LIMITS[name]} `, field)),
      h("button", { type: "submit", class: "ps-button primary" }, "Resume"),
      h("button", { type: "button", class: "ps-button ps-leave", onclick: close }, "Cancel")),
  ];
};

const confirmation = (view, run) => {
  const [question, answer, leave] = CONFIRM[view.confirming](run);
  const close = () => leaveQuestion(view);
  return [
    h("span", { role: "alert" }, question),
    h("button", { type: "button", class: "ps-button danger", onclick: () => act(view.confirming) }, answer),
    h("button", { type: "button", class: "ps-button ps-leave", onclick: close }, leave),
  ];
};

// One action at a time: a second click would repeat the action.
let acting = false;
const act = async (what, more = {}) => {
  if (acting) return;
  acting = true;
  const [id, mine] = [selected, view];
  if (what === "delete") deleted = id;
  try {
    const answer = await studio.ask(server.act_on_run, { run: id, action: what, ...more });
    mine.problem.replaceChildren();
    if (answer.problem) return showProblem(mine, answer.problem);
    if (mine.confirming !== "edit") mine.confirming = "";
    mine.asked = { what, state: mine.headState, until: performance.now() + ASKED_MILLISECONDS };
    if (what === "delete") forget(id);
    else if (rows.has(id)) drawHead(mine, rows.get(id).run);
    return refresh();
  } finally {
    acting = false;
  }
};

const showProblem = (view, problem) => view.problem.replaceChildren(studio.problemCard(problem));

// Builds what the server rendered; it allows only some tags and attributes.
const build = (node) => (typeof node === "string" ? node : h(node[0], node[1], ...node[2].map(build)));

const drawDetail = (view, run, known) => {
  view.problem.replaceChildren();
  view.ending.replaceChildren(...ending(view, run, known));
  view.next.replaceChildren(...outcome(view, run, known));
  view.figures = known.figures;
  view.samplesBox.hidden = !known.has_samples;
  view.warnings.replaceChildren(...warnings(known.warnings));
  view.devices.textContent = known.devices;
  const published = known.published.map((url) => h("p", { class: "ps-published" }, "Published at ", h("a", { href: url, target: "_blank", rel: "noreferrer" }, url.replace(/^https?:\/\//, ""))));
  view.report.replaceChildren(...published, ...known.results.map(build), ...(known.preflight ? [studio.preflightCard(known.preflight, { use: useBatch })] : []), ...(known.cleaning ? [studio.cleaningCard(known.cleaning)] : []));
  view.facts.replaceChildren(...facts(known));
  if (!run.saves && !ENDED.includes(run.state)) view.logBox.open = true;
};

// The one thing to do after a run.
const nextStep = (view, run, { verdict, remake }) => {
  if (!verdict) return [];
  const { action, label, go } = verdict;
  const acts = {
    resume: () => act("resume"),
    train_longer: run.extendable ? confirmFirst(view, run, "extend") : () => cloneRun(run),
    lower_rate: () => cloneRun(run),
    read_log: () => {
      view.logBox.open = true;
      view.logBox.scrollIntoView({ block: "start" });
    },
  };
  const next = remake ? button(remake.words, "primary", () => cloneRun({ id: remake.run, tab: remake.tab })) : go ? h("a", { class: "ps-button primary", href: `#${go.split("/")[0]}`, "data-go": go }, label) : acts[action] && button(label, "primary", acts[action]);
  return next ? [next] : [];
};

// What came of a run; the error of a failed one says it itself.
const outcome = (view, run, known) => {
  if (!known.verdict || known.error) return [];
  const { level, look, sentence } = known.verdict;
  return [h("p", {}, h("span", { class: `ps-badge ${look}` }, level), ` ${sentence}`), ...nextStep(view, run, known)];
};

// The end of a failed run: the error, the exit of its process, and its log tail.
const ending = (view, run, known) => {
  if (!known.error) return [];
  const when = run.ended && new Date(run.ended * 1000).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
  const facts = [run.label, known.ending, run.progress && `at ${run.progress}`, when].filter(Boolean).join(" · ");
  const log = known.log_end && [h("p", {}, h("b", {}, "Last lines of the log:")), h("pre", { tabindex: "0", "aria-label": "The end of the log" }, known.log_end)];
  return [studio.problemCard(known.error, h("p", { class: "ps-ending" }, facts), ...nextStep(view, run, known), ...(log || []))];
};

const SHOWN_WARNINGS = 3;

// The newest warning of each kind; repeated warnings are collapsed.
const warnings = (all) => {
  const isFirst = (one, index) => !one.kind || all.findIndex((other) => other.kind === one.kind) === index;
  const first = all.filter(isFirst).slice(0, SHOWN_WARNINGS);
  const rest = all.filter((one) => !first.includes(one));
  const earlier = rest.length && h("details", { class: "ps-earlier" }, h("summary", {}, `${rest.length} earlier`), ...rest.map(warningLine));
  return [...first.map(warningLine), ...(earlier ? [earlier] : [])];
};

const warningLine = ({ kind, message, time }) =>
  h("p", { class: kind ? "ps-warning alert" : "ps-warning" }, kind && h("b", {}, `${kind[0].toUpperCase()}${kind.slice(1)}. `), message, h("time", {}, ` ${ago(time)}`));

const facts = (known) => {
  const commands = known.commands.map(([label, text]) =>
    h("div", { class: "ps-code" }, h("span", {}, label), h("button", { type: "button", "data-copy": true }, "Copy"), h("pre", { tabindex: "0" }, h("code", {}, text))));
  const settings = h("dl", { class: "ps-settings" }, known.settings.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  const save = h("button", { type: "button", class: "ps-button", onclick: () => download(server.run_settings, rows.get(view.id).run) }, "Export as JSON");
  return [h("details", {}, h("summary", {}, "Settings"), settings, save), h("details", {}, h("summary", {}, "Show the command"), ...commands)];
};

const takePoints = (view, points) => {
  view.after = points.after;
  view.shape = points.shape;
  if (points.charts) {
    // All points have come again.
    arrangeCharts(view, points.charts);
    view.charts.forEach(({ chart }) => {
      chart.clear();
      chart.thinned.clear();
      Object.assign(chart, { isComplete: false, asked: "" });
    });
  }
  for (const [name, series] of Object.entries(points.series)) {
    if (series.length) view.latest[name] = series.at(-1)[1];
    view.charts.forEach(({ chart, names }) => names.includes(name) && chart.extend(name, series));
  }
  view.board.offer([points.frame]);
  view.charts.forEach(({ host, chart, names }) => {
    chart.frame = points.frame;
    points.thinned.filter((name) => names.includes(name)).forEach((name) => chart.thinned.add(name));
    const wasHidden = host.hidden;
    host.hidden = chart.isEmpty;
    if (!chart.isEmpty && (wasHidden || names.some((name) => points.series[name]))) chart.draw();
  });
  view.board.controls.hidden = view.charts.every(({ chart }) => chart.isEmpty);
  if (points.thinned.length) view.board.loadDetails();
  drawTiles(view);
};

const drawTiles = (view) => {
  // For a finished run, the figures of its model, which may come from an earlier step.
  const figures = { ...view.latest, ...view.figures };
  const { eval_loss: loss, frequency_baseline_loss: baseline, eval_perplexity: perplexity, eval_accuracy: accuracy } = figures;
  const isLast = loss === view.latest.eval_loss || !figures.best_step;
  const tiles = [
    [isLast ? "Validation loss" : `Validation loss, step ${number(figures.best_step)}`, loss, (value) => value.toFixed(3)],
    ["Perplexity", perplexity, compact],
    ["Accuracy", accuracy, studio.percent],
    ["Tokens per second", view.latest.tokens_per_second, compact],
    ["Waiting for data", view.latest.data_wait_percent, (value) => `${value.toFixed(1)} %`],
    ["Time in evaluations", view.latest.evaluation_percent, (value) => `${value.toFixed(1)} %`],
    ["Epoch", view.latest.epoch, (value) => value.toFixed(2)],
  ].filter(([, value]) => value !== undefined && value !== null);
  view.tiles.replaceChildren(...tiles.map(([name, value, format]) => h("div", {}, h("b", {}, format(value)), h("span", {}, name))));
  // The verdict of an ended run says it above.
  view.verdict.textContent = view.next.childElementCount || view.ending.childElementCount ? "" : verdict(loss, baseline);
};

const verdict = (loss, baseline) => {
  if (loss === undefined || baseline === undefined) return "";
  const gain = baseline - loss;
  const level = `the unigram baseline (${baseline.toFixed(2)}), the loss of predicting from token counts alone`;
  return gain > 0 ? `${gain.toFixed(2)} nats below ${level}.` : `Not below ${level} (the dashed line).`;
};

// The sample predictions of one validation; a menu chooses the step.
const refreshSamples = async (view) => {
  const answer = await studio.ask(server.run_events, { run: view.id, kind: "samples", seen: view.samplesSeen });
  if (!answer.events) return;
  const all = answer.events;
  view.samplesSeen = all.at(-1)?.time;
  if (!all.length) return redrawQuietly(view.samples, "none", () => [h("p", { class: "ps-note" }, "No prediction yet: they come with each validation.")]);
  const list = h("ol", { class: "ps-sample-list" });
  const show = (one) => list.replaceChildren(...one.samples.map((sample) => h("li", {}, ...studio.sampleParts(sample))));
  const chosen = h("select", { onchange: () => show(all[chosen.selectedIndex]) }, ...all.map((one, index) => h("option", { selected: index === all.length - 1 }, `step ${number(one.step)}`)));
  show(all.at(-1));
  view.samples.replaceChildren(h("label", { class: "ps-sample-step" }, "At ", chosen), list);
};

const findInLog = async (view, text) => {
  const answer = await studio.ask(server.search_log, { run: view.id, text });
  if (answer.problem || text !== view.logSearch.value.trim()) return;
  view.logCount.textContent = answer.count === 1 ? "1 line" : `${number(answer.count)} lines`;
  if (view.log.textContent !== answer.text) view.log.textContent = answer.text;
};

const refreshLog = async (view) => {
  const text = view.logSearch.value.trim();
  if (text) return findInLog(view, text);
  view.logCount.textContent = "";
  const answer = await studio.ask(server.run_log, { run: view.id, seen: view.logSeen });
  if (answer.text === undefined) return;
  const pre = view.log.parentElement;
  const atEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 40;
  view.logSeen = answer.seen;
  view.log.textContent = answer.text || "The log is empty.";
  if (atEnd) pre.scrollTop = pre.scrollHeight;
};

const refreshView = async (view) => {
  const run = rows.get(view.id)?.run;
  if (!run) return;
  drawHead(view, run);
  const state = `${run.state} ${run.warning} ${run.done > 0}`;
  if (view.stateSeen !== state) {
    const known = await studio.ask(server.run_detail, { run: view.id });
    if (known.problem) showProblem(view, known.problem);
    else drawDetail(view, run, known);
    view.stateSeen = state;
  }
  let points;
  do {
    points = await studio.ask(server.run_points, { run: view.id, after: view.after, shape: view.shape });
    takePoints(view, points);
  } while (points.more);
  if (view.logBox.open) await refreshLog(view);
  if (view.samplesBox.open) await refreshSamples(view);
  if (view.phasesBox.open) await refreshPhases(view);
};

// Reports a missing run once, in the view of the run that is shown instead.
const tellMissed = (id) => {
  if (id && id !== missed && id !== deleted && view) showProblem(view, { problem: `The run '${id}' was not found`, fix: "select another one; the artifact of a deleted run may still exist" });
  missed = id;
};

// The run in the address, which may be older than the listed ones.
const namedRun = () => {
  const { tab, argument } = studio.place();
  return tab === "runs" ? argument : "";
};

const wantedRun = () => {
  const named = namedRun();
  if (rows.has(named)) {
    byHand = true;
    return named;
  }
  if (byHand && rows.has(selected)) return selected;
  const started = followed.filter((id) => rows.has(id)).map((id) => rows.get(id).run);
  if (started.length) return (started.find((run) => !ENDED.includes(run.state)) ?? started.at(-1)).id;
  const sorted = [...rows.values()].map(({ run }) => run).sort((a, b) => b.position - a.position);
  const begun = sorted.filter((run) => run.state !== "queued");
  return (begun.find((run) => !ENDED.includes(run.state)) ?? begun[0] ?? sorted[0])?.id ?? "";
};

// An ended run is requested while it is selected: it may be resumed or deleted elsewhere.
const mayChange = (run) => !ENDED.includes(run.state) || run.id === selected;

const ask = async () => {
  studio.viewing = studio.isShown(element) ? selected : "";
  if (!studio.isShown(element)) return;
  const newest = Math.max(0, ...[...rows.values()].map(({ run }) => run.position));
  // The newest run is included: if it was deleted, the next run gets its position.
  const known = [...rows.values()].map(({ run }) => run).filter((run) => mayChange(run) || run.position === newest);
  // The server answers for a limited number of runs: waiting ones come last.
  known.sort((a, b) => (a.state === "queued") - (b.state === "queued"));
  const named = namedRun();
  noteStarted();
  const open = [...new Set([named, selected, ...followed, ...known.map((run) => run.id)])].filter(Boolean);
  const answer = await studio.ask(server.list_runs, { newest, open });
  if (answer.problem) throw new Error(answer.problem.problem);
  const gone = answer.gone.find((id) => id === selected || id === named) ?? "";
  answer.gone.forEach(forget);
  takeRows(answer.runs);
  drawQueue(answer);
  if (oldest === null) showOlder(answer);
  await findAgain();
  await showComparison();
  if (!comparing.hidden) return;
  const wanted = wantedRun();
  if (!wanted) detail.replaceChildren();
  else if (wanted !== selected || !view) select(wanted);
  showChosen();
  if (view && rows.has(view.id)) await refreshView(view);
  tellMissed(gone);
};

const comparison = new studio.Comparison(comparing, server, {
  save,
  leave: () => {
    history.pushState(null, "", here([]));
    showComparison();
    refresh();
  },
});
studio.scripts["machines.js"](element, trigger, props, server);
const refresh = studio.poll(element, 1000, ask);
window.addEventListener("popstate", () => studio.isShown(element) && showComparison());
window.addEventListener("ps-place", () => studio.place().tab === "runs" && setTimeout(refresh, 50));
