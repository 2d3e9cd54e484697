// Where a run is executed: fields for each kind of machine, which compose the form's address.
// Only the address counts. The fields follow if it changes otherwise: by hand, after a reload, or
// with the settings of another run.
const { h } = studio;
const { form, limits, unsigned } = props;
const root = element.querySelector(".ps-where");
const answer = root.querySelector(".ps-where-answer");
const check = root.querySelector(".ps-where-check");
const PLACES = { ssh: "host", hf: "flavor", tpu: "type", sky: "resources" };
const PARAMETERS = { ssh: ["python"], hf: ["namespace"], tpu: ["zone", "spot", "project"], sky: ["cloud", "use_spot"] };
const WITHOUT = { spot: "1", use_spot: "0" }; // the meaning of an address without them
const sent = new Set(); // addresses composed here that the form hasn't reported back yet
let others = []; // parameters of the address that have no field
let kept = []; // the limits of the last remote machine, while this one is chosen

// The fields.

const fieldOf = (name) => root.querySelector(`[data-name="${name}"]`);
const kindOf = () => root.querySelector("input[type=radio]:checked").value;
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
  root.querySelector(`input[type=radio][value="${kind}"]`).checked = true;
  root.dataset.kind = kind;
  root.querySelectorAll("[data-kinds]").forEach((one) => (one.hidden = one.dataset.kinds !== kind));
  root.querySelector(".ps-where-actions").hidden = kind === "here";
  if (kind === "hf") listFlavors();
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
  const [, kind, rest] = address.match(/^([a-z0-9]+):\/\/(.*)$/s) ?? [];
  if (!PLACES[kind]) return null;
  const [, place, query = ""] = rest.match(/^([^?]*)\??(.*)$/s);
  const pairs = query.split("&").filter(Boolean).map((pair) => pair.split(/=(.*)/s, 2).map(decode));
  return { kind, place: kind === "ssh" ? place : decode(place), pairs: pairs.map(([name, value = ""]) => [name, value]) };
};

const compose = () => {
  const kind = kindOf();
  if (kind === "here") return "";
  const place = read(PLACES[kind]).replace(/^[a-z]+:\/\//, "");
  const own = PARAMETERS[kind].map((name) => [name, read(name)]).filter(([name, value]) => value && !(name === "use_spot" && value === "0"));
  const query = [...own, ...others].map(([name, value]) => `${name}=${encode(value)}`).join("&");
  return `${kind}://${kind === "ssh" ? place : encode(place)}${query && `?${query}`}`;
};

// Shows an address in the fields; one that can't be read leaves them as they are.
const show = (address) => {
  const parsed = address ? parse(address) : { kind: "here" };
  if (!parsed) return;
  const { kind } = parsed;
  showKind(kind);
  others = [];
  if (kind === "here") return;
  const values = { ...WITHOUT, ...Object.fromEntries(parsed.pairs) };
  others = parsed.pairs.filter(([name]) => !PARAMETERS[kind].includes(name));
  write(PLACES[kind], parsed.place);
  PARAMETERS[kind].forEach((name) => write(name, values[name] ?? ""));
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
  answer.replaceChildren();
  type("target", address);
};

// This machine has no limits; they return with another one.
const choose = () => {
  const kind = kindOf();
  const now = limits.map((name) => textOf(name)?.value ?? "");
  others = [];
  showKind(kind);
  send();
  if (kind === "here") {
    kept = now;
    limits.forEach((name) => type(name, ""));
  } else if (!now.some(Boolean)) {
    limits.forEach((name, index) => type(name, kept[index] ?? ""));
  }
};

const follow = () => {
  const address = (props.value ?? "").trim();
  if (address === compose()) sent.clear();
  else if (!sent.has(address)) {
    sent.clear();
    answer.replaceChildren();
    show(address);
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

const ask = async () => {
  const address = compose();
  check.disabled = true;
  answer.replaceChildren(h("p", { class: "ps-note", role: "status" }, "Asking the machine…"));
  try {
    const said = await studio.ask(server.check_target, { address, mirror: textOf("mirror")?.value ?? "" });
    if (address !== compose()) return; // the answer belongs to another machine
    answer.replaceChildren(said.problem ? studio.problemCard(said.problem) : h("p", { class: "ps-note", role: "status" }, h("b", {}, "Ready: "), said.text));
  } catch {
    answer.replaceChildren(h("p", { class: "ps-warning", role: "status" }, "The studio didn't answer; try again."));
  } finally {
    check.disabled = false;
  }
};

root.addEventListener("input", (event) => (event.target.type === "radio" ? choose() : send()));
check.addEventListener("click", ask);
watch("value", follow);
showKind("here");
follow();
