// Line charts on a canvas: they grow point by point, follow the web app's colours and width, and can
// be read with the mouse, by touch or with the arrow keys.
studio.Chart ??= class Chart {
  // lines: [{name, label, color: a CSS variable, dashed, faint, dots, level}]
  // A `level` line is a single value, drawn across the whole chart.
  constructor(host, { title, unit = "", lines, tall = false, floor = null }) {
    const { h } = studio;
    Object.assign(this, { host, title, unit, lines, floor, logarithmic: false, cursor: null });
    this.points = new Map(lines.map((line) => [line.name, { steps: [], values: [] }]));
    this.legend = h("div", { class: "ps-legend" });
    this.readout = h("span", { class: "ps-legend-step" }, unit);
    this.canvas = h("canvas", { class: tall ? "ps-canvas tall" : "ps-canvas", tabindex: "0", role: "img" });
    host.append(
      h("figure", { class: "ps-chart" }, h("figcaption", {}, h("span", { class: "ps-chart-title" }, title), this.readout, this.legend), this.canvas),
    );
    this.#listen();
  }

  clear() {
    this.points.forEach((series) => (series.steps.length = series.values.length = 0));
    this.cursor = null;
    this.draw();
  }

  // Appends [[step, value], ...]; a step replaces all points from that step on (after a resume).
  extend(name, rows) {
    const series = this.points.get(name);
    if (!series) return;
    for (const [step, value] of rows) {
      while (series.steps.length && series.steps.at(-1) >= step) {
        series.steps.pop();
        series.values.pop();
      }
      series.steps.push(step);
      series.values.push(value);
    }
    if (series.steps.length > 6000) Chart.#thin(series);
  }

  static #thin(series) {
    const keep = (_, index) => index % 2 === 0 || index === series.steps.length - 1;
    const steps = series.steps.filter(keep);
    series.values = series.values.filter(keep);
    series.steps = steps;
  }

  get isEmpty() {
    return [...this.points.values()].every((series) => !series.steps.length);
  }

  draw() {
    this.#drawLegend();
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = `11px ${getComputedStyle(this.canvas).fontFamily}`;
    if (this.isEmpty) return;
    this.#layOut(context, width, height);
    this.#drawGrid(context);
    context.save();
    context.beginPath();
    context.rect(this.left, this.top - 4, this.right - this.left + 4, this.bottom - this.top + 8);
    context.clip();
    this.lines.forEach((line) => this.#drawLine(context, line));
    context.restore();
    this.#drawCursor(context);
  }

  #layOut(context, width, height) {
    const bounds = this.#bounds();
    this.ticksY = Chart.#ticks(bounds.low, bounds.high, height < 170 ? 4 : 5);
    const widest = Math.max(...this.ticksY.map((tick) => context.measureText(studio.compact(tick)).width));
    Object.assign(this, { left: Math.ceil(widest) + 10, right: width - 10, top: 8, bottom: height - 20, ...bounds });
    this.ticksX = this.logarithmic
      ? Chart.#decades(this.first, this.last)
      : Chart.#ticks(this.first, this.last, width < 420 ? 4 : 7).filter((tick) => Number.isInteger(tick) && tick >= this.first && tick <= this.last);
  }

  #bounds() {
    let [low, high, first, last] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const line of this.lines) {
      const { steps, values } = this.points.get(line.name);
      for (let index = 0; index < steps.length; index += 1) {
        if (Number.isFinite(values[index])) {
          low = Math.min(low, values[index]);
          high = Math.max(high, values[index]);
        }
        first = Math.min(first, steps[index]);
        last = Math.max(last, steps[index]);
      }
    }
    if (this.floor !== null) low = Math.min(low, this.floor);
    if (!Number.isFinite(low)) [low, high] = [0, 1];
    const margin = (high - low || Math.abs(high) || 1) * 0.06;
    const bottom = this.floor !== null && low >= this.floor ? this.floor : low - margin;
    if (this.logarithmic) first = Math.max(1, first);
    return { low: bottom, high: high + margin, first, last: Math.max(last, first + 1) };
  }

  static #ticks(low, high, count) {
    const rough = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const ticks = [];
    for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) {
      ticks.push(Number((index * step).toPrecision(12)));
    }
    return ticks;
  }

  static #decades(first, last) {
    const ticks = [];
    for (let tick = 10 ** Math.floor(Math.log10(first)); tick <= last; tick *= 10) if (tick >= first) ticks.push(tick);
    return ticks;
  }

  #x(step) {
    const scale = (value) => (this.logarithmic ? Math.log(Math.max(1, value)) : value);
    const share = (scale(step) - scale(this.first)) / (scale(this.last) - scale(this.first) || 1);
    return this.left + share * (this.right - this.left);
  }

  #y(value) {
    return this.bottom - ((value - this.low) / (this.high - this.low || 1)) * (this.bottom - this.top);
  }

  #color(name) {
    return getComputedStyle(this.canvas).getPropertyValue(name).trim() || "#888";
  }

  #drawGrid(context) {
    context.strokeStyle = this.#color("--ps-grid");
    context.fillStyle = this.#color("--ps-muted");
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const tick of this.ticksY) {
      const y = Math.round(this.#y(tick)) + 0.5;
      context.beginPath();
      context.moveTo(this.left, y);
      context.lineTo(this.right, y);
      context.stroke();
      context.fillText(studio.compact(tick), this.left - 6, y);
    }
    context.textBaseline = "top";
    context.textAlign = "center";
    for (const tick of this.ticksX) {
      const label = studio.compact(tick);
      const half = context.measureText(label).width / 2;
      context.fillText(label, Math.min(this.right - half, Math.max(this.left + half, this.#x(tick))), this.bottom + 6);
    }
  }

  #drawLine(context, line) {
    const { steps, values } = this.points.get(line.name);
    if (!steps.length) return;
    context.strokeStyle = context.fillStyle = this.#color(line.color);
    context.globalAlpha = line.faint ? 0.55 : 1;
    context.lineWidth = line.faint ? 1.25 : 2;
    context.lineJoin = "round";
    context.setLineDash(line.dashed ? [6, 4] : []);
    context.beginPath();
    if (line.level) {
      const y = this.#y(values.at(-1));
      context.moveTo(this.left, y);
      context.lineTo(this.right, y);
    } else {
      this.#tracePath(context, steps, values);
    }
    context.stroke();
    context.setLineDash([]);
    if (line.dots && steps.length < 120) this.#drawDots(context, steps, values);
    context.globalAlpha = 1;
  }

  #tracePath(context, steps, values) {
    let drawing = false;
    for (let index = 0; index < steps.length; index += 1) {
      if (!Number.isFinite(values[index])) drawing = false;
      else if (drawing) context.lineTo(this.#x(steps[index]), this.#y(values[index]));
      else context.moveTo(this.#x(steps[index]), this.#y(values[index])), (drawing = true);
    }
    if (steps.length === 1) this.#drawDots(context, steps, values);
  }

  #drawDots(context, steps, values) {
    steps.forEach((step, index) => {
      context.beginPath();
      context.arc(this.#x(step), this.#y(values[index]), 2.5, 0, 2 * Math.PI);
      context.fill();
    });
  }

  #drawCursor(context) {
    if (this.cursor === null) return;
    const x = Math.round(this.#x(this.cursor)) + 0.5;
    context.strokeStyle = this.#color("--ps-muted");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, this.top);
    context.lineTo(x, this.bottom);
    context.stroke();
    for (const line of this.lines) {
      const near = this.#nearest(line.name, this.cursor);
      if (!near || line.level) continue;
      context.fillStyle = this.#color(line.color);
      context.beginPath();
      context.arc(this.#x(near.step), this.#y(near.value), 3.5, 0, 2 * Math.PI);
      context.fill();
    }
  }

  #nearest(name, step) {
    const { steps, values } = this.points.get(name);
    if (!steps.length) return null;
    let [low, high] = [0, steps.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle + 1;
      else high = middle;
    }
    if (low > 0 && step - steps[low - 1] < steps[low] - step) low -= 1;
    return { step: steps[low], value: values[low] };
  }

  // The legend shows the newest values, or those at the cursor. It reserves the width of the longest
  // step (the style sheet that of the values), so that the canvas doesn't move.
  #drawLegend() {
    const { h } = studio;
    const shown = [];
    for (const line of this.lines) {
      const { steps, values } = this.points.get(line.name);
      if (!steps.length) continue;
      const value = this.cursor === null ? values.at(-1) : this.#nearest(line.name, this.cursor).value;
      const mark = line.label && h("i", { class: line.dashed ? "dashed" : "", style: `color: var(${line.color})` });
      const node = h("span", {}, mark || null, `${line.label} `, h("b", {}, studio.compact(value)));
      shown.push({ node, text: `${line.label} ${studio.compact(value)}` });
    }
    const step = this.cursor === null ? "" : `at step ${studio.number(this.cursor)}`;
    this.legend.replaceChildren(...shown.map((one) => one.node));
    this.readout.textContent = step || this.unit;
    const last = Math.max(0, ...this.lines.map((line) => this.points.get(line.name).steps.at(-1) ?? 0));
    this.readout.style.minWidth = `${`at step ${studio.number(last)}`.length}ch`;
    this.canvas.setAttribute("aria-label", `${this.title}: ${shown.map((one) => one.text).join(", ")} ${step}. Arrow keys read the values.`);
  }

  #allSteps() {
    return [...new Set(this.lines.filter((line) => !line.level).flatMap((line) => this.points.get(line.name).steps))].sort((a, b) => a - b);
  }

  #pointAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - this.left) / (this.right - this.left);
    const scale = this.logarithmic ? Math.log : (value) => value;
    const back = this.logarithmic ? Math.exp : (value) => value;
    const wanted = back(scale(this.first) + share * (scale(this.last) - scale(this.first)));
    const near = this.lines
      .filter((line) => !line.level)
      .map((line) => this.#nearest(line.name, wanted))
      .filter(Boolean)
      .sort((a, b) => Math.abs(a.step - wanted) - Math.abs(b.step - wanted))[0];
    this.#moveCursor(near ? near.step : null);
  }

  #moveCursor(step) {
    this.cursor = step;
    requestAnimationFrame(() => this.draw());
  }

  #onKey(event) {
    const steps = this.#allSteps();
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (event.key === "Escape") return this.#moveCursor(null);
    if (!steps.length || (move === undefined && !["Home", "End"].includes(event.key))) return undefined;
    event.preventDefault();
    const at = this.cursor === null ? steps.length - 1 : steps.indexOf(this.cursor);
    const target = { Home: 0, End: steps.length - 1 }[event.key] ?? Math.min(steps.length - 1, Math.max(0, at + move));
    return this.#moveCursor(steps[target]);
  }

  #listen() {
    this.canvas.addEventListener("pointermove", (event) => !this.isEmpty && this.#pointAt(event));
    this.canvas.addEventListener("pointerdown", (event) => !this.isEmpty && this.#pointAt(event));
    this.canvas.addEventListener("pointerleave", () => this.#moveCursor(null));
    this.canvas.addEventListener("blur", () => this.#moveCursor(null));
    this.canvas.addEventListener("keydown", (event) => this.#onKey(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    new MutationObserver(() => this.draw()).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  }
};
