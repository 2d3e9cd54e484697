// The Home tab: a text becomes a model. What is shown follows the runs; only a text that was dropped
// and isn't trained on yet is remembered by the browser.
const { h, duration, ago } = studio;
const section = (name) => element.querySelector(`.ps-home-${name}`);
const main = section("main");
const begin = section("begin");
let state = null;
let plan = null; // the answer about a dropped text
let problem = null;
let busy = ""; // what is awaited
let startedAt = 0; // a start that isn't seen in the state yet
const memory = "studio-home-text";

const remember = (value) => {
  try {
    if (value) localStorage.setItem(memory, JSON.stringify(value));
    else localStorage.removeItem(memory);
  } catch {} // without local storage the text is forgotten with the page
};
const recall = () => {
  try {
    return JSON.parse(localStorage.getItem(memory));
  } catch {
    return null;
  }
};

// Redraws a part only if what it shows has changed, so that fields keep focus and text.
const redraw = (box, key, nodes) => {
  const text = JSON.stringify(key);
  if (box.dataset.seen === text) return;
  box.dataset.seen = text;
  box.replaceChildren(...nodes().flat(2).filter(Boolean));
};

const button = (words, kind, onclick, more = {}) => h("button", { type: "button", class: `ps-button ${kind}`, onclick, ...more }, words);
const link = (place, words, kind = "") => h("a", { class: kind && `ps-button ${kind}`, href: `#${place.split("/")[0]}`, "data-go": place }, words);

// Where texts are dropped.

const dropZone = (isFirst) => {
  const input = h("input", { type: "file", multiple: true, "aria-label": "Choose files of text", onchange: () => take([...input.files]) });
  const zone = h("label", { class: isFirst ? "ps-drop first" : "ps-drop" }, input,
    h("b", {}, "Drop your text here"),
    h("span", {}, "or click to choose: text files, tables (CSV, JSON, Parquet), or archives of them"));
  const over = (on) => (event) => {
    event.preventDefault();
    zone.classList.toggle("over", on);
  };
  zone.addEventListener("dragover", over(true));
  zone.addEventListener("dragleave", over(false));
  zone.addEventListener("drop", async (event) => {
    over(false)(event);
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    const files = [...event.dataTransfer.files]; // Empty after a pause.
    take(entries.some((one) => one.isDirectory) ? (await Promise.all(entries.map(filesOf))).flat() : files);
  });
  return zone;
};

const cards = () =>
  h("div", { class: "ps-home-cards" },
    h("button", { type: "button", class: "ps-home-card", onclick: () => start({ example: true }) }, h("b", {}, "Train the example"), h("span", {}, "About 3 minutes, on the documentation of installed packages.")),
    h("button", { type: "button", class: "ps-home-card", onclick: openHub }, h("b", {}, "Dataset from the Hub"), h("span", {}, "A corpus of the Hugging Face Hub, by its id.")));

// The form of the Data tab listens only after the tab has opened.
const openHub = () => {
  studio.go("corpus");
  const choose = (tries) => {
    if (studio.formOf("corpus").apply) studio.fill("corpus", { source: "hub" });
    else if (tries) setTimeout(() => choose(tries - 1), 50);
  };
  choose(200);
};

// The files below dropped folders, too.
const filesOf = async (entry) => {
  if (entry.name.startsWith(".")) return [];
  if (entry.isFile) return [await new Promise((done, fail) => entry.file(done, fail))];
  const reader = entry.createReader();
  const files = [];
  for (let some = [null]; some.length; ) {
    some = await new Promise((done, fail) => reader.readEntries(done, fail)); // A hundred at most.
    for (const one of some) files.push(...(await filesOf(one)));
  }
  return files;
};

const take = async (files) => {
  if (!files.length || busy) return;
  const names = files.length === 1 ? files[0].name : `${files.length} files`;
  problem = null;
  await wait(`Reading ${names}`, async () => {
    const uploads = [];
    for (const file of files) {
      const answer = await upload(file);
      uploads.push(answer.path);
    }
    await look({ uploads });
  });
  main.querySelector(".ps-home-go")?.focus();
};

const wait = async (words, work) => {
  busy = words;
  draw();
  try {
    await work();
  } catch (error) {
    problem = { problem: "The text could not be sent to the studio", expected: "a readable file, and a studio that answers", received: String(error.message ?? error), fix: "try again; larger files can be read from a folder, in Data" };
  }
  busy = "";
  draw();
};

const look = async (question) => {
  const answer = await studio.ask(server.look_at_text, question);
  if (answer.problem) {
    problem = answer.problem;
    plan = null;
    remember(null);
  } else {
    problem = null;
    plan = { ...answer, files: answer.files.length ? answer.files : plan?.files ?? question.files ?? [], changes: question.changes ?? {} };
    remember({ path: plan.path, files: plan.files, changes: plan.changes });
  }
};

const start = (question) =>
  wait("Starting", async () => {
    const answer = await studio.ask(server.start_training, question);
    if (answer.problem) return void (problem = answer.problem);
    plan = problem = null;
    remember(null);
    startedAt = performance.now();
    await refresh();
    return undefined;
  });

const forget = () => {
  plan = problem = null;
  remember(null);
  draw();
};

// What was found in a text, and what it is good for.

const planView = () => {
  const unread = plan.files.filter(([, , why]) => why);
  const change = (warning) => button(warning.words, "", () => wait("Planning", () => look({ path: plan.path, changes: { ...plan.changes, ...warning.changes } })));
  const settings = h("table", { class: "ps-table", "aria-label": "Settings" }, h("thead", {}, h("tr", {}, ...["Step", "Setting", "Value", "Why"].map((one) => h("th", { scope: "col" }, one)))),
    h("tbody", {}, ...plan.settings.map((row) => h("tr", {}, ...row.map((cell, index) => h("td", { "data-label": ["Step", "Setting", "Value", "Why"][index] }, cell))))));
  return [
    h("h2", {}, plan.title),
    h("p", { class: "ps-home-figures" }, ...plan.figures.map(([value, name]) => h("span", {}, h("b", {}, value), ` ${name}`))),
    unread.length > 0 && h("ul", { class: "ps-home-remarks" }, ...unread.map(([name, , why]) => h("li", {}, `${name} is left out: ${why}`))),
    plan.remarks.length > 0 && h("ul", { class: "ps-home-remarks" }, ...plan.remarks.map((one) => h("li", {}, one))),
    h("p", { class: "ps-home-good" }, plan.good),
    ...plan.warnings.map((warning) => h("p", { class: "ps-warning", role: "status" }, warning.sentence, " ", Object.keys(warning.changes).length > 0 && change(warning))),
    h("div", { class: "ps-actions" },
      button(state?.is_empty ? "Train my first model" : "Train a model", "primary ps-home-go", () => start({ path: plan.path, changes: plan.changes })),
      button("Choose another text", "", forget)),
    h("details", { class: "ps-home-why" }, h("summary", {}, "Settings, and why"), settings),
  ];
};

// The steps of the newest model.

const NAMES = { clean: "Clean", tokenizer: "Tokenizer", shards: "Shards", train: "Training" };
const progressOf = (step) => {
  const remote = step.remote?.phase ? [studio.phaseTime(step.remote), studio.phaseError(step.remote)] : [];
  const left = step.eta_seconds >= 1 && `${duration(step.eta_seconds)} left`;
  return [step.progress, ...remote, left].filter(Boolean).join(" · ") || "running";
};
const stepLine = (step) => {
  const share = step.state === "done" ? 1 : step.total ? Math.min(1, step.done / step.total) : step.state === "running" ? null : 0;
  const words = step.state === "queued" ? "waiting" : step.state === "running" ? progressOf(step) : step.label;
  return h("li", { class: step.state }, h("a", { href: "#runs", "data-go": `runs/${step.id}` }, NAMES[step.stage] ?? step.stage),
    h("span", { class: share === null ? "ps-bar running unknown" : `ps-bar ${step.state}`, "aria-hidden": "true" }, h("i", { style: share === null ? "" : `width:${(100 * share).toFixed(1)}%` })),
    h("small", {}, words));
};

let view = null; // chart and samples of one run
const makeView = (run) => {
  view?.board.close();
  view = { run, after: 0, shape: "", chart: null, seen: null, host: h("div", { class: "ps-home-chart" }), says: h("div", { class: "ps-home-says" }) };
  view.board = new studio.ChartBoard(async () => null);
  return view;
};

const takePoints = async (mine) => {
  let points;
  do {
    points = await studio.ask(server.run_points, { run: mine.run, after: mine.after, shape: mine.shape });
    if (points.problem || mine !== view) return;
    mine.after = points.after;
    mine.shape = points.shape;
    const loss = points.charts?.find(({ key }) => key.endsWith("/Loss"));
    if (loss && !mine.chart) {
      const { key, group, ...options } = loss;
      mine.chart = mine.board.add(mine.host, { ...options, tall: false });
    } else if (loss) {
      mine.chart.setLines(loss.lines);
      mine.chart.clear();
    }
    if (!mine.chart) return;
    mine.chart.frame = points.frame;
    const names = mine.chart.lines.map(({ name }) => name);
    Object.entries(points.series).forEach(([name, series]) => names.includes(name) && mine.chart.extend(name, series));
    if (!mine.chart.isEmpty) mine.chart.draw();
  } while (points.more);
};

const MOST_SAMPLES = 3;
const takeSamples = async (mine) => {
  const answer = await studio.ask(server.run_events, { run: mine.run, kind: "samples", seen: mine.seen });
  if (!answer.events?.length || mine !== view) return;
  const newest = answer.events.at(-1);
  mine.seen = newest.time;
  mine.says.replaceChildren(
    h("h3", {}, `What the model says, at step ${studio.number(newest.step)}`),
    h("ol", { class: "ps-sample-list" }, ...newest.samples.slice(0, MOST_SAMPLES).map((sample) => h("li", {}, ...studio.sampleParts(sample)))));
};

const newestView = (newest) => {
  const steps = h("ol", { class: "ps-home-steps" });
  const head = h("div", { class: "ps-home-head" });
  const tail = h("div", { class: "ps-home-tail" });
  const mine = makeView(newest.run);
  Object.assign(mine, { steps, head, tail });
  mine.later = h("p", { class: "ps-home-later" }, "Here come the loss curve, and what the model says while it learns.");
  return [head, steps, h("div", { class: "ps-home-live" }, mine.later, mine.host, mine.says), tail];
};

const fillNewest = (newest) => {
  const title = newest.about.name || "Your model";
  redraw(view.head, [newest.is_active, newest.verdict, title], () => (newest.is_active
    ? [h("h2", {}, `Training ${title}`), h("p", {}, "It goes on when this page is closed.")]
    : verdictView(newest, title)));
  const clock = newest.steps.some((step) => step.remote?.phase) && Math.round(Date.now() / 1000);
  redraw(view.steps, [newest.steps, clock], () => newest.steps.map(stepLine));
  view.steps.hidden = !newest.is_active && Boolean(newest.model);
  view.later.hidden = !newest.is_active;
  redraw(view.tail, [newest.is_active, newest.model, newest.play], () => (newest.model && newest.play ? tryView(newest) : []));
  view.root ??= view.host.parentElement;
  main.insertBefore(newest.model ? view.tail : view.root, newest.model ? view.root : view.tail);
};

const verdictBadge = ({ level, look }) => h("span", { class: `ps-badge ${look}` }, level);
const verdictView = (newest, title) => {
  const { sentence, action, label, go } = newest.verdict;
  const next = action !== "open_playground" && label && link(go || `runs/${newest.shows}`, label, "primary");
  return [
    h("h2", {}, title, " ", verdictBadge(newest.verdict)),
    h("p", {}, sentence, newest.error?.fix && ` What to do: ${newest.error.fix}.`),
    h("p", { class: "ps-actions" }, next, newest.model && link(`playground/${newest.model}`, "Open in Playground", " "), link(`runs/${newest.shows}`, "See the run", " ")),
  ];
};

const tryView = (newest) => {
  const { fills, texts, mask } = newest.play;
  const field = h("textarea", { rows: 2, maxlength: 2000, "aria-label": fills ? `A sentence with ${mask}` : "The beginning of a text" });
  field.value = texts[0] ?? "";
  const answer = h("div", { class: "ps-home-answer", "aria-live": "polite" });
  const ask = async (event) => {
    event?.preventDefault();
    answer.replaceChildren(h("p", { class: "ps-note" }, "The model is asked …"));
    const said = await studio.ask(server.try_model, { model: newest.model, text: field.value, mask }).catch((error) => ({ problem: { problem: "The studio doesn't answer", received: String(error) } }));
    if (said.problem) return answer.replaceChildren(studio.problemCard(said.problem));
    return answer.replaceChildren(...(said.masks ? said.masks.map(bars) : [h("p", { class: "ps-written" }, h("span", { class: "given" }, field.value), said.text)]));
  };
  field.addEventListener("keydown", (event) => event.key === "Enter" && !event.shiftKey && ask(event));
  const chips = texts.slice(1).map((text) => button(text, "", () => ((field.value = text), ask())));
  return [h("form", { class: "ps-home-try", onsubmit: ask },
    h("h3", {}, fills ? `Try it: the model fills in ${mask}` : "Try it: the model continues the text"),
    field, h("button", { type: "submit", class: "ps-button primary" }, fills ? "Fill in" : "Continue"), answer,
    chips.length > 0 && h("div", { class: "ps-chips" }, ...chips))];
};

const bars = (found) =>
  h("ol", { class: "ps-predictions" }, ...found.map(([word, score]) =>
    h("li", {}, h("span", { class: "word" }, word.trim() || "␣"), h("span", { class: "ps-bar", "aria-hidden": "true" }, h("i", { style: `width:${(100 * score).toFixed(1)}%` })), h("span", { class: "score" }, `${(100 * score).toFixed(1)} %`))));

// Other runs, and earlier models.

const othersView = ({ others }) => [
  h("h3", {}, "Also running"),
  h("ul", { class: "ps-home-list" }, ...others.map((run) => h("li", {}, h("a", { href: "#runs", "data-go": `runs/${run.id}` }, run.title), h("span", { class: `ps-badge ${run.state}` }, run.label), h("small", {}, run.progress)))),
];

const modelsView = ({ models }) => [
  h("h3", {}, "Earlier models"),
  h("ul", { class: "ps-home-list" }, ...models.map((one) =>
    h("li", {}, h("a", { href: "#runs", "data-go": `runs/${one.run}` }, one.name), verdictBadge(one.verdict), h("small", {}, [one.kind, ago(one.created)].filter(Boolean).join(" · ")), link(`playground/${one.model}`, "Try it")))),
];

const draw = () => {
  const isStarting = startedAt && performance.now() - startedAt < 8000 && !state?.newest?.is_active;
  const kind = busy || isStarting ? "busy" : plan ? "plan" : state?.newest ? `newest ${state.newest.run}` : state ? "first" : "loading";
  redraw(main, [kind, kind === "plan" && plan, kind !== "loading" && problem, busy], () => {
    const shown = problem ? [studio.problemCard(problem)] : [];
    if (kind === "loading") return [h("div", { class: "ps-home-skeleton", "aria-hidden": "true" })];
    if (kind === "busy") return [h("p", { class: "ps-home-busy", role: "status" }, h("span", { class: "ps-bar running unknown", "aria-hidden": "true" }, h("i", {})), `${busy || "Starting"} …`)];
    if (kind === "plan") return [...shown, ...planView()];
    if (kind === "first") return [h("h2", {}, "Train a language model on your own text"), ...shown, dropZone(true), cards()];
    return [...shown, ...newestView(state.newest)];
  });
  main.className = `ps-home-main ${kind.split(" ")[0]}`;
  if (kind.startsWith("newest")) fillNewest(state.newest);
  const again = state && state.newest && !plan && !busy;
  redraw(begin, [Boolean(again)], () => (again ? [h("h3", {}, "Train another model"), dropZone(false), cards()] : []));
  begin.hidden = !again;
  for (const [name, list, make] of [["others", state?.others, othersView], ["models", state?.models, modelsView]]) {
    section(name).hidden = !list?.length;
    if (list?.length) redraw(section(name), list, () => make(state));
  }
};

const isOpen = () => studio.isShown(element);
const ask = async () => {
  if (!isOpen()) return;
  const answer = await studio.ask(server.home_state);
  if (answer.problem) throw new Error(answer.problem.problem);
  state = answer;
  draw();
  const mine = view;
  if (!mine || !state.newest || mine.run !== state.newest.run || plan || busy) return;
  const training = state.newest.steps.at(-1).state;
  if (training !== "queued" && mine.over !== training) {
    await takePoints(mine);
    await takeSamples(mine);
    if (!state.newest.is_active) mine.over = training;
  }
};

if (window.studioFirst?.home && !window.studioFirst.home.problem) state = window.studioFirst.home;
const dropped = recall();
draw();
const refresh = studio.poll(element, 1500, ask);
if (dropped?.path) wait("Reading your text", () => look(dropped));
window.addEventListener("ps-place", () => studio.place().tab === "home" && setTimeout(refresh, 50));
