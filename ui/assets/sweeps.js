// The Sweeps tab: a sweep's trials as a table and as parallel coordinates.
const { h, compact, duration } = studio;
const choice = element.querySelector(".ps-sweep-choice select");
const board = element.querySelector(".ps-sweeps-board");
const detail = element.querySelector(".ps-sweep");
const form = element.querySelector(".ps-sweep-new form");
let selected = "";
let seen = "";
let shown = null;
let asked = ""; // the action that was asked for, until the state changes

const ACTIVE = ["running"];
const REASONS = { max_runs: "limit of runs", all_settings: "all settings tried", max_hours: "limit of hours", max_cost: "limit of dollars", trials_failed: "no trial succeeded" };
const stateOf = (one) => (one.reason ? `${one.state} · ${REASONS[one.reason] ?? one.reason}` : one.state).replaceAll("_", " ");
const METHODS = { grid: "Grid", random: "Random", qmc: "Quasi-random", tpe: "TPE", gp: "Gaussian process", cmaes: "CMA-ES" };
const GOALS = { minimize: "lowest", maximize: "highest" };
const PRUNERS = { median: "median pruning", halving: "successive halving" };
const text = (value) => (value === null || value === "" ? "–" : typeof value === "number" ? compact(value) : String(value));
const figure = (sweep, value) => (sweep.metric_is_share && value !== null ? studio.percent(value) : text(value));

// The axes of the plot: one per option, then the metric.
const axesOf = (sweep) => {
  const names = Object.keys(sweep.options);
  const axis = (name, title, read) => {
    const values = sweep.trials.map(read).filter((value) => value !== null && value !== undefined);
    const numeric = values.length > 0 && values.every((value) => typeof value === "number");
    const low = numeric ? Math.min(...values) : 0;
    const high = numeric ? Math.max(...values) : 0;
    const isLog = numeric && low > 0 && (sweep.options[name]?.log === true || high / low > 100);
    const labels = numeric ? [] : [...new Set(sweep.trials.map(read).map(text))].sort();
    return { name, title, read, numeric, low, high, isLog, labels };
  };
  return [
    ...names.map((name) => axis(name, sweep.titles[name] ?? name, (trial) => trial.settings[name])),
    axis("", sweep.metric_title, (trial) => trial.value),
  ];
};

// The place of a trial on an axis, from 0 (low) to 1 (high); null without a value.
const placeOn = (axis, trial) => {
  const value = axis.read(trial);
  if (!axis.numeric) {
    if (axis.name === "") return null;
    const place = axis.labels.indexOf(text(value));
    return axis.labels.length < 2 ? 0.5 : place / (axis.labels.length - 1);
  }
  if (typeof value !== "number") return null;
  if (axis.high === axis.low) return 0.5;
  const scale = axis.isLog ? Math.log : (one) => one;
  return (scale(value) - scale(axis.low)) / (scale(axis.high) - scale(axis.low));
};

const SVG = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;
const s = (tag, attributes, ...children) => {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

const HEIGHT = 250;
const TOP = 34;
const BOTTOM = 14;
const LEAST_GAP = 110;
const MARGIN = 56;
const LETTER = 6.5; // The width of one in a title.

const drawPlot = (sweep, width) => {
  const axes = axesOf(sweep);
  const wide = Math.max(width, 2 * MARGIN + LEAST_GAP * (axes.length - 1));
  const gap = (wide - 2 * MARGIN) / Math.max(axes.length - 1, 1);
  const x = (index) => MARGIN + index * gap;
  const y = (place) => TOP + (1 - place) * (HEIGHT - TOP - BOTTOM);
  const lineOf = (trial) => {
    const places = axes.map((axis) => placeOn(axis, trial));
    const points = places.map((place, index) => (place === null ? null : `${x(index).toFixed(1)},${y(place).toFixed(1)}`));
    const kind = trial.number === sweep.best ? "best" : trial.state;
    return s("polyline", { class: `ps-line ${kind}`, "data-trial": trial.number, points: points.filter(Boolean).join(" ") });
  };
  const fitting = (title, index) => {
    const isOuter = index === 0 || index === axes.length - 1;
    const most = Math.floor((isOuter ? Math.min(gap, 2 * MARGIN) : gap) / LETTER);
    return title.length > most ? `${title.slice(0, most - 1)}…` : title;
  };
  // The best one is drawn last, on top.
  const trials = [...sweep.trials].sort((one, other) => (one.number === sweep.best) - (other.number === sweep.best));
  const axisOf = (axis, index) => {
    const write = axis.name ? compact : (value) => figure(sweep, value);
    const tick = (place, label) => s("text", { x: x(index) + 6, y: y(place) + 4, class: "tick" }, label);
    const ticks = axis.numeric
      ? [tick(0, write(axis.low)), axis.high > axis.low && tick(1, write(axis.high))]
      : axis.labels.slice(0, 12).map((label, place) => tick(axis.labels.length < 2 ? 0.5 : place / (axis.labels.length - 1), label.slice(0, 14)));
    return s("g", {},
      s("line", { x1: x(index), x2: x(index), y1: y(0), y2: y(1), class: "axis" }),
      s("text", { x: x(index), y: 14, class: "title" }, fitting(axis.title, index)),
      ...ticks.filter(Boolean));
  };
  const label = `Parallel coordinates of ${sweep.trials.length} trials; the table below has the same values`;
  return s("svg", { role: "img", "aria-label": label, width: wide, height: HEIGHT, viewBox: `0 0 ${wide} ${HEIGHT}` },
    ...trials.map(lineOf), ...axes.map(axisOf));
};

const mark = (number) => {
  detail.querySelectorAll(".ps-line").forEach((line) => line.classList.toggle("marked", line.dataset.trial === String(number)));
  detail.querySelector(".ps-plot")?.classList.toggle("marking", number !== null);
};

const order = (sweep) => {
  const sign = sweep.direction === "minimize" ? 1 : -1;
  const rank = (trial) => (trial.state === "done" ? 0 : 1);
  const value = (trial) => (trial.value === null ? Infinity : sign * trial.value);
  return [...sweep.trials].sort((one, other) => rank(one) - rank(other) || value(one) - value(other) || one.number - other.number);
};

const drawTable = (sweep) => {
  const names = Object.keys(sweep.options);
  const titles = names.map((name) => sweep.titles[name] ?? name);
  const cell = (label, ...content) => h("td", { "data-label": label }, h("span", {}, ...content));
  const row = (trial) =>
    h("tr", { class: trial.number === sweep.best ? "best" : false, onmouseenter: () => mark(trial.number), onmouseleave: () => mark(null), onfocusin: () => mark(trial.number), onfocusout: () => mark(null) },
      h("td", { class: "name" }, h("b", {}, `Trial ${trial.number}`), trial.number === sweep.best && h("small", {}, "the best")),
      cell("State", h("span", { class: `ps-badge ${trial.state}` }, stateOf(trial)), trial.error && h("small", { class: "ps-sweep-why" }, trial.error.problem)),
      cell(sweep.metric_title, figure(sweep, trial.value)),
      ...names.map((name, index) => cell(titles[index], text(trial.settings[name]))),
      cell("Run", h("a", { href: "#runs", "data-go": `runs/${trial.run}` }, trial.name ?? trial.run)));
  return h("div", { class: "ps-scroll", tabindex: "0", role: "group", "aria-label": "Trials" },
    h("table", { class: "ps-table ps-sweep-table", "aria-label": "Trials, the best first" },
      h("thead", {}, h("tr", {}, ["Trial", "State", sweep.metric_title, ...titles, "Run"].map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, order(sweep).map(row))));
};

const facts = (sweep) => {
  const { budget, spent } = sweep;
  const done = sweep.counts.done ?? 0;
  const of = (value, most) => (most === null ? value : `${value} of ${most}`);
  const best = sweep.trials.find((trial) => trial.number === sweep.best);
  return [
    [best ? figure(sweep, best.value) : "–", `best ${sweep.metric_title.toLowerCase()}`],
    [of(String(spent.runs), budget.max_runs), "trials"],
    [String(done), "finished"],
    [String(sweep.counts.pruned ?? 0), "pruned"],
    [budget.max_hours === null ? duration(spent.hours * 3600) : `${compact(spent.hours)} of ${compact(budget.max_hours)} h`, "of computation"],
    ...(spent.cost === null && budget.max_cost === null ? [] : [[of(`$${(spent.cost ?? 0).toFixed(2)}`, budget.max_cost === null ? null : `$${budget.max_cost}`), "spent"]]),
  ];
};

const act = async (action, more = {}) => {
  asked = action;
  draw();
  const answer = await studio.ask(server.act_on_sweep, { sweep: selected, action, ...more });
  if (answer.problem) {
    asked = "";
    draw();
    detail.prepend(studio.problemCard(answer.problem));
  }
  await refresh();
};

// The tab opens first, because its form doesn't exist before.
const takeBest = () => {
  const { best, tab } = shown;
  const sweep = selected;
  if (tab) studio.go(tab);
  setTimeout(() => trigger("take", { sweep, trial: best }), 150);
};

// The form that resumes a sweep, with its limits. It is kept while the sweep is drawn anew.
const LIMITS = [
  { name: "max_runs", label: "Runs at most", min: 1, step: 1, required: true },
  { name: "max_hours", label: "Hours at most", step: "any" },
  { name: "max_cost", label: "Dollars at most", step: "any", needs: "target" },
  { name: "parallel", label: "Runs at a time", min: 1, step: 1, placeholder: "automatic" },
];
const RESUMABLE = ["stopped", "interrupted", "failed"];
const LIMITED = ["max_runs", "max_hours", "max_cost"];
const canResume = (sweep) => RESUMABLE.includes(sweep.state) || (sweep.state === "done" && LIMITED.includes(sweep.reason));

const makeResume = (sweep) => {
  const limits = LIMITS.filter(({ needs }) => !needs || sweep[needs]);
  const fields = limits.map(({ name, label, needs, ...rest }) => {
    const input = h("input", { type: "number", name, min: 0, inputmode: "decimal", value: sweep.budget[name] ?? sweep[name] ?? "", placeholder: "no limit", ...rest });
    return h("label", {}, label, input);
  });
  const send = (event) => {
    event.preventDefault();
    const values = Object.fromEntries(limits.map(({ name }) => [name, form.elements[name].value]));
    act("resume", { limits: Object.fromEntries(Object.entries(values).map(([name, value]) => [name, value === "" ? null : Number(value)])) });
  };
  const form = h("form", { class: "ps-sweep-limits", "aria-label": "Resume with these limits", onsubmit: send }, ...fields, h("button", { class: "ps-button" }, "Resume"));
  return form;
};

let resume = { key: "", form: null };
const resumeForm = (sweep) => {
  const key = JSON.stringify([sweep.sweep, sweep.state, sweep.reason, sweep.budget, sweep.parallel]);
  if (resume.key !== key) resume = { key, form: makeResume(sweep) };
  resume.form.querySelector("button").disabled = asked !== "";
  return resume.form;
};

const actions = (sweep) => {
  const button = (label, kind, action, disabled = false) => h("button", { type: "button", class: `ps-button ${kind}`, onclick: action, disabled }, label);
  const isBusy = asked !== "";
  return h("div", { class: "ps-actions" },
    sweep.best !== null && sweep.tab && button(`Use the best settings in ${sweep.stage_title}`, "primary", takeBest),
    ACTIVE.includes(sweep.state) && button(asked === "stop" ? "Stopping…" : "Stop and save", "", () => act("stop"), isBusy));
};

const draw = () => {
  const sweep = shown;
  const active = detail.contains(document.activeElement) ? document.activeElement : null;
  const focused = active?.textContent ?? "";
  detail.replaceChildren(
    h("div", { class: "ps-sweep-head" }, h("h3", {}, sweep.sweep, " ", h("span", { class: `ps-badge ${sweep.state}` }, stateOf(sweep))),
      h("p", { class: "ps-note" }, [sweep.stage_title, METHODS[sweep.method], `${GOALS[sweep.direction]} ${sweep.metric_title.toLowerCase()}`, PRUNERS[sweep.pruner], sweep.target].filter(Boolean).join(" · "))),
    ...(sweep.state === "interrupted" ? [h("p", { class: "ps-warning" }, "The process that drives this sweep has died. Its runs go on; resume the sweep to continue.")] : []),
    ...(sweep.error ? [studio.problemCard(sweep.error)] : []),
    h("div", { class: "ps-tiles" }, facts(sweep).map(([value, name]) => h("div", {}, h("b", {}, value), h("span", {}, name)))),
    actions(sweep), ...(canResume(sweep) ? [resumeForm(sweep)] : []));
  if (sweep.trials.length) {
    const plot = h("div", { class: "ps-plot", tabindex: "0", role: "group", "aria-label": "Plot" });
    detail.append(plot, drawTable(sweep));
    plot.append(drawPlot(sweep, plot.clientWidth || 600));
  }
  if (active?.isConnected) return active.focus();
  if (focused) [...detail.querySelectorAll("button, a")].find((one) => one.textContent === focused)?.focus();
};

const select = (name) => {
  if (name === selected) return;
  selected = name;
  seen = "";
  asked = "";
  shown = null;
  detail.replaceChildren();
};

const drawChoice = (sweeps) => {
  const wanted = JSON.stringify(sweeps);
  if (choice.dataset.drawn === wanted) return;
  choice.dataset.drawn = wanted;
  choice.replaceChildren(...sweeps.map((one) => h("option", { value: one.sweep, selected: one.sweep === selected }, `${one.sweep} (${one.state})`)));
};

const ask = async () => {
  if (!studio.isShown(element)) return;
  const { sweeps, problem } = await studio.ask(server.list_all_sweeps);
  if (problem) throw new Error(problem.problem);
  element.querySelector(".ps-sweeps-empty").hidden = sweeps.length > 0;
  board.hidden = sweeps.length === 0;
  // Earlier, it would move when the sweep is drawn.
  const reveal = () => (form.parentElement.hidden = false);
  if (!sweeps.length) return reveal();
  const { tab, argument } = studio.place();
  const names = sweeps.map((one) => one.sweep);
  const wanted = tab === "sweeps" && names.includes(argument) ? argument : names.includes(selected) ? selected : names[0];
  select(wanted);
  drawChoice(sweeps);
  const answer = await studio.ask(server.show_sweep, { sweep: selected, seen });
  reveal();
  if (answer.problem) return detail.replaceChildren(studio.problemCard(answer.problem));
  if (!answer.shown || answer.shown.sweep !== selected) return;
  if (shown && shown.state !== answer.shown.state) asked = "";
  seen = answer.seen;
  shown = answer.shown;
  draw();
};

choice.addEventListener("change", () => {
  studio.go("sweeps", choice.value);
  select(choice.value);
  refresh();
});

let width = 0;
new ResizeObserver(() => {
  const now = element.clientWidth;
  if (shown && now && Math.abs(now - width) > 20) draw();
  width = now || width;
}).observe(element);

const refresh = studio.poll(element, 2000, ask);
window.addEventListener("ps-place", () => studio.place().tab === "sweeps" && setTimeout(refresh, 50));
