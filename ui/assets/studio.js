// Shared code of the web app's scripts.
// Untrusted text only becomes text nodes: `h` builds elements, nothing sets innerHTML.
window.studio = (() => {
  const h = (tag, attributes, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (value === false || value === null || value === undefined) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  };

  // Calls `ask` repeatedly while the element exists and the document is visible.
  // `ask` throws if the server doesn't answer or answers with an error; it is then called less often.
  const poll = (element, milliseconds, ask) => {
    let failures = 0;
    let away = false;
    let timer = 0;
    let asking = false;
    const round = async () => {
      clearTimeout(timer);
      if (!element.isConnected) return document.removeEventListener("visibilitychange", round);
      if (!document.hidden && !asking) {
        asking = true;
        try {
          await ask();
          failures = 0;
        } catch (error) {
          failures += 1;
          if (!(error instanceof Unreachable)) console.error(error);
          away = error instanceof Unreachable && (await isAway());
        }
        asking = false;
        tell(element, failures > 1, away);
      }
      clearTimeout(timer);
      timer = setTimeout(round, milliseconds * Math.min(8, 2 ** failures));
    };
    document.addEventListener("visibilitychange", round);
    round();
    return round;
  };
  // Shows that the server is unreachable or answers with errors, as long as a poll fails.
  const failing = new Map(); // the elements of failing polls -> true if the server is unreachable
  const trouble = h("p", { class: "ps-warning", role: "status" }, "The studio has a problem; its log says more.");
  const tell = (element, fails, away) => {
    if (fails) failing.set(element, away);
    else failing.delete(element);
    const reasons = [...failing].filter(([one]) => one.isConnected).map(([, reason]) => reason);
    const offline = reasons.includes(true);
    document.body.classList.toggle("ps-offline", offline);
    if (!reasons.length || offline) trouble.remove();
    else if (!trouble.isConnected) document.querySelector(".ps-strip")?.before(trouble);
  };
  // Calls a server function. Gradio returns nothing if the server is unreachable.
  class Unreachable extends Error {}
  let answered = false;
  const ask = async (answerer, question = {}) => {
    let answer;
    try {
      answer = await answerer(question);
    } catch (error) {
      throw new Unreachable(String(error));
    }
    if (answer === undefined || answer === null) throw new Unreachable("no answer");
    answered = true;
    failing.forEach((away, one) => away && failing.delete(one));
    return answer;
  };
  // Checks if the app is unreachable, directly or behind a proxy.
  // A restarted app has no sessions and refuses every request, so a reload opens the sign-in. Without
  // any earlier answer there is no reload, or it would repeat for ever.
  const isAway = async () => {
    const wait = AbortSignal.timeout(5000);
    const page = await fetch(location.href, { method: "HEAD", cache: "no-store", signal: wait }).catch(() => null);
    if (answered && page?.status === 401) location.reload();
    return !page || [502, 503, 504].includes(page.status);
  };

  const isShown = (element) => element.offsetParent !== null;

  const number = (value, digits = 0) =>
    value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

  // Formats with three or four significant digits: 0.0001, 6.918, 12.4k.
  const compact = (value) => {
    const size = Math.abs(value);
    if (value === 0) return "0";
    if (size < 0.001) return value.toExponential(1).replace("e-0", "e-").replace(".0e", "e");
    if (size < 1) return String(Number(value.toPrecision(3)));
    if (size < 1000) return String(Number(value.toPrecision(4)));
    const [unit, divisor] = size < 1e6 ? ["k", 1e3] : size < 1e9 ? ["M", 1e6] : ["G", 1e9];
    return `${Number((value / divisor).toPrecision(3))}${unit}`;
  };

  // Formats a fraction: 25.0 %.
  const percent = (share) => `${number(100 * share, 1)} %`;

  const duration = (seconds) => {
    if (seconds === null || seconds === undefined) return "";
    const whole = Math.max(0, Math.round(seconds));
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    const hours = Math.floor(whole / 3600);
    if (hours < 48) return `${hours} h ${Math.floor((whole % 3600) / 60)} min`;
    return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  };
  const rounded = (seconds) => {
    if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} min`;
    return `${Math.round(seconds / 3600)} h`;
  };

  const ago = (seconds) => {
    const passed = Date.now() / 1000 - seconds;
    if (passed < 45) return "just now";
    if (passed < 86400) return `${rounded(passed)} ago`;
    return new Date(seconds * 1000).toLocaleDateString("en", { day: "numeric", month: "short", year: "numeric" });
  };

  // The runs of a comparison, which has the address ?compare=<id>,<id>#runs.
  const compared = () => (new URLSearchParams(location.search).get("compare") ?? "").split(",").map((id) => id.trim()).filter(Boolean);
  // Tabs and runs have addresses that survive a reload: #runs, #runs/<id>.
  const place = () => {
    let hash = location.hash.slice(1);
    try {
      hash = decodeURIComponent(hash);
    } catch {} // a malformed address leads nowhere
    if (!hash && compared().length) hash = "runs";
    const [tab, argument = ""] = hash.split("/");
    return { tab, argument };
  };
  const go = (tab, argument = "") => {
    location.hash = argument ? `${tab}/${encodeURIComponent(argument)}` : tab;
  };

  // Shows problems beside the fields of a form: {field: sentence}. Several checks look at a form while
  // it is filled in, and their answers come in any order: each replaces what it found itself, and what
  // a button's check found.
  const painted = new Map();
  const findings = {};
  const paint = (form, found, reveal, tab, check = "") => {
    findings[form] = { ...findings[form], "": {}, [check]: found };
    draw(form, Object.assign({}, ...Object.values(findings[form])), reveal);
    const [first] = Object.keys(found);
    if (reveal && first) revealField(form, first, tab);
  };
  const draw = (form, problems, reveal) => {
    // Screen readers shouldn't announce a shown problem again.
    const shown = document.querySelectorAll(`[data-problem-of="${form}"]`).length;
    const same = JSON.stringify(painted.get(form) ?? {}) === JSON.stringify(problems);
    if (same && !reveal && shown === Object.keys(problems).length) return;
    painted.set(form, problems);
    document.querySelectorAll(`[data-problem-of="${form}"]`).forEach((node) => node.remove());
    document.querySelectorAll(`#${form} .ps-wrong`).forEach((block) => {
      block.classList.remove("ps-wrong");
      controlsOf(block).forEach((control) => {
        control.removeAttribute("aria-invalid");
        control.removeAttribute("aria-describedby");
      });
    });
    Object.entries(problems).forEach(([field, sentence]) => paintOne(form, field, sentence, reveal));
  };
  const paintOne = (form, field, sentence, reveal) => {
    const block = document.getElementById(`${form}-${field}`);
    if (!block) return;
    const id = `${form}-${field}-problem`;
    block.classList.add("ps-wrong");
    // A field that still has to be filled in is no alarm before a start is tried.
    const isOpen = !reveal && [...controlsOf(block)].every((one) => one.type !== "radio" && one.type !== "checkbox" && !one.value);
    block.classList.toggle("ps-open", isOpen);
    block.append(h("p", { class: "ps-problem", id, role: isOpen ? "note" : "alert", "data-problem-of": form }, sentence));
    controlsOf(block).forEach((control) => {
      control.setAttribute("aria-invalid", "true");
      control.setAttribute("aria-describedby", id);
    });
  };
  const controlsOf = (block) => block.querySelectorAll("input, textarea");
  const revealBlock = (block) => {
    block.scrollIntoView({ block: "center", behavior: "smooth" });
    controlsOf(block)[0]?.focus({ preventScroll: true });
  };
  // Goes to a field, in its tab, which may have to be opened first.
  const revealField = async (form, field, tab) => {
    const find = () => document.getElementById(`${form}-${field}`);
    const panel = find()?.closest("[role=tabpanel][id^=tab-]");
    if (!find() || !isShown(find())) go(panel ? panel.id.slice(4) : tab);
    for (let tries = 0; tries < 100 && !(find() && isShown(find())); tries += 1) await new Promise((resolve) => setTimeout(resolve, 50));
    if (!find()) return;
    if (!find().classList.contains("ps-wrong")) repaint();
    revealBlock(find());
  };
  const repaint = () => painted.forEach((problems, form) => draw(form, problems, false));

  // The typed values of forms. They are sent at once, before any button press; if several fields
  // change together, the first one sends the values of all.
  const forms = {};
  const heard = new Set(); // listeners to typed values: (form, field)
  const formOf = (id) => (forms[id] ??= { values: {}, asked: false, changes: 0 });
  const typed = async (id, field, value) => {
    const form = formOf(id);
    form.values[field] = value;
    explain(`${id}-${field}`, value);
    heard.forEach((listener) => listener(id, field));
    if (form.asked) return undefined;
    form.asked = true;
    await null;
    form.asked = false;
    return [{ ...form.values }];
  };
  // The values that a form starts with, and the ones typed since.
  let starts;
  const startOf = (id) => {
    starts ??= new Map((window.gradio_config?.components ?? []).filter(({ props }) => props.props?.presets).map(({ props }) => [props.props.form, props.props.presets]));
    return starts.get(id);
  };
  const valueOf = (id, field) => formOf(id).values[field] ?? startOf(id)?.first[field];
  // Sets fields of a form to values as its components have them: {field: value}.
  const fill = (id, values) => {
    const typed = (value) => (typeof value === "number" ? String(value) : value);
    formOf(id).wanted = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, typed(value)]));
    formOf(id).apply?.();
  };
  const wanted = (id, names) => names.map((name) => formOf(id).wanted?.[name] ?? { __type__: "update" });
  // Resolves to a new number if the form doesn't change for 150 ms, otherwise to undefined.
  const rest = async (id) => {
    const changes = (formOf(id).changes += 1);
    await new Promise((resolve) => setTimeout(resolve, 150));
    return changes === formOf(id).changes ? [changes] : undefined;
  };

  // Whether a start button asks for a check of the machine first.
  const isCheckFirst = (words) => /^Check .+ first$/.test(words);

  // How long a run elsewhere is in its phase, with the limit, and the phase's last error.
  const phaseTime = ({ since, limit }) => (since ? `for ${duration(Date.now() / 1000 - since)}${limit ? `, ${duration(limit)} at most` : ""}` : "");
  const phaseError = ({ error }) => (error ? `Last error, ${ago(error.time)}: ${error.message}` : "");

  // Returns a new value for each component that relays an event.
  let relayed = 0;
  const relay = (components) => Array(components).fill((relayed += 1));

  // Checks if the value of a menu has changed: Gradio reports a change even if the focus only passes
  // through it. `noted` records other changes of the value.
  const menus = {};
  const changed = (id, value, first) => {
    const before = menus[id] ?? first;
    menus[id] = value;
    return before !== value;
  };
  const noted = (id, value) => setTimeout(() => (menus[id] = value), 300);

  // Builds a card that shows an error.
  const problemCard = (error, ...more) =>
    h("div", { class: "ps-error", role: "alert" },
      h("strong", {}, error.problem),
      ...[["Expected", error.expected], ["Received", error.received], ["What to do", error.fix]]
        .filter(([, text]) => text)
        .map(([name, text]) => h("p", {}, h("b", {}, `${name}: `), text)),
      ...more);

  // Listeners for the whole document: links to tabs and runs, copy buttons, phone keyboards.
  const onClick = (event) => {
    const link = event.target.closest?.("[data-go]");
    if (link) {
      event.preventDefault();
      const [tab, argument] = link.dataset.go.split("/");
      go(tab, argument);
    }
    const copy = event.target.closest?.("[data-copy]");
    if (copy) copyText(copy);
  };
  const copyText = async (button) => {
    const text = button.parentElement.querySelector("code").textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = h("textarea", { style: "position:fixed;opacity:0" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  };
  const onFocus = (event) => {
    const field = event.target.closest?.(".ps-integer, .ps-decimal");
    if (field) event.target.inputMode = field.classList.contains("ps-integer") ? "numeric" : "decimal";
  };
  document.addEventListener("click", onClick);
  document.addEventListener("focusin", onFocus);

  // Keyboard support for the whole document. Gradio gives each radio button its own group, and reopens
  // a menu after Tab has closed it.
  const mendRadios = () => {
    for (const group of document.querySelectorAll("fieldset:has(> .wrap > label > input[type=radio])")) {
      const buttons = [...group.querySelectorAll("input[type=radio]")];
      // Browsers make radio buttons with the same name one Tab stop with arrow keys. Gradio restores
      // its own names with each choice.
      group.dataset.radios ||= `${group.id || buttons[0].name}/group`;
      for (const button of buttons) if (button.name !== group.dataset.radios) button.name = group.dataset.radios;
      const title = group.querySelector("[data-testid=block-info]");
      if (!title || group.role === "radiogroup") continue;
      title.id ||= `${group.id || buttons[0].name}-title`;
      group.role = "radiogroup";
      group.setAttribute("aria-labelledby", title.id);
    }
  };
  // Gradio renders help texts as Markdown without escapes: data/*.txt loses its asterisk. The original
  // texts from the config replace them before the first paint.
  let helps;
  const showPlainHelp = () => {
    for (const node of document.querySelectorAll(".info-text:not([data-plain])")) {
      helps ??= new Map((window.gradio_config?.components ?? []).map(({ props }) => [props.elem_id, props.info]));
      const help = helps.get(node.closest(".block[id]")?.id);
      if (help) node.textContent = help;
      node.dataset.plain = "";
    }
  };
  // Help: the explanation of the chosen option below the help line; details behind a "?".
  let details;
  const showDetails = () => {
    for (const block of document.querySelectorAll(".ps-field[id]:not([data-explained])")) {
      details ??= new Map((window.gradio_config?.components ?? []).flatMap(({ props }) => Object.entries(props.props?.help ?? {})));
      block.dataset.explained = "";
      const help = details.get(block.id);
      if (!help) continue;
      // The button comes before the control, so that Tab leaves a radio group as before.
      if (help.details) block.prepend(helpButton(block.id, help));
      if (help.details) block.append(h("p", { class: "ps-more", id: `${block.id}-more`, hidden: true }, help.details));
      if (Object.keys(help.options).length) block.append(h("p", { class: "ps-option-help" }));
      if (help.slider?.length) addSlider(block, help);
      const form = Object.keys(forms).find((one) => block.id.startsWith(`${one}-`));
      const field = block.id.slice((form ?? "").length + 1);
      explain(block.id, forms[form]?.values[field] ?? help.value);
    }
  };
  const helpButton = (id, help) =>
    h("button", {
      type: "button", class: "ps-help", "aria-expanded": "false", "aria-controls": `${id}-more`,
      "aria-label": `More about ${help.title}`, onclick: (event) => {
        const more = document.getElementById(`${id}-more`);
        more.hidden = !more.hidden;
        event.currentTarget.setAttribute("aria-expanded", String(!more.hidden));
      },
    }, "?");
  const explain = (id, value) => {
    follow(document.getElementById(id), value);
    const place = document.getElementById(id)?.querySelector(":scope > .ps-option-help");
    if (!place) return;
    const [label, text] = details.get(id).options[value] ?? [];
    place.replaceChildren(...(text ? [h("b", {}, `${label}:`), ` ${text}.`] : []));
  };
  // Sliders: a second way to type a number. The text field keeps the value; an optional one is empty
  // if its switch is off.
  const addSlider = (block, help) => {
    const [min, max, step] = help.slider;
    const move = (event) => typeInto(block, event.target.value);
    const range = h("input", { type: "range", min, max, step, "aria-label": `${help.title}, slider`, oninput: move });
    const flip = () => typeInto(block, block.dataset.off === undefined ? "" : block.dataset.last || help.value || String(min));
    const power = help.optional && h("button", { type: "button", class: "ps-switch", role: "switch", "aria-label": `Use ${help.title}`, onclick: flip });
    block.classList.add("ps-has-slider");
    block.append(h("div", { class: "ps-slider" }, range, power));
  };
  const typeInto = (block, text) => {
    const field = block.querySelector("textarea, input:not([type=range])");
    Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), "value").set.call(field, text);
    field.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const follow = (block, value) => {
    const range = block?.querySelector(".ps-slider input");
    if (!range) return;
    const text = String(value ?? "").trim();
    const number = Number(text.replace(/(\d)[,_ ](?=\d{3})/g, "$1"));
    if (text) block.dataset.last = text;
    if (text && !Number.isNaN(number)) range.value = number;
    block.toggleAttribute("data-off", !text);
    range.disabled = !text;
    const power = block.querySelector(".ps-switch");
    power?.setAttribute("aria-checked", String(Boolean(text)));
    if (power) power.textContent = text ? "On" : "Off";
  };
  const mend = () => {
    showPlainHelp();
    showDetails();
    if (document.querySelector('fieldset input[type=radio]:not([name$="/group"])')) mendRadios();
  };
  const onKey = (event) => {
    // Gradio's listener treats these keys as text and would open the menu that Tab is about to leave.
    const isText = !["Tab", "Shift", "Control", "Alt", "Meta"].includes(event.key);
    if (!isText && event.target.matches?.("[role=combobox]")) event.stopPropagation();
  };
  document.addEventListener("keydown", onKey, true);
  // Runs before the next paint and the next key.
  new MutationObserver(mend).observe(document.body, {
    childList: true, subtree: true, attributes: true, attributeFilter: ["name"],
  });
  mend();

  return { h, ask, poll, isShown, number, compact, percent, duration, ago, place, compared, go, typed, heard, formOf, startOf, valueOf, fill, wanted, rest, relay, changed, noted, isCheckFirst, phaseTime, phaseError, paint, repaint, reveal: revealField, problemCard, viewing: "" };
})();
