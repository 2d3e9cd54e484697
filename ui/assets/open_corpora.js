// Open corpora of a language as cards; one fills in the form with a bounded sample.
const { h } = studio;
const { form, languages, documents } = props;
const list = h("ul", { class: "ps-open-list" });
const note = h("p", { class: "ps-note", role: "status" });
const select = h("select", {}, h("option", { value: "" }, "Choose a language"),
  ...languages.map(([code, name]) => h("option", { value: code }, name)));

const use = (one) => {
  studio.fill(form, { dataset_name: one.dataset_name, dataset_config: one.dataset_config, limit: documents });
  note.textContent = `Filled in: the first ${studio.number(documents)} documents of ${one.title}. Nothing is downloaded before a start.`;
};
const card = (one) => h("li", {},
  h("div", {}, h("b", {}, one.title), h("span", { class: "ps-note" }, ` ${one.about}`),
    h("small", {}, `${one.size} · ${one.licence}${one.gated ? " · needs a login and accepted terms" : ""} · `,
      h("a", { href: one.source, target: "_blank", rel: "noopener" }, one.dataset_name))),
  h("button", { type: "button", class: "ps-button", "aria-label": `Use a sample of ${one.title}`, onclick: () => use(one) }, "Use a sample"));

select.addEventListener("change", async () => {
  note.textContent = "";
  if (!select.value) return list.replaceChildren();
  const { corpora } = await studio.ask(server.open_corpora, { language: select.value });
  list.replaceChildren(...corpora.map(card));
});
element.querySelector(".ps-open-corpora").replaceChildren(
  h("label", {}, h("span", {}, "Well-known open corpora"), select), list, note);
