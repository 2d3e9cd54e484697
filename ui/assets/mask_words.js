// The words of the text as buttons: a click masks a word and asks the model, a second click shows the
// word again. The value is the mask token.
const { h } = studio;
// An update of the value replaces it.
const place = () => element.querySelector(".ps-mask-words");
const box = () => document.querySelector("#playground-text textarea");
const words = window.Intl?.Segmenter ? new Intl.Segmenter(undefined, { granularity: "word" }) : null;
const MOST = 60;
let hidden = []; // the masked words, in the order of their masks; null if unknown

const pieces = (text) =>
  words
    ? [...words.segment(text)].map(({ segment, isWordLike }) => ({ text: segment, isWord: isWordLike }))
    : text.split(/(\s+)/).map((one) => ({ text: one, isWord: /\p{L}/u.test(one) }));

const put = (text) => {
  const area = box();
  Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(area, text);
  area.dispatchEvent(new Event("input", { bubbles: true }));
  // After Gradio has taken the text.
  if (text.includes(props.value)) setTimeout(() => document.getElementById("playground-ask")?.click(), 60);
};

const draw = () => {
  const strip = place();
  const mask = String(props.value ?? "");
  const text = box()?.value ?? "";
  const had = strip.contains(document.activeElement) ? [...strip.querySelectorAll("button")].indexOf(document.activeElement) : -1;
  strip.replaceChildren();
  if (!mask) return;
  strip.append(h("p", { class: "ps-note" }, "Click a word to mask it, or write ", h("code", {}, mask), " in its place."));
  const parts = text.split(mask);
  if (hidden.length !== parts.length - 1) hidden = parts.slice(1).map(() => null);
  const buttons = [];
  parts.forEach((part, number) => {
    let before = parts.slice(0, number).join(mask) + (number ? mask : "");
    for (const { text: piece, isWord } of pieces(part)) {
      const [start, end] = [before, text.slice(before.length + piece.length)];
      if (isWord) buttons.push(h("button", { type: "button", "aria-label": `Mask ${piece}`, onclick: () => (hidden.splice(number, 0, piece), put(start + mask + end)) }, piece));
      before += piece;
    }
    if (number === parts.length - 1) return;
    const word = hidden[number];
    const [start, end] = [before, text.slice(before.length + mask.length)];
    buttons.push(h("button", { type: "button", class: "masked", disabled: word === null, "aria-label": word ? `Show ${word}` : "Masked", onclick: () => (hidden.splice(number, 1), put(start + word + end)) }, mask));
  });
  if (buttons.length && buttons.length <= MOST) strip.append(h("div", { class: "ps-chips", role: "group", "aria-label": "Words of the text" }, ...buttons));
  if (had >= 0) [...strip.querySelectorAll("button")][had]?.focus();
};

// Gradio sets the text of an example without an event.
let seen = null;
let drawn = null;
const look = () => {
  const now = `${props.value} ${box()?.value ?? ""}`;
  const strip = place();
  if (!strip || (now === seen && drawn === strip)) return;
  drawn = strip;
  seen = now;
  draw();
};
setInterval(look, 250);
document.addEventListener("input", (event) => event.target === box() && look());
watch("value", look);
look();
