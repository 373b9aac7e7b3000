"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const SHAPES = { front: 6, dominated: 3.6, "out of bounds": 4.5 };

  /* Everything from the data goes in as text, never as HTML. */
  function add(parent, name, attributes = {}, text = null) {
    const inSvg = name === "svg" || parent.namespaceURI === SVG;
    const made = inSvg ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    parent.append(made);
    return made;
  }

  function shown(value) {
    if (value === null || value === undefined) return "–";
    if (Number.isInteger(value)) return value.toLocaleString("en");
    const size = Math.abs(value);
    return size >= 1e4 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
  }

  function ticks(low, high, count) {
    if (!(high > low)) {
      const pad = Math.abs(low) / 2 || 1;
      [low, high] = [low - pad, high + pad];
    }
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 2.5, 5, 10].find((each) => power * each >= rough * 0.999);
    const found = [];
    for (let k = Math.floor(low / step + 1e-9); k <= Math.ceil(high / step - 1e-9); k += 1) {
      found.push(Number((k * step).toPrecision(12)));
    }
    return found;
  }

  function key(name) {
    return /^[A-Za-z0-9_-]+$/.test(name) ? name : JSON.stringify(name);
  }

  function tomlValue(value) {
    return JSON.stringify(value === null ? "NA" : value);
  }

  /* The configuration of a trial as a file that `ch` can read. */
  function toml(data, trial) {
    if (trial.toml) return trial.toml;
    const tables = new Map([[data.prefix.map(key).join("."), data.first ? [data.first] : []]]);
    data.keys.forEach((path, place) => {
      const option = trial.c[place];
      if (option < 0) return;
      const table = [...data.prefix, ...path.slice(0, -1)].map(key).join(".");
      if (!tables.has(table)) tables.set(table, []);
      tables.get(table).push(`${key(path.at(-1))} = ${tomlValue(data.options[place][option])}`);
    });
    const parts = data.head ? [data.head] : [];
    for (const [name, lines] of [...tables].sort((a, b) => (a[0] !== "") - (b[0] !== ""))) {
      if (lines.length) parts.push((name ? `[${name}]\n` : "") + lines.join("\n"));
    }
    return `${parts.join("\n\n")}\n`;
  }

  /* The same in a few lines: a line for each table, without what is not set. */
  function brief(data, trial) {
    const lines = new Map();
    data.keys.forEach((path, place) => {
      const value = trial.c[place] < 0 ? null : data.options[place][trial.c[place]];
      const table = path.slice(0, -1).filter((each) => each !== "config").join(".");
      if (!lines.has(table)) lines.set(table, []);
      const name = path.at(-1);
      if (value !== null) lines.get(table).push(name === "name" ? String(value) : `${name} = ${value}`);
    });
    return [...lines].map(([table, parts]) => `${table || "settings"}: ${parts.join(", ") || (data.prefix.length ? "float" : "none")}`)
      .join("\n");
  }

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = add(document.body, "textarea", { style: "position:fixed;opacity:0" });
      area.value = text;
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  function label(metric, narrow) {
    const better = { maximize: ", more is better", minimize: ", less is better" };
    const unit = metric.unit ? ` (${metric.unit})` : "";
    return metric.name + unit + (narrow ? "" : better[metric.direction] || "");
  }

  class Scatter {
    constructor(root) {
      this.data = JSON.parse(document.getElementById(root.dataset.source).textContent);
      this.plot = root.querySelector(".plot");
      this.detail = root.querySelector(".detail");
      this.status = root.querySelector(".status");
      this.xSelect = root.querySelector(".axis-x");
      this.ySelect = root.querySelector(".axis-y");
      for (const each of [this.xSelect, this.ySelect]) {
        each.addEventListener("change", () => this.draw());
      }
      this.plot.addEventListener("keydown", (event) => this.onKey(event));
      this.width = 0;
      new ResizeObserver(() => {
        if (Math.abs(this.plot.clientWidth - this.width) > 8) this.draw();
      }).observe(this.plot);
      this.draw();
    }

    draw() {
      const [xi, yi] = [Number(this.xSelect.value), Number(this.ySelect.value)];
      const trials = this.data.trials.filter((t) => t.m[xi] !== null && t.m[yi] !== null);
      this.width = this.plot.clientWidth || 640;
      const height = Math.min(430, Math.max(280, this.width * 0.66));
      this.plot.replaceChildren();
      this.order = [];
      if (!trials.length) {
        add(this.plot, "p", {}, "No configuration has both of these numbers.");
        return;
      }
      const svg = add(this.plot, "svg", {
        viewBox: `0 0 ${this.width} ${height}`, role: "group",
        "aria-label": `${this.data.metrics[yi].name} over ${this.data.metrics[xi].name}`,
      });
      this.axes(svg, trials, xi, yi, height);
      this.frontLine(svg, trials, xi, yi);
      const rank = { "out of bounds": 0, dominated: 1, front: 2 };
      const back = [...trials].sort((a, b) => rank[a.g] - rank[b.g]);
      const marks = new Map(back.map((trial) => [trial, this.point(svg, trial, xi, yi)]));
      this.order = [...trials].sort((a, b) => a.m[xi] - b.m[xi] || a.m[yi] - b.m[yi])
        .map((trial) => marks.get(trial));
      const first = this.order.find((each) => each.classList.contains("front")) || this.order[0];
      if (first) first.setAttribute("tabindex", "0");
    }

    axes(svg, trials, xi, yi, height) {
      const range = (i) => [Math.min(...trials.map((t) => t.m[i])), Math.max(...trials.map((t) => t.m[i]))];
      const [xs, ys] = [ticks(...range(xi), this.width < 500 ? 4 : 6), ticks(...range(yi), 5)];
      const [left, right, top, bottom] = [64, this.width - 14, 12, height - 48];
      const scale = (list, from, to) => (v) => from + ((v - list[0]) / (list.at(-1) - list[0])) * (to - from);
      this.x = scale(xs, left, right);
      this.y = scale(ys, bottom, top);
      for (const t of ys) {
        add(svg, "line", { x1: left, x2: right, y1: this.y(t), y2: this.y(t), class: "grid" });
        add(svg, "text", { x: left - 6, y: this.y(t) + 4, "text-anchor": "end" }, shown(t));
      }
      add(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
      for (const t of xs) {
        add(svg, "text", { x: this.x(t), y: bottom + 16, "text-anchor": "middle" }, shown(t));
      }
      const middle = (top + bottom) / 2;
      const narrow = this.width < 440;
      const centre = { "text-anchor": "middle", class: "label" };
      add(svg, "text", { x: (left + right) / 2, y: height - 10, ...centre }, label(this.data.metrics[xi], narrow));
      add(svg, "text", { x: 13, y: middle, transform: `rotate(-90 13 ${middle})`, ...centre },
        label(this.data.metrics[yi], narrow));
    }

    /* The front is a line only where both axes are what was searched for. */
    frontLine(svg, trials, xi, yi) {
      const searched = this.data.metrics.filter((each) => each.direction).length === 2;
      if (!searched || !this.data.metrics[xi].direction || !this.data.metrics[yi].direction) return;
      const best = trials.filter((t) => t.g === "front").sort((a, b) => a.m[xi] - b.m[xi]);
      const points = best.map((t) => `${this.x(t.m[xi])},${this.y(t.m[yi])}`).join(" ");
      if (xi !== yi) add(svg, "polyline", { points, class: "front-line" });
    }

    point(svg, trial, xi, yi) {
      const [x, y] = [this.x(trial.m[xi]), this.y(trial.m[yi])];
      const group = add(svg, "g", {
        class: `point ${trial.g === "out of bounds" ? "out" : trial.g}`, tabindex: "-1",
        role: "button", "data-trial": trial.n, "aria-label": `${this.title(trial)}: ${this.numbers(trial)}`,
      });
      const r = SHAPES[trial.g];
      add(group, "circle", { cx: x, cy: y, r: 9, class: "hit" });
      if (trial.g === "out of bounds") {
        add(group, "path", { d: `M${x - r},${y - r}l${2 * r},${2 * r}m0,${-2 * r}l${-2 * r},${2 * r}`, class: "mark" });
      } else {
        add(group, "circle", { cx: x, cy: y, r, class: "mark" });
      }
      group.addEventListener("pointerenter", () => this.show(trial));
      group.addEventListener("focus", () => this.show(trial));
      group.addEventListener("click", () => this.take(trial));
      return group;
    }

    title(trial) {
      return `Trial ${trial.n}, ${trial.g === "front" ? "on the front" : trial.g}`;
    }

    numbers(trial) {
      return this.data.metrics
        .map((each, i) => `${each.name} ${shown(trial.m[i])}${each.unit ? ` ${each.unit}` : ""}`).join(", ");
    }

    show(trial) {
      if (this.current === trial.n) return;
      this.current = trial.n;
      this.detail.replaceChildren();
      add(this.detail, "h4", {}, this.title(trial));
      const list = add(this.detail, "dl");
      this.data.metrics.forEach((each, i) => {
        add(list, "dt", {}, each.name);
        add(list, "dd", {}, `${shown(trial.m[i])} ${each.unit}`);
      });
      add(this.detail, "pre", {}, brief(this.data, trial));
    }

    async take(trial) {
      this.show(trial);
      const text = toml(this.data, trial);
      const done = await copy(text);
      if (!done) this.detail.querySelector("pre").textContent = text;
      this.status.textContent = done
        ? `The TOML of trial ${trial.n} is copied.`
        : `The browser does not let this page copy; the TOML of trial ${trial.n} is shown beside the plot.`;
    }

    onKey(event) {
      const at = this.order.indexOf(event.target.closest(".point"));
      if (at < 0) return;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.take(this.data.trials.find((t) => String(t.n) === this.order[at].dataset.trial));
        return;
      }
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const onlyFront = event.key === "ArrowUp" || event.key === "ArrowDown";
      let next = at + step;
      while (onlyFront && this.order[next] && !this.order[next].classList.contains("front")) next += step;
      if (!this.order[next]) return;
      this.order[at].setAttribute("tabindex", "-1");
      this.order[next].setAttribute("tabindex", "0");
      this.order[next].focus();
    }
  }

  document.querySelectorAll(".scatter").forEach((root) => new Scatter(root));
  document.querySelectorAll(".colour-by").forEach((select) => {
    const graph = select.closest("section").querySelector(".graph");
    select.addEventListener("change", () => { graph.dataset.colour = select.value; });
  });
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((each) => { each.open = true; });
  });
})();
