// The report of a cleaned corpus; ui/parts/cleaning.py prepares the text.
studio.cleaningCard = (() => {
  const { h } = studio;
  const row = ([step, removed, changed]) => h("tr", {}, h("td", {}, step), h("td", {}, removed), h("td", {}, changed));
  const head = h("thead", {}, h("tr", {}, ["Step", "Removed", "Changed"].map((title) => h("th", { scope: "col" }, title))));
  const text = (title, words) => h("div", { class: "ps-cleaned-text", tabindex: "0", role: "group", "aria-label": title }, h("b", {}, title), words);
  const example = ([reason, before, after]) =>
    h("li", {},
      h("p", { class: "ps-cleaned-why" }, h("span", { class: after ? "ps-badge running" : "ps-badge failed" }, reason)),
      h("div", { class: "ps-before-after" }, text(after ? "Before" : "Removed", before), after && text("After", after)));
  const cells = (row) => h("tr", {}, row.map((value) => h("td", {}, value)));
  const origins = h("thead", {}, h("tr", {}, ["Source", "Read", "Training", "Validation"].map((title) => h("th", { scope: "col" }, title))));
  return ({ figures, skipped, sources, rows, examples }) =>
    h("section", { class: "ps-cleaning", "aria-label": "What cleaning did" },
      h("div", { class: "ps-tiles" }, figures.map(([name, value]) => h("div", {}, h("b", {}, value), h("span", {}, name)))),
      skipped && h("p", { class: "ps-warning" }, skipped),
      sources.length > 0 && h("div", { class: "ps-compact" }, h("table", { class: "ps-table", "aria-label": "Sources" }, origins.cloneNode(true), h("tbody", {}, sources.map(cells)))),
      h("div", { class: "ps-compact" }, h("table", { class: "ps-table", "aria-label": "What each step did" }, head.cloneNode(true), h("tbody", {}, rows.map(row)))),
      examples.length > 0 && h("details", { class: "ps-cleaning-group" }, h("summary", {}, `Examples (${examples.length})`), h("ol", { class: "ps-cleaned" }, examples.map(example))));
})();
