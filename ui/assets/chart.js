// Line charts. uPlot draws them; this file adds the measures of the x axis, smoothing, zoom with more
// detail from the server, keys, touch, a legend and a table of the values.
studio.uPlot = uPlot;

// The measures of the x axis. `of` maps a point to it; null if the run doesn't have it.
studio.chartAxes = (() => {
  const { compact, number, duration } = studio;
  const round = [1, 2, 5].flatMap((one) => [...Array(16).keys()].map((power) => one * 10 ** power)).sort((a, b) => a - b);
  const spans = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const clock = (seconds) => {
    if (seconds < 120) return `${number(seconds)} s`;
    if (seconds < 7200) return `${number(seconds / 60, seconds % 60 ? 1 : 0)} min`;
    return `${number(seconds / 3600, seconds % 3600 ? 1 : 0)} h`;
  };
  const dollars = (value) => `$${value < 0.1 ? Number(value.toPrecision(2)) : number(value, 2)}`;
  return {
    step: { title: "Steps", of: (step) => step, tick: compact, at: (value) => `at step ${number(value)}`, steps: round },
    tokens: { title: "Tokens", of: (step, _, { tokens }) => (tokens ? step * tokens : null), tick: compact, at: (value) => `at ${compact(value)} tokens`, steps: round },
    words: { title: "Words", of: (step, _, { words }) => (words ? step * words : null), tick: compact, at: (value) => `at ${compact(value)} words`, steps: round },
    time: { title: "Time", of: (_, seconds) => seconds, tick: clock, at: (value) => `after ${duration(value)}`, steps: [...spans, ...round.map((one) => one * 86400)] },
    cost: { title: "Cost", of: (_, seconds, { price }) => (price ? (seconds / 3600) * price : null), tick: dollars, at: (value) => `at ${dollars(value)}`, steps: null },
  };
})();

studio.Chart = class Chart {
  // lines: [{name, label, color: a CSS variable, dashed, faint, dots, level, frame}]
  // A `level` line is a single value, drawn across the whole chart.
  constructor(host, { title, unit = "", share = false, lines, tall = false, floor = null, settings, onZoom }) {
    const { h } = studio;
    const plain = { axis: "step", smoothing: 0, logX: false, logY: false };
    Object.assign(this, { host, title, unit, lines, floor, settings: settings ?? plain, onZoom, zoom: null, cursor: null, plot: null, shape: "", asked: "", isOnScreen: false });
    this.thinned = new Set();
    this.hidden = new Set();
    this.write = share ? studio.percent : studio.compact;
    this.detail = new Map();
    this.points = new Map(lines.map((line) => [line.name, Chart.#empty()]));
    this.legend = h("div", { class: "ps-legend" });
    this.readout = h("span", { class: "ps-legend-step" }, unit);
    this.canvas = h("div", { class: tall ? "ps-canvas tall" : "ps-canvas", tabindex: "0", role: "img" });
    this.table = h("details", { class: "ps-chart-data", ontoggle: () => this.#fillTable() }, h("summary", {}, "Values"));
    host.append(
      h("figure", { class: "ps-chart" }, h("figcaption", {}, h("span", { class: "ps-chart-title" }, title), this.readout, this.legend), this.canvas, this.table),
    );
    this.#listen();
  }

  static #empty = () => ({ steps: [], values: [], seconds: [] });

  // Takes other lines; curves that stay keep their points.
  setLines(lines) {
    this.lines = lines;
    this.points = new Map(lines.map((line) => [line.name, this.points.get(line.name) ?? Chart.#empty()]));
    this.shape = "";
  }

  clear() {
    this.points.forEach((series) => (series.steps.length = series.values.length = series.seconds.length = 0));
    this.detail.clear();
    this.draw();
  }

  // Appends [[step, value, seconds], ...]; a step replaces all points from that step on (after a resume).
  extend(name, rows) {
    const series = this.points.get(name);
    if (!series) return;
    for (const [step, value, seconds = 0] of rows) {
      while (series.steps.length && series.steps.at(-1) >= step) {
        series.steps.pop();
        series.values.pop();
        series.seconds.pop();
      }
      series.steps.push(step);
      series.values.push(value);
      series.seconds.push(seconds);
    }
    if (series.steps.length > 6000) Chart.#thin(series);
  }

  static #thin(series) {
    const count = series.steps.length;
    const keep = (_, index) => index % 2 === 0 || index === count - 1;
    for (const name of ["values", "seconds", "steps"]) series[name] = series[name].filter(keep);
  }

  // Replaces a curve by one with more detail; newer points stay.
  replace(name, series) {
    const known = this.points.get(name);
    if (!known || !series.steps.length) return;
    const newer = known.steps.findIndex((step) => step > series.steps.at(-1));
    const rest = newer < 0 ? Chart.#empty() : Chart.#cut(known, newer);
    this.points.set(name, Chart.#joined(series, rest));
  }

  // Shows more points in a part of a curve, until the zoom changes.
  setDetail(name, series) {
    if (series?.steps.length) this.detail.set(name, series);
    else this.detail.delete(name);
  }

  static #cut = (series, first, last) => Object.fromEntries(Object.entries(series).map(([name, all]) => [name, all.slice(first, last)]));
  static #joined = (...parts) => Object.fromEntries(["steps", "values", "seconds"].map((name) => [name, parts.flatMap((part) => part[name])]));

  shownPoints(name) {
    const [all, part] = [this.points.get(name), this.detail.get(name)];
    if (!part) return all;
    const first = all.steps.findIndex((step) => step >= part.steps[0]);
    const last = all.steps.findIndex((step) => step > part.steps.at(-1));
    const before = first < 0 ? all : Chart.#cut(all, 0, first);
    return Chart.#joined(before, part, last < 0 ? Chart.#empty() : Chart.#cut(all, last));
  }

  get isEmpty() {
    return [...this.points.values()].every((series) => !series.steps.length);
  }

  get shownLines() {
    return this.lines.filter((line) => !this.hidden.has(line.name) && this.points.get(line.name).steps.length);
  }

  get axis() {
    return studio.chartAxes[this.settings.axis];
  }

  #xs(line, { steps, seconds }) {
    const { of } = this.axis;
    return steps.map((step, index) => of(step, seconds[index], line.frame ?? this.frame ?? {}));
  }

  // The steps of a line that a range of the x axis covers.
  stepsIn(line, [low, high]) {
    const series = this.points.get(line.name);
    const xs = this.#xs(line, series);
    const first = Math.max(0, xs.findIndex((x) => x >= low) - 1);
    const last = xs.findLastIndex((x) => x <= high) + 1;
    return [series.steps[first], series.steps[Math.min(last, series.steps.length - 1)]];
  }

  // Returns the points of a line as [x, y], x ascending, without those that an axis can't show.
  #pairs(line) {
    const series = this.shownPoints(line.name);
    const all = this.#xs(line, series);
    const [xs, ys] = [[], []];
    all.forEach((x, index) => {
      const y = series.values[index];
      const isShown = x !== null && Number.isFinite(y) && !(this.settings.logX && x <= 0) && !(this.settings.logY && y <= 0);
      if (!isShown || (xs.length && x < xs.at(-1))) return;
      if (xs.length && x === xs.at(-1)) return void (ys[ys.length - 1] = y);
      xs.push(x);
      ys.push(y);
    });
    return [xs, ys];
  }

  // An exponential mean whose memory is a share of the curve's length, so that it doesn't depend on
  // the number of points.
  static #smoothed([xs, ys], amount) {
    const memory = 0.25 * amount ** 3 * (xs.at(-1) - xs[0]) || 1e-12;
    let [mean, weight] = [0, 0];
    return ys.map((y, index) => {
      const kept = index ? Math.exp(-(xs[index] - xs[index - 1]) / memory) : 0;
      mean = kept * mean + (1 - kept) * y;
      weight = kept * weight + (1 - kept);
      return mean / weight;
    });
  }

  draw() {
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    if (!width || !height) return this.#drawLegend();
    const lines = this.shownLines;
    const { smoothing } = this.settings;
    const tables = [];
    const series = [];
    this.pairs = new Map();
    for (const line of lines.filter((one) => !one.level)) {
      const pairs = this.#pairs(line);
      if (!pairs[0].length) continue;
      this.pairs.set(line.name, pairs);
      const isSmoothed = smoothing > 0 && !line.dots && line.smooth !== false && pairs[0].length > 2;
      tables.push(pairs);
      series.push({ line, part: isSmoothed ? "raw" : "only" });
      if (!isSmoothed) continue;
      tables.push([pairs[0], Chart.#smoothed(pairs, smoothing)]);
      series.push({ line, part: "smooth" });
    }
    const data = tables.length ? studio.uPlot.join(tables) : [[]];
    for (const line of lines.filter((one) => one.level)) {
      data.push(data[0].map(() => this.points.get(line.name).values.at(-1)));
      series.push({ line, part: "level" });
    }
    const shape = JSON.stringify([Boolean(this.zoom), this.settings.axis, this.settings.logX, this.settings.logY, series.map(({ line, part }) => [line.name, part, Boolean(this.#hasDots(line))])]);
    if (shape === this.shape && this.plot) this.plot.setData(data);
    else this.#build(shape, series, data, width, height);
    this.#drawLegend();
    if (this.table.open) this.#fillTable();
  }

  #hasDots(line) {
    const count = this.pairs.get(line.name)?.[0].length ?? 0;
    return count === 1 || (line.dots && count < 120);
  }

  #color(name) {
    return getComputedStyle(this.canvas).getPropertyValue(name).trim() || "#888";
  }

  #build(shape, series, data, width, height) {
    this.plot?.destroy();
    this.plot = null;
    this.shape = shape;
    if (!series.length) return;
    const { logX, logY } = this.settings;
    const font = `11px ${getComputedStyle(this.canvas).fontFamily}`;
    const ink = { stroke: () => this.#color("--ps-muted"), font, ticks: { show: false } };
    const grid = { stroke: () => this.#color("--ps-grid"), width: 1 };
    const splits = { filter: (_, found) => found };
    const options = {
      width, height, padding: [8, 20, 0, 0],
      legend: { show: false },
      scales: { x: { time: false, distr: logX ? 3 : 1, range: (_, low, high) => this.#rangeX(low, high) }, y: { distr: logY ? 3 : 1, range: (_, low, high) => this.#rangeY(low, high) } },
      axes: [
        { ...ink, size: 26, gap: 6, space: 64, grid: { show: false }, values: (_, found) => found.map((one) => (one === null ? "" : this.axis.tick(one))), ...(this.axis.steps ? { incrs: this.axis.steps } : {}), ...(logX ? { ...splits, splits: (_, __, low, high) => Chart.#logTicks(low, high, width < 500 ? 4 : 8) } : {}) },
        { ...ink, gap: 4, space: 34, grid, values: (_, found) => found.map((one) => (one === null ? "" : this.write(one))), size: (_, found) => 12 + 6.6 * Math.max(3, ...(found ?? []).map((one) => one.length)), ...(logY ? { ...splits, splits: (_, __, low, high) => Chart.#logTicks(low, high, 6) } : {}) },
      ],
      series: [{}, ...series.map((one) => this.#seriesOptions(one))],
      cursor: { y: false, drag: { x: true, y: false, setScale: false, dist: 6 }, dataIdx: Chart.#nearestIndex, points: { size: 7, width: 0 }, bind: { dblclick: () => () => this.zoomTo(null) } },
      hooks: { setCursor: [(plot) => this.#onCursor(plot)], setSelect: [(plot) => this.#onSelect(plot)] },
    };
    this.plot = new studio.uPlot(options, data, this.canvas);
  }

  #seriesOptions({ line, part }) {
    const dots = part !== "smooth" && this.#hasDots(line);
    const isFaint = part === "raw" || (line.faint && part === "only");
    return {
      // A level far away would flatten the curves of a zoomed chart.
      auto: !(this.zoom && part === "level"),
      stroke: () => this.#color(line.color), width: isFaint ? 1.25 : 2, alpha: part === "raw" ? (this.lines.length > 4 ? 0.12 : 0.3) : isFaint ? 0.6 : 1,
      dash: line.dashed && part !== "raw" ? [8, 4] : undefined, spanGaps: true,
      points: { show: dots, size: 5, fill: () => this.#color(line.color), stroke: () => this.#color(line.color) },
    };
  }

  // The nearest point of each curve, as curves have points at different places.
  static #nearestIndex(plot, index, hovered, x) {
    const [xs, ys] = [plot.data[0], plot.data[index]];
    if (index === 0 || hovered === null || (ys[hovered] ?? null) !== null) return hovered;
    let [before, after] = [hovered, hovered];
    while (before > 0 && (ys[before] ?? null) === null) before -= 1;
    while (after < ys.length - 1 && (ys[after] ?? null) === null) after += 1;
    if ((ys[before] ?? null) === null) return after;
    if ((ys[after] ?? null) === null) return before;
    return x - xs[before] <= xs[after] - x ? before : after;
  }

  static #logTicks(low, high, most) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const factor of [1, 2, 5]) ticks.push(factor * 10 ** power);
    }
    const inside = ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001).map((tick) => Number(tick.toPrecision(12)));
    const decades = inside.filter((tick) => Math.abs(Math.log10(tick) - Math.round(Math.log10(tick))) < 1e-9);
    if (inside.length > most) return decades.length > most ? decades.filter((_, index) => index % Math.ceil(decades.length / most) === 0) : decades;
    if (inside.length >= 3) return inside;
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * 10 ** Math.floor(Math.log10((high - low) / 4))).find((size) => size >= (high - low) / 4);
    return Array.from({ length: 8 }, (_, index) => Number(((Math.ceil(low / step) + index) * step).toPrecision(12))).filter((tick) => tick <= high);
  }

  #rangeX(low, high) {
    if (this.zoom) return this.zoom;
    if (low === null) return this.settings.logX ? [1, 10] : [0, 1];
    return [low, high > low ? high : this.settings.logX ? low * 2 : low + 1];
  }

  #rangeY(low, high) {
    const { logY } = this.settings;
    if (low === null) return logY ? [1, 10] : [0, 1];
    if (logY) return [low / (high / low) ** 0.05 / 1.001, high * (high / low) ** 0.05 * 1.001];
    if (this.floor !== null) low = Math.min(low, this.floor);
    const margin = (high - low || Math.abs(high) || 1) * 0.06;
    return [this.floor !== null && low >= this.floor ? this.floor : low - margin, high + margin];
  }

  // Zoom. `range` is in the measure of the x axis; null shows everything.
  zoomTo(range) {
    this.setZoom(range);
    this.onZoom?.(range);
  }

  setZoom(range) {
    this.zoom = range;
    if (!range) this.detail.clear();
    this.draw();
  }

  // Zooms in (factor below 1) or out around the cursor, or else the middle.
  zoomBy(factor) {
    if (!this.plot) return;
    const scale = this.settings.logX ? Math.log : (value) => value;
    const back = this.settings.logX ? Math.exp : (value) => value;
    const [low, high] = [this.plot.scales.x.min, this.plot.scales.x.max].map(scale);
    const [first, last] = [this.plot.data[0][0], this.plot.data[0].at(-1)].map(scale);
    const middle = this.cursor === null ? (low + high) / 2 : scale(this.cursor);
    const next = [middle - (middle - low) * factor, middle + (high - middle) * factor];
    const isAll = next[0] <= first && next[1] >= last;
    this.zoomTo(isAll || next[1] - next[0] < 1e-9 ? (isAll ? null : this.zoom) : [back(Math.max(first, next[0])), back(Math.min(last, next[1]))]);
  }

  #onSelect(plot) {
    const { left, width } = plot.select;
    if (width < 6) return;
    const range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.zoomTo(range);
  }

  #onCursor(plot) {
    const { left } = plot.cursor;
    const before = this.cursor;
    this.cursor = left === null || left === undefined || left < 0 ? null : this.#nearestX(plot.posToVal(left, "x"));
    if (this.cursor !== before) this.#drawLegend();
  }

  #nearestX(wanted) {
    const near = [...(this.pairs?.values() ?? [])].map(([xs]) => xs[Chart.#nearest(xs, wanted)]);
    return near.sort((a, b) => Math.abs(a - wanted) - Math.abs(b - wanted))[0] ?? null;
  }

  static #nearest(xs, wanted) {
    let [low, high] = [0, xs.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < wanted) low = middle + 1;
      else high = middle;
    }
    return low > 0 && wanted - xs[low - 1] < xs[low] - wanted ? low - 1 : low;
  }

  #valueAt(line, x) {
    if (line.level) return this.points.get(line.name).values.at(-1);
    const [xs, ys] = this.pairs?.get(line.name) ?? [[], []];
    return x === null ? ys.at(-1) : ys[Chart.#nearest(xs, x)];
  }

  // The legend shows the newest values, or those at the cursor. It reserves the width of the longest
  // place (the style sheet that of the values), so that the chart doesn't move.
  #drawLegend() {
    const { h } = studio;
    const shown = [];
    for (const line of this.shownLines) {
      const value = this.#valueAt(line, this.cursor);
      if (value === undefined) continue;
      const mark = line.label && h("i", { class: line.dashed ? "dashed" : "", style: `color: var(${line.color})` });
      const node = h("span", { title: line.label || false }, mark || null, h("em", {}, line.label), " ", h("b", {}, this.write(value)));
      shown.push({ node, text: `${line.label} ${this.write(value)}` });
    }
    const place = this.cursor === null ? "" : this.axis.at(this.cursor);
    this.legend.replaceChildren(...shown.map((one) => one.node));
    this.readout.textContent = place || this.unit;
    const last = this.plot?.data[0].at(-1) ?? 0;
    this.readout.style.minWidth = `${this.axis.at(last).length}ch`;
    this.canvas.setAttribute("aria-label", `${this.title}: ${shown.map((one) => one.text).join(", ")} ${place}. Arrow keys read the values, plus and minus zoom, 0 shows everything.`);
  }

  // The text alternative: some values of each curve in the shown part.
  #fillTable() {
    this.table.querySelector("div")?.remove();
    if (!this.table.open || !this.plot) return;
    const { h } = studio;
    const { min, max } = this.plot.scales.x;
    const xs = this.plot.data[0].filter((x) => x >= min && x <= max);
    const every = Math.max(1, Math.ceil(xs.length / 40));
    const some = xs.filter((_, index) => index % every === 0 || index === xs.length - 1);
    const lines = this.shownLines;
    const head = h("tr", {}, h("th", { scope: "col" }, this.axis.title), ...lines.map((line) => h("th", { scope: "col" }, line.label || this.title)));
    const rows = some.map((x) => h("tr", {}, h("th", { scope: "row" }, this.axis.tick(x)), ...lines.map((line) => h("td", {}, this.write(this.#valueAt(line, x))))));
    this.table.append(h("div", { class: "ps-table-box", tabindex: "0", role: "region", "aria-label": `Values of ${this.title}` }, h("table", { class: "ps-values" }, h("thead", {}, head), h("tbody", {}, ...rows))));
  }

  #moveCursor(x) {
    if (!this.plot) return;
    if (x === null) return this.plot.setCursor({ left: -10, top: -10 });
    this.plot.setCursor({ left: this.plot.valToPos(x, "x"), top: this.plot.over.clientHeight / 2 });
  }

  #pointAt(event) {
    if (!this.plot || event.pointerType === "mouse") return;
    const box = this.plot.over.getBoundingClientRect();
    this.plot.setCursor({ left: Math.min(box.width, Math.max(0, event.clientX - box.left)), top: box.height / 2 });
  }

  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = { "+": () => this.zoomBy(0.5), "=": () => this.zoomBy(0.5), "-": () => this.zoomBy(2), 0: () => this.zoomTo(null), Escape: () => this.#moveCursor(null) }[event.key];
    if (act) {
      if (event.key !== "Escape") event.preventDefault();
      return void act();
    }
    if (!this.plot) return;
    const { min, max } = this.plot.scales.x;
    const xs = this.plot.data[0].filter((x) => x >= min && x <= max);
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (!xs.length || (move === undefined && !["Home", "End"].includes(event.key))) return;
    event.preventDefault();
    const at = this.cursor === null ? xs.length - 1 : Chart.#nearest(xs, this.cursor);
    const target = { Home: 0, End: xs.length - 1 }[event.key] ?? Math.min(xs.length - 1, Math.max(0, at + move));
    this.#moveCursor(xs[target]);
  }

  #listen() {
    this.canvas.addEventListener("pointerdown", (event) => this.#pointAt(event));
    this.canvas.addEventListener("pointermove", (event) => this.#pointAt(event));
    this.canvas.addEventListener("blur", () => this.#moveCursor(null));
    this.canvas.addEventListener("keydown", (event) => this.#onKey(event));
    new ResizeObserver(() => {
      const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
      if (!this.plot) this.draw();
      else if (width && (width !== this.plot.width || height !== this.plot.height)) this.plot.setSize({ width, height });
    }).observe(this.canvas);
    new MutationObserver(() => this.plot?.redraw(false)).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  }
};

// Several charts with the same controls and the same zoom. `load(chart, steps)` fetches more detail:
// `steps` maps the name of a line to the first and last step, or is null for the whole curve.
studio.chartSettings = { axis: "step", smoothing: 0, logX: false, logY: false };
// Noise would hide the differences between many runs.
studio.comparisonSettings = { ...studio.chartSettings, smoothing: 0.4 };
studio.ChartBoard = class ChartBoard {
  constructor(load, settings = studio.chartSettings) {
    const { h } = studio;
    Object.assign(this, { load, charts: [], zoom: null, settings });
    const check = (name, label) => h("label", {}, h("input", { type: "checkbox", checked: this.settings[name], onchange: (event) => this.set(name, event.target.checked) }), label);
    this.axes = h("select", { onchange: (event) => this.set("axis", event.target.value) });
    const slider = h("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: this.settings.smoothing, oninput: (event) => this.set("smoothing", Number(event.target.value)) });
    const zoomButton = (label, sign, act) => h("button", { type: "button", class: "ps-button", "aria-label": label, title: label, onclick: act }, sign);
    this.reset = zoomButton("Reset zoom", "Reset", () => this.zoomTo(null));
    this.reset.disabled = true;
    this.controls = h("div", { class: "ps-chart-controls", role: "group", "aria-label": "Charts" },
      h("label", {}, "X axis ", this.axes),
      h("label", {}, "Smoothing ", slider),
      check("logX", "Log x"), check("logY", "Log y"),
      h("span", { class: "ps-zoom", title: "Drag over a chart to zoom; double-click to reset." }, zoomButton("Zoom in", "+", () => this.#zoomBy(0.5)), zoomButton("Zoom out", "−", () => this.#zoomBy(2)), this.reset));
    this.watcher = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
      const chart = this.charts.find((one) => one.host === target);
      if (!chart) return;
      chart.isOnScreen = isIntersecting;
      if (isIntersecting) this.#loadDetail(chart);
    }), { rootMargin: "200px" });
  }

  add(host, options) {
    const chart = new studio.Chart(host, { ...options, settings: this.settings, onZoom: (range) => this.zoomTo(range, chart) });
    this.charts.push(chart);
    this.watcher.observe(host);
    return chart;
  }

  // Offers the measures that at least one curve has; a run without them gets the first one.
  offer(frames) {
    const has = { step: frames.some(({ steps }) => steps !== false), tokens: frames.some(({ tokens }) => tokens), words: frames.some(({ words }) => words), time: true, cost: frames.some(({ price }) => price) };
    const names = Object.keys(has).filter((name) => has[name]);
    const key = names.join();
    if (this.axes.dataset.seen === key) return;
    this.axes.dataset.seen = key;
    const wanted = this.settings.wantedAxis ?? "step";
    const before = this.settings.axis;
    this.settings.axis = has[wanted] ? wanted : names[0];
    this.axes.replaceChildren(...names.map((name) => studio.h("option", { value: name, selected: name === this.settings.axis }, studio.chartAxes[name].title)));
    if (this.settings.axis !== before) this.draw();
  }

  set(name, value) {
    this.settings[name] = value;
    // Other runs are shown by this measure, too, if they have it.
    if (name === "axis") this.settings.wantedAxis = value;
    if (name === "axis" || name === "logX") this.zoomTo(null);
    else this.draw();
  }

  remove(chart) {
    this.watcher.unobserve(chart.host);
    chart.plot?.destroy();
    this.charts = this.charts.filter((one) => one !== chart);
  }

  draw() {
    this.charts.forEach((chart) => !chart.isEmpty && chart.draw());
  }

  zoomTo(range, source) {
    this.zoom = range;
    this.reset.disabled = !range;
    this.charts.forEach((chart) => chart !== source && chart.setZoom(range));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.loadDetails(), 150);
  }

  #zoomBy(factor) {
    this.charts.find((chart) => !chart.isEmpty && chart.plot)?.zoomBy(factor);
  }

  loadDetails() {
    this.charts.forEach((chart) => chart.isOnScreen && this.#loadDetail(chart));
  }

  async #loadDetail(chart) {
    const wanted = JSON.stringify(this.zoom);
    if (!chart.thinned.size || chart.asked === wanted || chart.isEmpty) return;
    chart.asked = wanted;
    const lines = chart.shownLines.filter((line) => chart.thinned.has(line.name));
    const steps = this.zoom && Object.fromEntries(lines.map((line) => [line.name, chart.stepsIn(line, this.zoom)]));
    if (!lines.length || (!steps && chart.isComplete)) return;
    const found = await this.load(chart, lines, steps).catch(() => null);
    if (!found || chart.asked !== wanted) return;
    if (!steps) chart.isComplete = true;
    found.forEach((series, name) => (steps ? chart.setDetail(name, series) : chart.replace(name, series)));
    chart.draw();
  }

  close() {
    this.watcher.disconnect();
    this.charts.forEach((chart) => chart.plot?.destroy());
  }
};
