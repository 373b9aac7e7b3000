"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const SHAPES = { front: 6, dominated: 3.6, "out of bounds": 4.5 };
  const LONG_RANGE = 8; // times the least: from here on an axis of costs is logarithmic
  const REACH = 26; // pixels from a dot at which the pointer still means it

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

  /* Long numbers along an axis would run into each other: 3 M for 3,000,000. */
  function onAxis(value, list) {
    const most = Math.max(...list.map(Math.abs));
    const [size, unit] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find((each) => most >= Math.max(each[0], 1e5)) || [1, ""];
    return value && unit ? `${shown(value / size)} ${unit}` : shown(value);
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

  /* Round numbers of which each is some times the one before. */
  function logTicks(low, high) {
    for (const factors of [[1, 2, 5], [1, 3], [1]]) {
      const ladder = [];
      for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)) + 1; p += 1) {
        ladder.push(...factors.map((each) => Number((each * 10 ** p).toPrecision(12))));
      }
      const first = ladder.findLastIndex((each) => each <= low);
      const last = ladder.findIndex((each, place) => place > first && each >= high);
      if (last - first < 7 || factors.length === 1) return ladder.slice(first, last + 1);
    }
    return [];
  }

  /* Costs that differ by an order of magnitude are compared by their ratios. */
  function isLogarithmic(metric, low, high) {
    return metric.direction === "minimize" && low > 0 && high > LONG_RANGE * low;
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

  /* The same in a few words for each table, without what is not set; tables without any come last. */
  function brief(data, trial) {
    const lines = new Map();
    data.keys.forEach((path, place) => {
      const value = trial.c[place] < 0 ? null : data.options[place][trial.c[place]];
      const table = path.slice(0, -1).filter((each) => each !== "config").join(".") || "settings";
      if (!lines.has(table)) lines.set(table, []);
      const name = path.at(-1).replace(/_width$/, "");
      if (value !== null) lines.get(table).push(name === "name" ? String(value) : `${name} ${value}`);
    });
    const set = [...lines].filter(([, parts]) => parts.length);
    const bare = [...lines].filter(([, parts]) => !parts.length).map(([table]) => table);
    const named = set.map(([table, parts]) => [table, parts.join(", ")]);
    return bare.length ? [...named, [data.prefix.length ? "float" : "nothing set", bare.join(", ")]] : named;
  }

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const focused = document.activeElement; // who comes by keyboard continues from there
      const area = add(document.body, "textarea", { style: "position:fixed;opacity:0" });
      area.value = text;
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      focused.focus({ preventScroll: true });
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
      this.plot.addEventListener("focusin", (event) => this.onFocus(event));
      this.plot.addEventListener("pointermove", (event) => this.onMove(event));
      this.plot.addEventListener("click", (event) => this.onClick(event));
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
      this.svg = svg;
      this.axes(svg, trials, xi, yi, height);
      this.baseline(svg, yi);
      this.frontLine(svg, trials, xi, yi);
      const rank = { "out of bounds": 0, dominated: 1, front: 2 };
      const back = [...trials].sort((a, b) => rank[a.g] - rank[b.g]);
      const marks = new Map(back.map((trial) => [trial, this.point(svg, trial, xi, yi)]));
      this.order = [...trials].sort((a, b) => a.m[xi] - b.m[xi] || a.m[yi] - b.m[yi])
        .map((trial) => marks.get(trial));
      this.ring = add(svg, "circle", { r: 10, class: "ring" });
      this.choose(this.order.find((each) => each.trial === this.chosen) || this.first(yi));
    }

    /* What is shown at first: the best of the front by the vertical axis. */
    first(yi) {
      const front = this.order.filter((each) => each.trial.g === "front");
      const less = this.data.metrics[yi].direction === "minimize";
      const better = (a, b) => (less ? a.m[yi] < b.m[yi] : a.m[yi] > b.m[yi]);
      return (front.length ? front : this.order)
        .reduce((best, each) => (better(each.trial, best.trial) ? each : best));
    }

    axes(svg, trials, xi, yi, height) {
      const range = (i, more) => [...more, ...trials.map((t) => t.m[i])].reduce(
        ([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
      const [left, right, top, bottom] = [64, this.width - 24, 12, height - 48];
      const [xs, x] = this.axis(xi, range(xi, []), this.width < 500 ? 4 : 6, left, right);
      const [ys, y] = this.axis(yi, range(yi, this.level(yi)), 5, bottom, top);
      [this.x, this.y, this.edges] = [x, y, [left, right]];
      for (const t of ys) {
        add(svg, "line", { x1: left, x2: right, y1: this.y(t), y2: this.y(t), class: "grid" });
        add(svg, "text", { x: left - 6, y: this.y(t) + 4, "text-anchor": "end" }, onAxis(t, ys));
      }
      add(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
      for (const t of xs) {
        add(svg, "text", { x: this.x(t), y: bottom + 16, "text-anchor": "middle" }, onAxis(t, xs));
      }
      const middle = (top + bottom) / 2;
      const narrow = this.width < 440;
      const centre = { "text-anchor": "middle", class: "label" };
      add(svg, "text", { x: (left + right) / 2, y: height - 10, ...centre }, label(this.data.metrics[xi], narrow));
      add(svg, "text", { x: 13, y: middle, transform: `rotate(-90 13 ${middle})`, ...centre },
        label(this.data.metrics[yi], narrow));
    }

    /* The ticks of an axis, and where a value is along it. */
    axis(place, [low, high], count, from, to) {
      const isLog = isLogarithmic(this.data.metrics[place], low, high);
      const list = isLog ? logTicks(low, high) : ticks(low, high, count);
      const at = isLog ? Math.log : (value) => value;
      const [first, last] = [at(list[0]), at(list.at(-1))];
      return [list, (value) => from + ((at(value) - first) / (last - first)) * (to - from)];
    }

    /* What the network that the search started from has on the vertical axis, if it is known. */
    level(yi) {
      const known = this.data.baseline.metrics || {};
      const { name } = this.data.metrics[yi];
      return name in known ? [known[name]] : [];
    }

    baseline(svg, yi) {
      for (const value of this.level(yi)) {
        const [[left, right], at] = [this.edges, this.y(value)];
        add(svg, "line", { x1: left, x2: right, y1: at, y2: at, class: "baseline" });
        add(svg, "text", { x: left + 6, y: at - 5, class: "baseline-name" },
          `${this.data.baseline.name}: ${shown(value)}`);
      }
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
      const r = SHAPES[trial.g];
      const named = {
        class: `point ${trial.g === "out of bounds" ? "out" : trial.g}`, tabindex: "-1",
        role: "button", "data-trial": trial.n, "aria-label": `${this.title(trial)}: ${this.numbers(trial)}`,
      };
      const mark = trial.g === "out of bounds"
        ? add(svg, "path", { d: `M${x - r},${y - r}l${2 * r},${2 * r}m0,${-2 * r}l${-2 * r},${2 * r}`, ...named })
        : add(svg, "circle", { cx: x, cy: y, r, ...named });
      return Object.assign(mark, { trial, at: [x, y] });
    }

    /* The configuration nearest to the pointer: dots are small, and fingers are not. */
    nearest(event) {
      if (!this.order.length) return null;
      const box = this.svg.getBoundingClientRect();
      const scale = this.width / box.width;
      const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
      let [found, least] = [null, REACH * REACH];
      for (const each of this.order) {
        const away = (each.at[0] - x) ** 2 + (each.at[1] - y) ** 2;
        const closer = each.trial.g === "front" ? away <= least : away < least;
        if (closer) [found, least] = [each, away];
      }
      return found;
    }

    onMove(event) {
      if (event.pointerType === "touch") return;
      const found = this.nearest(event);
      this.plot.classList.toggle("near", found !== null);
      if (found) this.choose(found);
    }

    onClick(event) {
      const found = event.target.closest(".point") || this.nearest(event);
      if (found) this.take(found);
    }

    onFocus(event) {
      if (event.target.trial) this.choose(event.target);
    }

    title(trial) {
      return `Trial ${trial.n}, ${trial.g === "front" ? "on the front" : trial.g}`;
    }

    numbers(trial) {
      return this.data.metrics
        .map((each, i) => `${each.name} ${shown(trial.m[i])}${each.unit ? ` ${each.unit}` : ""}`).join(", ");
    }

    choose(mark) {
      if (this.stop) this.stop.setAttribute("tabindex", "-1");
      this.stop = mark;
      mark.setAttribute("tabindex", "0");
      this.ring.setAttribute("cx", mark.at[0]);
      this.ring.setAttribute("cy", mark.at[1]);
      if (this.chosen !== mark.trial) this.show(mark.trial);
    }

    show(trial) {
      this.chosen = trial;
      this.detail.replaceChildren();
      const head = add(this.detail, "div", { class: "detail-head" });
      add(head, "h3", {}, this.title(trial));
      const button = add(head, "button", { type: "button" }, "Copy TOML");
      button.addEventListener("click", () => this.copied(trial));
      const list = add(this.detail, "dl");
      this.data.metrics.forEach((each, i) => {
        add(list, "dt", {}, each.name);
        add(list, "dd", {}, `${shown(trial.m[i])} ${each.unit}`);
      });
      for (const [table, words] of brief(this.data, trial)) {
        const line = add(this.detail, "p", { class: "rule" });
        add(line, "strong", {}, `${table}: `);
        line.append(words);
      }
    }

    take(mark) {
      this.choose(mark);
      return this.copied(mark.trial);
    }

    async copied(trial) {
      const text = toml(this.data, trial);
      const done = await copy(text);
      if (!done) add(this.detail, "pre", {}, text);
      this.status.textContent = done
        ? `The TOML of trial ${trial.n} is copied.`
        : `The browser does not let this page copy; the TOML of trial ${trial.n} is shown beside the plot.`;
    }

    onKey(event) {
      const at = this.order.indexOf(event.target);
      if (at < 0) return;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.take(this.order[at]);
        return;
      }
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const onlyFront = event.key === "ArrowUp" || event.key === "ArrowDown";
      let next = at + step;
      while (onlyFront && this.order[next] && this.order[next].trial.g !== "front") next += step;
      if (this.order[next]) this.order[next].focus();
    }
  }

  document.querySelectorAll(".scatter").forEach((root) => new Scatter(root));
  document.querySelectorAll(".colour-by").forEach((select) => {
    const graph = select.closest("section").querySelector(".graph");
    select.addEventListener("change", () => { graph.dataset.colour = select.value; });
  });
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details:not(.minor)").forEach((each) => { each.open = true; });
  });
})();
