// A new sweep: a "vary" switch beside each setting of the Train form, and the same sweep as text.
// Both are views of one state; the text is what starts.
const fields = new Map(props.fields.map((one) => [one.name, one]));
const state = { vary: {}, settings: Object.fromEntries(props.settings.map(({ name, value }) => [name, value])), base: null };
state.settings.max_runs = "12";
let composed = 0; // number of the last question
let problem = null;
let onlyText = false;

const current = (name) => String(studio.valueOf(props.form, name) ?? "");
const input = (label, value, change, more = {}) => h("label", {}, label, h("input", { type: "text", autocomplete: "off", value, oninput: (event) => change(event.target.value), ...more }));

// Parts that stay; the rows and the answer are drawn anew.
const search = h("input", { type: "search", placeholder: "Search settings", "aria-label": "Search settings to vary", oninput: () => drawRows() });
const rowsBox = h("div", { class: "ps-vary-rows" });
const baseBox = h("p", { class: "ps-note" });
const settingsBox = h("div", { class: "ps-vary-settings" });
const answerBox = h("p", { class: "ps-vary-answer", role: "status" });
const start = h("button", { class: "ps-button primary" }, "Start the sweep");
const refusal = h("div", { class: "ps-sweep-problem", "aria-live": "polite" });
const area = h("textarea", { rows: 14, spellcheck: "false", autocomplete: "off", maxlength: props.longest, oninput: () => readSoon() });
const builder = h("div", { class: "ps-vary" },
  baseBox,
  h("h4", {}, "Settings to vary"), search, rowsBox,
  h("h4", {}, "The sweep"), settingsBox);
form.replaceChildren(builder,
  h("details", { class: "ps-vary-text" }, h("summary", {}, "Edit as text"),
    h("label", {}, "Settings in TOML", area),
    h("p", { class: "ps-note" }, "The table base holds what all trials share, and options what varies: values = […], or min and max, with log = true for a logarithmic range.")),
  refusal, h("div", { class: "ps-vary-start" }, start, answerBox));

// The rows: settings that vary, and those of the basic view, or all that the search finds.

const shownFields = () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (one) => words.every((word) => `${one.name} ${one.name.replaceAll("_", " ")} ${one.title} ${one.help} ${one.group}`.toLowerCase().includes(word));
  return props.fields.filter((one) => one.name in state.vary || (words.length ? fits(one) : one.basic));
};

const setRow = (name, change, redraw = false) => {
  Object.assign(state.vary[name], change);
  if (redraw) drawRows();
  composeSoon();
};

// Proposes values around the present one.
const propose = (field) => {
  if (field.choices.length) return { kind: "list", values: [current(field.name)].filter(Boolean) };
  const value = Number(current(field.name));
  if (!current(field.name) || Number.isNaN(value) || value <= 0) return { kind: "list", values: current(field.name) };
  const around = [value / 2, value, value * 2].map((one) => (Number.isInteger(value) ? Math.max(1, Math.round(one)) : Number(one.toPrecision(3))));
  return { kind: "list", values: [...new Set(around)].join(", ") };
};

const editor = (field, row) => {
  const { name } = field;
  if (field.choices.length) {
    const flip = (value) => setRow(name, { values: row.values.includes(value) ? row.values.filter((one) => one !== value) : [...row.values, value] });
    return h("div", { class: "ps-vary-editor", role: "group", "aria-label": `Values of ${field.title}` },
      field.choices.map(([value, label]) => h("label", { class: "ps-vary-choice" }, h("input", { type: "checkbox", checked: row.values.includes(value), onchange: () => flip(value) }), label)));
  }
  const kinds = h("select", { "aria-label": `How ${field.title} varies`, onchange: (event) => setRow(name, { kind: event.target.value }, true) },
    [["list", "List"], ["range", "Range"]].map(([value, label]) => h("option", { value, selected: row.kind === value }, label)));
  const listed = Array.isArray(row.values) ? row.values.join(", ") : row.values ?? "";
  const parts = row.kind === "list"
    ? [input(`Values of ${field.title}`, listed, (values) => setRow(name, { values }), { placeholder: "0.001, 0.01" })]
    : [
        input("From", row.min ?? "", (min) => setRow(name, { min }), { "aria-label": `${field.title} from`, size: 8 }),
        input("To", row.max ?? "", (max) => setRow(name, { max }), { "aria-label": `${field.title} to`, size: 8 }),
        state.settings.method === "grid" && input("Values", row.count ?? "", (count) => setRow(name, { count }), { "aria-label": `Number of values of ${field.title}`, size: 4 }),
        h("label", { class: "ps-vary-choice" }, h("input", { type: "checkbox", checked: Boolean(row.log), onchange: (event) => setRow(name, { log: event.target.checked }) }), "Logarithmic"),
      ];
  return h("div", { class: "ps-vary-editor" }, kinds, ...parts);
};

const drawRow = (field) => {
  const row = state.vary[field.name];
  const flip = () => {
    if (row) delete state.vary[field.name];
    else state.vary[field.name] = propose(field);
    drawRows();
    composeSoon();
    rowsBox.querySelector(`[data-vary="${field.name}"] .ps-switch`)?.focus();
  };
  const now = field.choices.find(([value]) => value === current(field.name))?.[1] ?? current(field.name);
  const wrong = problem?.option === field.name;
  return h("div", { class: `ps-vary-row${row ? " on" : ""}${wrong ? " wrong" : ""}`, "data-vary": field.name },
    h("span", { class: "ps-vary-name" }, h("b", {}, field.title), !row && h("small", {}, now || "automatic")),
    h("button", { type: "button", class: "ps-switch", role: "switch", "aria-checked": String(Boolean(row)), "aria-label": `Vary ${field.title}`, onclick: flip }, "Vary"),
    row && editor(field, row),
    h("p", { class: "ps-problem", role: "alert", hidden: !wrong }, wrong ? problem.words : ""));
};

const drawRows = () => {
  const found = shownFields();
  rowsBox.replaceChildren(...(found.length ? found.map(drawRow) : [h("p", { class: "ps-note" }, "No setting matches.")]));
};

const drawSettings = () => {
  settingsBox.replaceChildren(...props.settings.map(({ name, title, help, choices }) => {
    const change = (value) => {
      state.settings[name] = value;
      if (name === "method") drawRows();
      composeSoon();
    };
    const control = choices.length
      ? h("select", { onchange: (event) => change(event.target.value) }, choices.map(([value, label]) => h("option", { value, selected: state.settings[name] === value }, label)))
      : h("input", { type: "text", autocomplete: "off", value: state.settings[name] ?? "", oninput: (event) => change(event.target.value) });
    return h("label", { "data-setting": name, title: help }, title, control, h("small", { class: "ps-problem", hidden: true }));
  }));
};

const drawAnswer = (answer) => {
  problem = answer.problem ?? null;
  for (const row of rowsBox.querySelectorAll(".ps-vary-row")) {
    const wrong = problem?.option === row.dataset.vary;
    row.classList.toggle("wrong", wrong);
    const place = row.querySelector(".ps-problem");
    place.hidden = !wrong;
    place.textContent = wrong ? problem.words : "";
  }
  for (const label of settingsBox.querySelectorAll("label")) {
    const wrong = problem?.setting === label.dataset.setting;
    const place = label.querySelector(".ps-problem");
    place.hidden = !wrong;
    place.textContent = wrong ? problem.words : "";
  }
  const isPlaced = rowsBox.querySelector(".wrong") || (problem?.setting && settingsBox.querySelector(`[data-setting="${problem.setting}"]`));
  const isEmpty = !Object.keys(state.vary).length && !onlyText;
  refusal.replaceChildren(...(problem && !isPlaced && !isEmpty ? [h("p", { class: "ps-warning" }, problem.words)] : []));
  answerBox.textContent = isEmpty ? "Choose what to vary." : problem ? "" : answer.words ?? "";
  start.textContent = problem || isEmpty ? "Fix 1 setting" : answer.trials ? `Start ${answer.trials} ${answer.trials === 1 ? "trial" : "trials"}` : "Start the sweep";
  start.classList.toggle("primary", !problem && !isEmpty);
  baseBox.replaceChildren(...(state.base
    ? [`All trials share the ${Object.keys(state.base).length} settings of the text. `, h("button", { type: "button", class: "ps-link", onclick: () => { state.base = null; compose(); } }, "Use those of the Train form")]
    : ["All other settings are those of the Train form. ", h("a", { href: "#train", "data-go": "train" }, "Change")]));
};

// Both views in step.

const later = (milliseconds, work) => {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, milliseconds);
  };
};
const isText = () => document.activeElement === area;
const compose = async () => {
  const number = (composed += 1);
  const question = { typed: studio.formOf(props.form).values, vary: state.vary, settings: state.settings, base: state.base };
  const answer = await studio.ask(server.compose_sweep, question).catch(() => null);
  if (!answer || number !== composed) return;
  if (answer.problem) answer.problem = { words: answer.problem.problem, ...answer.problem };
  if (answer.text && !isText()) area.value = answer.text;
  drawAnswer(answer);
};
const composeSoon = later(300, compose);
const readSoon = later(500, async () => {
  const number = (composed += 1);
  const answer = await studio.ask(server.read_sweep, { text: area.value }).catch(() => null);
  if (!answer || number !== composed) return;
  if (answer.problem) return drawAnswer({ problem: { words: answer.problem.problem, ...answer.problem } });
  onlyText = Boolean(answer.only_text);
  builder.hidden = onlyText;
  if (onlyText) return drawAnswer({});
  Object.assign(state, { vary: answer.vary, base: answer.base });
  state.settings = { ...state.settings, ...answer.settings };
  drawRows();
  drawSettings();
  await compose();
});

studio.heard.add((id) => id === props.form && form.parentElement.open && (drawRows(), composeSoon()));
form.parentElement.addEventListener("toggle", () => form.parentElement.open && (drawRows(), compose()));

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (start.disabled) return;
  if (!area.value.trim() || (!onlyText && (problem || !Object.keys(state.vary).length))) {
    if (problem?.field) return studio.reveal(props.form, problem.field, props.form);
    const place = rowsBox.querySelector(".wrong :is(input, select)") ?? settingsBox.querySelector(".ps-problem:not([hidden])")?.previousElementSibling ?? (problem && area.value ? refusal : search);
    place.scrollIntoView({ block: "center" });
    return place.focus();
  }
  start.disabled = true;
  try {
    const answer = await studio.ask(server.start_new_sweep, { text: area.value });
    refusal.replaceChildren(...(answer.problem ? [studio.problemCard(answer.problem)] : []));
    if (!answer.problem) {
      form.parentElement.open = false;
      studio.go("sweeps", answer.sweep);
      await refresh();
    }
  } finally {
    start.disabled = false;
  }
});
drawSettings();
drawAnswer({});
