// The named sources of a corpus. The value is a list of their settings; buttons fire `edit` and
// `remove` with a name.
const { h } = studio;
const list = element.querySelector(".ps-sources");
const dataset = (one) => [one.dataset_name ?? "", one.dataset_config, one.dataset_revision && `@${one.dataset_revision}`].filter(Boolean).join(" ");
const describe = (one) => ({ files: one.path, hub: dataset(one), corpus: `cleaned corpus ${one.corpus_name}` })[one.source] ?? "documentation of the installed Python packages";
const button = (label, event, { name }) =>
  h("button", { type: "button", class: "ps-button", "aria-label": `${label} the source ${name}`, onclick: () => trigger(event, { name }) }, label);
const row = (one) =>
  h("li", {}, h("span", {}, h("b", {}, one.name), " ", h("span", { class: "ps-what" }, describe(one))),
    h("span", { class: "ps-actions" }, button("Edit", "edit", one), button("Remove", "remove", one)));
const draw = () => {
  const sources = Array.isArray(props.value) ? props.value : [];
  const had = element.contains(document.activeElement);
  list.replaceChildren(...(sources.length ? [h("ol", { "aria-label": "Sources of the corpus" }, ...sources.map(row))] : []));
  // The button with the focus is gone.
  if (had) document.querySelector("#corpus-sources input, #corpus-sources textarea")?.focus();
};
watch("value", draw);
draw();
