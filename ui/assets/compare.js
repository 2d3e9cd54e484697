// The comparison of several runs: their curves together, the settings that differ, and all figures.
studio.Comparison = class Comparison {
  static #REFRESH_SECONDS = 5;
  static #COLORS = 10;
  static #FIRST = ["loss", "eval_loss"];

  // server: the functions of the Runs tab. `save(answer)` downloads a file; `leave()` closes the view.
  constructor(host, server, { save, leave }) {
    Object.assign(this, { host, server, save, leave, runs: [], board: null });
  }

  // Opens the comparison of these runs; does nothing if it is open.
  async open(ids) {
    const key = ids.join();
    if (this.key === key) return;
    performance.mark("ps-compare-open");
    this.close();
    this.key = key;
    this.host.replaceChildren(this.#head("Comparing…"));
    const [known, first] = await Promise.all([
      studio.ask(this.server.compared_runs, { runs: ids }),
      studio.ask(this.server.run_curves, { runs: ids, names: Comparison.#FIRST, exact: false }),
    ]);
    if (this.key !== key) return;
    const { problem } = known.problem ? known : first;
    if (problem) return this.host.replaceChildren(this.#head("Comparison"), studio.problemCard(problem));
    this.#build(known);
    this.#take(first);
    performance.mark("ps-compare-painted");
    performance.measure("ps-compare-first-paint", "ps-compare-open", "ps-compare-painted");
    this.host.dataset.points = first.points;
    this.refreshed = Date.now();
    await this.#loadRest();
    this.board?.loadDetails();
  }

  close() {
    this.board?.close();
    this.board = null;
    this.key = "";
    this.host.replaceChildren();
  }

  // Updates figures and curves while a run is active.
  async refresh() {
    const isDue = Date.now() - this.refreshed > 1000 * Comparison.#REFRESH_SECONDS;
    if (!this.board || !isDue || !this.runs.some((run) => run.is_active)) return;
    this.refreshed = Date.now();
    const { key, runs } = this;
    const ids = runs.filter((run) => run.is_active).map((run) => run.id);
    const known = await studio.ask(this.server.compared_runs, { runs: runs.map((run) => run.id) });
    const names = this.charts.map(({ name }) => name);
    const points = await studio.ask(this.server.run_curves, { runs: ids, names, exact: false });
    if (this.key !== key || known.problem || points.problem) return;
    this.runs = known.runs;
    this.#drawTable(known);
    this.#take(points);
    this.charts.forEach(({ chart }) => ((chart.isComplete = false), (chart.asked = "")));
    this.board.loadDetails();
  }

  #head(title, ...buttons) {
    const { h } = studio;
    const back = h("a", { href: "#runs", class: "ps-compare-back", onclick: (event) => (event.preventDefault(), this.leave()) }, "← All runs");
    return h("div", { class: "ps-compare-head" }, back, h("h3", { tabindex: "-1" }, title), h("div", { class: "ps-actions" }, ...buttons));
  }

  static #color = (index) => `--ps-run-${index % Comparison.#COLORS}`;

  #build(known) {
    const { h } = studio;
    this.runs = known.runs;
    const link = h("button", { type: "button", class: "ps-button", onclick: () => this.#copyLink(link) }, "Copy link");
    const table = h("button", { type: "button", class: "ps-button", onclick: () => this.save(this.server.comparison_table, { runs: this.runs.map((run) => run.id) }) }, "Export as CSV");
    this.board = new studio.ChartBoard((chart, lines, steps) => this.#detail(chart, lines, steps), studio.comparisonSettings);
    this.board.offer(this.runs);
    this.chartsBox = h("div", { class: "ps-charts two" });
    this.charts = known.curves.map((one) => this.#addChart(one, known.baseline));
    this.tableBox = h("div", { class: "ps-compare-tables" });
    this.#drawTable(known);
    const hasCurves = this.charts.length > 0;
    const note = hasCurves ? [] : [h("p", { class: "ps-note" }, "These runs have no curves.")];
    this.host.replaceChildren(this.#head(`Comparison of ${this.runs.length} runs`, link, table), this.#legend(), ...(hasCurves ? [this.board.controls] : note), this.chartsBox, this.tableBox);
  }

  #addChart({ name, title, unit, share, floor, dots, smooth }, baseline) {
    const isLoss = name === "loss" || name === "eval_loss";
    const lines = this.runs.map((run, index) => ({ name: run.id, label: run.name, color: Comparison.#color(index), dashed: index >= Comparison.#COLORS / 2 && index % Comparison.#COLORS >= Comparison.#COLORS / 2, dots, smooth, frame: run }));
    if (isLoss && typeof baseline === "number") lines.push({ name: "baseline", label: "Unigram baseline", color: "--ps-baseline", dashed: true, level: true });
    const host = studio.h("div", { class: "ps-chart-host" });
    host.hidden = true;
    this.chartsBox.append(host);
    const chart = this.board.add(host, { title, unit, share, floor, tall: isLoss, lines });
    if (isLoss && typeof baseline === "number") chart.extend("baseline", [[0, baseline, 0]]);
    return { name, host, chart };
  }

  // A button for each run shows and hides its curves.
  #legend() {
    const { h } = studio;
    const one = (run, index) => {
      const show = h("button", { type: "button", class: "ps-run-key", "aria-pressed": "true", title: run.id, onclick: () => this.#toggle(run, show) },
        h("i", { class: index % Comparison.#COLORS >= Comparison.#COLORS / 2 ? "dashed" : "", style: `color: var(${Comparison.#color(index)})` }), h("b", {}, run.name), h("small", {}, run.label));
      return show;
    };
    return h("div", { class: "ps-run-keys", role: "group", "aria-label": "Show or hide runs" }, ...this.runs.map(one));
  }

  #toggle(run, button) {
    const isShown = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!isShown));
    this.charts.forEach(({ chart }) => {
      chart.hidden[isShown ? "add" : "delete"](run.id);
      chart.draw();
    });
  }

  #take({ series, thinned }) {
    for (const [run, curves] of Object.entries(series)) {
      for (const [name, points] of Object.entries(curves)) {
        const chart = this.charts.find((one) => one.name === name)?.chart;
        chart?.points.set(run, points);
        if (chart && thinned[run]?.includes(name)) chart.thinned.add(run);
      }
    }
    for (const { host, chart } of this.charts) {
      host.hidden = [...chart.points].every(([name, points]) => name === "baseline" || !points.steps.length);
      if (!host.hidden) chart.draw();
    }
  }

  async #loadRest() {
    const { key } = this;
    for (const { name } of this.charts.filter((one) => !Comparison.#FIRST.includes(one.name))) {
      const found = await studio.ask(this.server.run_curves, { runs: this.runs.map((run) => run.id), names: [name], exact: false });
      if (this.key !== key) return;
      if (!found.problem) this.#take(found);
    }
  }

  async #detail(chart, lines, steps) {
    const { name } = this.charts.find((one) => one.chart === chart);
    const found = await studio.ask(this.server.run_curves, { runs: lines.map((line) => line.name), names: [name], steps, exact: true });
    if (found.problem) return null;
    this.host.dataset.detail = Number(this.host.dataset.detail ?? 0) + 1;
    return new Map(Object.entries(found.series).map(([run, curves]) => [run, curves[name]]));
  }

  async #copyLink(button) {
    const address = `${location.origin}${location.pathname}?compare=${this.runs.map((run) => encodeURIComponent(run.id)).join(",")}#runs`;
    try {
      await navigator.clipboard.writeText(address);
      button.textContent = "Copied";
    } catch {
      // Without permission for the clipboard, the address can be copied from the browser.
      button.textContent = "The link is in the address bar";
    }
    setTimeout(() => (button.textContent = "Copy link"), 2500);
  }

  // One table: a column for each run; facts, settings that differ, figures.
  #drawTable({ runs, settings, figures }) {
    const { h } = studio;
    const head = h("tr", {}, h("td", {}), ...runs.map((run, index) => h("th", { scope: "col" }, h("i", { style: `color: var(${Comparison.#color(index)})` }), h("a", { href: "#runs", "data-go": `runs/${run.id}` }, run.name), h("small", {}, run.id))));
    const group = (title) => h("tr", { class: "group" }, h("th", { scope: "colgroup", colspan: runs.length + 1 }, h("span", {}, title)));
    const line = (name, values, show, best = []) => h("tr", {}, h("th", { scope: "row" }, name), ...values.map((value, index) => h("td", { class: best.includes(index) && "best" }, value === null || value === undefined || value === "" ? "–" : show(value))));
    const rows = [
      line("State", runs.map((run) => run.label), String),
      line("Time", runs.map((run) => run.seconds), studio.duration),
      group(settings.length ? "Settings that differ" : "The settings do not differ"),
      ...settings.map(([name, values]) => line(name, values, Comparison.#setting)),
      group("Figures"),
      ...figures.map(([name, values, best, isShare]) => line(name, values, isShare ? studio.percent : Comparison.#figure, best)),
    ];
    const old = this.tableBox.querySelector(".ps-table-box")?.scrollLeft ?? 0;
    const box = h("div", { class: "ps-table-box", tabindex: "0", role: "region", "aria-label": "Settings and figures of the runs" }, h("table", { class: "ps-values ps-compare-table" }, h("thead", {}, head), h("tbody", {}, ...rows)));
    this.tableBox.replaceChildren(box);
    box.scrollLeft = old;
  }

  static #setting = (value) => (Array.isArray(value) || typeof value === "object" ? JSON.stringify(value) : String(value));
  static #figure = (value) => (Number.isInteger(value) ? studio.number(value) : Math.abs(value) >= 1000 ? studio.number(value, 1) : studio.compact(value));
};
