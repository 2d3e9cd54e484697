// Where a run is executed: a card for this computer and for each saved machine, and fields for a new
// one, which compose the form's address. Only the address counts. Cards and fields follow if it
// changes otherwise: by hand, after a reload, or with the settings of another run.
const { h, ago } = studio;
const { form, limits, kinds, unsigned } = props;
const root = element.querySelector(".ps-where");
const answer = root.querySelector(".ps-where-answer");
const check = root.querySelector(".ps-where-check");
const remove = root.querySelector(".ps-where-remove");
const sent = new Set(); // addresses composed here that the form hasn't reported back yet
let machines = []; // the saved ones
let changing = ""; // the name of the saved machine that is being changed
let sure = false; // a press of Remove has been
let asking = ""; // the address that is being tested
let others = []; // parameters of the address that have no field
let kept = []; // the limits of the last remote machine, while this computer is chosen

// The fields.

const fieldOf = (name) => root.querySelector(`[data-name="${name}"]`);
const choiceOf = () => root.querySelector(".ps-where-machines input:checked").value;
const savedOf = () => machines.find(({ name }) => choiceOf() === `saved:${name}`);
const kindOf = () => root.querySelector(".ps-where-kinds input:checked")?.value ?? "ssh";
const read = (name) => {
  const field = fieldOf(name);
  if (field.type === "checkbox") return field.checked ? "1" : "0";
  return field.value.trim();
};
const write = (name, value) => {
  const field = fieldOf(name);
  if (field.type === "checkbox") field.checked = value === "1" || value === "true";
  else {
    // An address may have a type or flavor that isn't listed.
    if (field.tagName === "SELECT" && ![...field.options].some((one) => one.value === value)) field.append(h("option", { value }, value || "Choose one"));
    field.value = value;
  }
};
const showKind = (kind) => {
  root.querySelector(`.ps-where-kinds input[value="${kind}"]`).checked = true;
  root.querySelectorAll("[data-kinds]").forEach((one) => (one.hidden = !one.dataset.kinds.split(" ").includes(kind)));
  if (kind === "hf") listFlavors();
};

// The cards.

const DOTS = { reachable: "done", "not reachable": "failed" };
const card = ({ name, state, about }) => {
  const id = `${form}-where-card-saved:${name}`;
  return h("label", { class: "ps-saved" },
    h("input", { type: "radio", name: `${form}-where/group`, value: `saved:${name}`, "aria-labelledby": id, "aria-describedby": `${id}-about` }),
    h("span", {}, h("b", { id }, name), h("small", { id: `${id}-about` }, h("i", { class: `ps-dot ${DOTS[state] ?? ""}`, "aria-hidden": "true" }), about)));
};

// Redraws the cards only if they have changed, so that the focus stays.
const draw = (found) => {
  if (!found || JSON.stringify(found) === JSON.stringify(machines)) return;
  const chosen = choiceOf();
  const hasFocus = root.querySelector(".ps-where-machines").contains(document.activeElement);
  machines = found;
  root.querySelectorAll(".ps-saved").forEach((one) => one.remove());
  root.querySelector(".ps-where-machines label:last-child").before(...machines.map(card));
  pick(chosen);
  if (hasFocus) root.querySelector(".ps-where-machines input:checked").focus({ preventScroll: true });
};

const pick = (choice) => {
  const cards = [...root.querySelectorAll(".ps-where-machines input")];
  (cards.find(({ value }) => value === choice) ?? cards[0]).checked = true;
  const saved = savedOf();
  const mode = saved ? "saved" : choiceOf();
  root.dataset.mode = mode;
  root.dataset.kind = mode === "here" ? "here" : saved ? parse(saved.target)?.kind : kindOf();
  root.toggleAttribute("data-needs-bucket", compose().split(" ").some((address) => kinds[address.split(":")[0]]?.needsBucket));
  root.querySelector(".ps-where-editor").hidden = mode !== "add";
  root.querySelector(".ps-where-actions").hidden = mode === "here";
  root.querySelectorAll(".ps-where-change, .ps-where-remove").forEach((one) => (one.hidden = mode !== "saved"));
  check.textContent = mode === "saved" ? "Test" : "Test and save";
  sure = false;
  remove.textContent = "Remove";
};

// The address.

const encode = (text) => encodeURIComponent(text).replace(/%(2F|3A|40|2C)/g, decodeURIComponent);
const decode = (text) => {
  try {
    return decodeURIComponent(text.replace(/\+/g, " "));
  } catch {
    return text;
  }
};

const parse = (address) => {
  if (address.includes(" ")) return { kind: "pool", place: address, pairs: [] };
  const [, kind, rest] = address.match(/^([a-z0-9]+):\/\/(.*)$/s) ?? [];
  if (!kinds[kind]) return null;
  const [, place, query = ""] = rest.match(/^([^?]*)\??(.*)$/s);
  const pairs = query.split("&").filter(Boolean).map((pair) => pair.split(/=(.*)/s, 2).map(decode));
  return { kind, place: kinds[kind].isHost ? place : decode(place), pairs: pairs.map(([name, value = ""]) => [name, value]) };
};

const compose = () => {
  if (choiceOf() === "here") return "";
  const saved = savedOf();
  if (saved) return saved.target;
  const kind = kindOf();
  if (kind === "pool") return read("members").split(/\s+/).join(" ") || "ssh://";
  const { parameters, without, isHost } = kinds[kind];
  const place = read(kinds[kind].place).replace(/^[a-z]+:\/\//, "");
  const own = parameters.map((name) => [name, read(name)]).filter(([name, value]) => value && !(value === "0" && without[name] === "0"));
  const query = [...own, ...others].map(([name, value]) => `${name}=${encode(value)}`).join("&");
  return `${kind}://${isHost ? place : encode(place)}${query && `?${query}`}`;
};

// Shows an address on its card, else in the fields; one that can't be read leaves them as they are.
const show = (address) => {
  const saved = machines.find(({ target }) => target === address);
  if (saved || !address) return pick(saved ? `saved:${saved.name}` : "here");
  if (fillIn(address)) {
    write("price", textOf("price_per_hour")?.value ?? "");
    pick("add");
  }
};
const fillIn = (address) => {
  const parsed = parse(address);
  if (!parsed) return false;
  const { place, parameters, without } = kinds[parsed.kind];
  showKind(parsed.kind);
  const values = { ...without, ...Object.fromEntries(parsed.pairs) };
  others = parsed.pairs.filter(([name]) => !parameters.includes(name));
  write(place, parsed.place);
  parameters.forEach((name) => write(name, values[name] ?? ""));
  return true;
};

// The form.

const textOf = (name) => document.querySelector(`#${form}-${name} :is(input, textarea)`);
const type = (name, text) => {
  const field = textOf(name);
  if (!field || field.value === text) return;
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
};

const send = () => {
  const address = compose();
  sent.add(address);
  tell();
  type("target", address);
};

// This computer has no limits; they return with another machine. A saved machine has its own price.
const choose = (choice) => {
  const before = root.dataset.mode;
  const now = limits.map((name) => textOf(name)?.value ?? "");
  changing = "";
  pick(choice);
  send();
  if (choiceOf() === "here") {
    kept = now;
    limits.forEach((name) => type(name, ""));
    return;
  }
  if (before === "here" && !now.some(Boolean)) limits.forEach((name, index) => type(name, kept[index] ?? ""));
  type("price_per_hour", savedOf()?.price ?? read("price"));
};

const follow = () => {
  const address = (props.value ?? "").trim();
  if (address === compose()) sent.clear();
  else if (!sent.has(address)) {
    sent.clear();
    changing = "";
    show(address);
    tell();
  }
};

// The Hub's flavors with their prices, and the check of a machine.

let flavorsAsked = false;
const listFlavors = async () => {
  if (flavorsAsked) return;
  flavorsAsked = true;
  const { flavors = [], problem } = await studio.ask(server.list_flavors);
  flavorsAsked = flavors.length > 0; // asks again after a sign-in
  const menu = fieldOf("flavor");
  const chosen = menu.value;
  const none = problem?.problem ?? (flavors.length ? "Choose one" : unsigned);
  menu.replaceChildren(h("option", { value: "" }, none), ...flavors.map(({ name, text }) => h("option", { value: name }, text)));
  write("flavor", chosen);
};

const note = (...children) => h("p", { class: "ps-note", role: "status" }, ...children);
// Shows what the last test of the chosen machine has said.
const tell = () => {
  const saved = savedOf();
  if (asking) return answer.replaceChildren(note("Asking the machine…"));
  if (!saved?.checked) return answer.replaceChildren(...(saved ? [note("Not tested yet.")] : []));
  const said = `${saved.answer} (${ago(saved.checked)})`;
  if (saved.state === "not reachable") return answer.replaceChildren(h("p", { class: "ps-warning", role: "status" }, h("b", {}, "Not reachable: "), said));
  return answer.replaceChildren(note(h("b", {}, saved.state === "reachable" ? "Ready: " : "Test it again: "), said));
};

// Tests the chosen machine; a new one is saved first.
const test = async () => {
  if (asking || choiceOf() === "here") return;
  const address = compose();
  const isNew = root.dataset.mode === "add";
  const more = isNew ? { name: read("name"), price: read("price"), replaces: changing } : {};
  asking = address;
  check.disabled = true;
  tell();
  let said;
  try {
    said = await studio.ask(server.test_machine, { address, mirror: textOf("mirror")?.value ?? "", ...more });
  } catch {
    said = { problem: { problem: "The studio didn't answer", fix: "try again" } };
  }
  asking = "";
  check.disabled = false;
  draw(said.machines);
  if (address === compose()) {
    if (said.name) {
      changing = "";
      pick(`saved:${said.name}`);
      type("price_per_hour", savedOf()?.price ?? "");
      if (isNew) ["name", "price"].forEach((name) => write(name, ""));
    }
    tell(); // otherwise the answer belongs to another machine
    const problem = said.problem ?? said.failed;
    if (problem) answer.replaceChildren(studio.problemCard(problem));
  } else tell();
  window.dispatchEvent(new Event("ps-again"));
};

const change = () => {
  const saved = savedOf();
  if (!saved || !fillIn(saved.target)) return;
  changing = saved.name;
  write("name", saved.name);
  write("price", saved.price);
  pick("add");
  tell();
  fieldOf(kinds[kindOf()].place).focus();
};

// The first press asks, the second one removes.
const removeChosen = async () => {
  const saved = savedOf();
  if (!saved) return;
  if (!sure) {
    sure = true;
    remove.textContent = `Remove ${saved.name} from the list`;
    return;
  }
  const said = await studio.ask(server.remove_saved_machine, { name: saved.name });
  if (said.problem) return answer.replaceChildren(studio.problemCard(said.problem));
  choose("here");
  draw(said.machines);
  root.querySelector(".ps-where-machines input:checked").focus();
};

const refresh = async () => {
  const said = await studio.ask(server.list_saved_machines);
  if (said.problem) return answer.replaceChildren(studio.problemCard(said.problem));
  draw(said.machines);
  follow();
  return tell();
};

root.addEventListener("input", (event) => {
  if (event.target.name === `${form}-where/group`) return choose(event.target.value);
  if (event.target.name === `${form}-where-kind/group`) {
    others = [];
    showKind(event.target.value);
    pick("add");
  }
  if (event.target.dataset.name === "price") type("price_per_hour", event.target.value);
  return send();
});
check.addEventListener("click", test);
root.querySelector(".ps-where-change").addEventListener("click", change);
remove.addEventListener("click", removeChosen);
// A start button that asks for a check does it.
document.addEventListener("click", (event) => {
  const start = event.target.closest?.(`#${form}-start`);
  if (!start || !studio.isCheckFirst(start.textContent.trim())) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  root.scrollIntoView({ block: "center", behavior: "smooth" });
  test();
}, true);
watch("value", follow);
showKind("ssh");
const first = window.studioFirst?.where;
if (first && !first.problem) draw(first.machines);
pick("here");
follow();
window.addEventListener("ps-place", () => studio.place().tab === form && choiceOf() !== "add" && refresh());
