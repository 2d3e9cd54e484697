// A preflight's report as a card; ui/parts/preflight.py prepares the text.
// `use` is called with the largest batch size that fits, to put it into the form.
studio.preflightCard = (() => {
  const { h } = studio;

  const head = (card) =>
    h("header", {},
      h("h4", { class: card.fits ? "good" : "bad" }, card.verdict, card.estimated && h("span", { class: "ps-badge alert" }, "estimated")),
      h("p", { class: "ps-note" }, card.about));

  const memory = ({ memory: one, fits }) =>
    h("div", { class: "ps-preflight-memory" },
      h("div", {}, h("b", {}, one.needed), h("span", {}, one.available), one.missing && h("em", {}, one.missing)),
      h("div", { class: fits ? "ps-preflight-bar" : "ps-preflight-bar over", "aria-hidden": "true" },
        h("i", { style: `width:${one.used_percent.toFixed(2)}%` }),
        one.missing_percent > 0 && h("s", { style: `width:${one.missing_percent.toFixed(2)}%` })));

  const largest = (card, used, use) => {
    if (!card.largest) return card.advice && h("p", { class: "ps-preflight-largest" }, card.advice);
    const button = used
      ? h("span", { class: "ps-preflight-used" }, "in the form")
      : h("button", { type: "button", class: "ps-button", onclick: () => use(card.largest) }, "Use it");
    return h("p", { class: "ps-preflight-largest" }, "The largest batch that fits: ", h("b", {}, `${studio.number(card.largest)} sequences per core`), button, card.advice);
  };

  const check = ({ good, text }) =>
    h("li", { class: good === null ? "" : good ? "good" : "bad" }, text);

  return (card, { used = false, use }) =>
    h("article", { class: "ps-preflight-card" },
      head(card),
      card.install && h("div", { class: "ps-warning" }, "Worked out by formulas, not by the TPU's compiler, so it may be far off. For the compiler's own figures, then check again: ", h("code", {}, card.install)),
      memory(card),
      card.compiler_message && h("blockquote", {}, card.compiler_message),
      largest(card, used, use),
      card.tiles.length > 0 && h("div", { class: "ps-tiles" }, card.tiles.map(([name, value]) => h("div", {}, h("b", {}, value), h("span", {}, name)))),
      h("dl", {}, card.figures.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      h("ul", { class: "ps-preflight-checks" }, card.checks.map(check)),
      card.small_print && h("p", { class: "ps-note" }, card.small_print));
})();
