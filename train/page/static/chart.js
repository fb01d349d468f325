// Charts over steps: one component for all of them. Drag to look closer, arrow keys to read values, Escape for the whole.
(function (page) {
  "use strict";

  const { el, svg } = page;
  const LEFT = 46;
  const RIGHT = 14;
  const TOP = 18;
  const BOTTOM = 24;

  /** Round numbers between two numbers, about so many. */
  page.ticks = function (low, high, about) {
    const raw = (high - low) / Math.max(1, about);
    if (!(raw > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((n) => n * power >= raw) * power;
    const found = [];
    for (let n = Math.ceil(low / step); n * step <= high + step * 1e-9; n++) found.push(Number((n * step).toPrecision(12)));
    return found;
  };

  /** Path through the points that are numbers; it breaks at gaps, unless the points stand alone. */
  function pathOf(xs, ys, sparse) {
    let path = "";
    let pen = "M";
    for (let i = 0; i < xs.length; i++) {
      if (Number.isNaN(ys[i])) {
        if (!sparse) pen = "M";
        continue;
      }
      path += `${pen}${xs[i].toFixed(1)} ${ys[i].toFixed(1)}`;
      pen = "L";
    }
    return path;
  }

  function areaOf(xs, low, high) {
    const there = [...xs.keys()].filter((i) => !Number.isNaN(low[i]));
    if (there.length < 2) return "";
    const up = there.map((i) => `${xs[i].toFixed(1)} ${high[i].toFixed(1)}`);
    const down = there.reverse().map((i) => `${xs[i].toFixed(1)} ${low[i].toFixed(1)}`);
    return `M${up.join("L")}L${down.join("L")}Z`;
  }

  /** Mean over a few bins on either side, so that a noisy curve can be followed. */
  function smooth(values, reach) {
    const out = new Float64Array(values.length).fill(NaN);
    let [sum, count] = [0, 0];
    const add = (value, sign) => {
      if (!Number.isNaN(value)) [sum, count] = [sum + sign * value, count + sign];
    };
    for (let i = 0; i < Math.min(reach, values.length); i++) add(values[i], 1);
    for (let i = 0; i < values.length; i++) {
      if (i + reach < values.length) add(values[i + reach], 1);
      if (i - reach - 1 >= 0) add(values[i - reach - 1], -1);
      if (!Number.isNaN(values[i]) && count > 0) out[i] = sum / count;
    }
    return out;
  }

  /** Low and high of what is drawn, the first fiftieth left out where it would flatten the rest. */
  function bounds(lines, first, last) {
    const settled = first + (last - first) * 0.02;
    let [low, high] = [Infinity, -Infinity];
    for (const { steps, values } of lines) {
      for (let i = 0; i < values.length; i++) {
        if (Number.isNaN(values[i])) continue;
        if (steps[i] < settled && first === 1 && values.length > 50) continue;
        low = Math.min(low, values[i]);
        high = Math.max(high, values[i]);
      }
    }
    if (low > high) return null;
    const pad = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
    return [low >= 0 && low - pad < 0 ? 0 : low - pad, high + pad];
  }

  /**
   * Draw a chart into an element.
   *
   *   id, title, unit, height   what it is
   *   under                     an element to stand right beneath the plot
   *   lines()                   [{slug, label, style, line}]; ``line`` picks one domain of a series of domains
   *   extra(first, last)        more lines that are at hand: [{label, style, steps, values, low, high}]
   *
   * Styles: main, faint, dots, first to fourth (domains), band, forecast. Returns {draw}.
   */
  page.chart = function (host, spec) {
    const readout = el("output", { class: "readout", "aria-live": "polite", for: `${spec.id}-plot` });
    const plot = svg("svg", {
      id: `${spec.id}-plot`, class: "plot", tabindex: 0, role: "img",
      "aria-label": `${spec.title} by step. Arrow keys read values, plus and minus zoom, Escape shows the whole run.`,
    });
    const rows = el("div", null);
    const table = el("details", { class: "as-table" }, el("summary", null, "As a table"), rows);
    host.classList.add("chart");
    host.append(
      el("div", { class: "chart-head" }, el("h3", null, spec.title), spec.unit ? el("span", { class: "unit" }, spec.unit) : null, readout),
      plot, ...(spec.under ? [spec.under] : []), table);
    const state = { turn: 0, drawn: [], cursor: null, scale: null };

    const x = (step) => LEFT + ((step - page.range.first) / Math.max(1, page.range.last - page.range.first)) * state.scale.inner;
    const stepAt = (px) => {
      const share = Math.min(1, Math.max(0, (px - LEFT) / state.scale.inner));
      return page.range.first + share * (page.range.last - page.range.first);
    };

    async function gather(inner) {
      const { first, last } = page.range;
      const most = Math.max(200, inner * 2);
      const found = await Promise.all(spec.lines().map(async (line) => {
        const window = await page.window(line.slug, first, last, most);
        if (!window) return null;
        const pick = (values) => (line.line === undefined ? values : values[line.line]);
        const steps = Float64Array.from({ length: window.count }, (_, i) => window.first + (i + 0.5) * window.width - 0.5);
        const mean = pick(window.mean);
        return {
          ...line, steps, values: mean,
          low: window.level && window.min ? window.min : null, high: window.level && window.max ? window.max : null,
        };
      }));
      return [...found.filter(Boolean), ...(spec.extra ? spec.extra(first, last) : [])];
    }

    async function draw() {
      const turn = ++state.turn;
      const wide = Math.max(240, Math.floor(host.clientWidth));
      const inner = wide - LEFT - RIGHT;
      const lines = await gather(inner);
      if (turn !== state.turn) return;
      state.drawn = lines;
      const tall = spec.height;
      const range = bounds(lines.filter((line) => line.style !== "lost"), page.range.first, page.range.last) || [0, 1];
      state.scale = { wide, tall, inner, range };
      const y = (value) => TOP + (1 - (value - range[0]) / (range[1] - range[0])) * (tall - TOP - BOTTOM);
      plot.setAttribute("viewBox", `0 0 ${wide} ${tall}`);
      plot.setAttribute("height", tall);
      const clip = svg("clipPath", { id: `${spec.id}-clip` },
        svg("rect", { x: LEFT, y: TOP - 6, width: inner + 4, height: tall - TOP - BOTTOM + 8 }));
      const shapes = svg("g", { "clip-path": `url(#${spec.id}-clip)` });
      for (const line of lines) shapes.append(...shapesOf(line, y));
      plot.replaceChildren(clip, grid(y), shapes, ...labels(lines, y), svg("g", { class: "cursor" }));
      if (table.open) fillTable();
      point(state.cursor);
    }

    function grid(y) {
      const { wide, tall, inner, range } = state.scale;
      const group = svg("g", { class: "grid" });
      for (const value of page.ticks(range[0], range[1], tall > 200 ? 5 : 4)) {
        const at = y(value);
        group.append(
          svg("line", { x1: LEFT, x2: wide - RIGHT, y1: at, y2: at }),
          svg("text", { x: LEFT - 8, y: at + 4, "text-anchor": "end" }, page.number(value)));
      }
      for (const step of page.ticks(page.range.first, page.range.last, Math.max(2, inner / 110))) {
        if (Number.isInteger(step)) {
          group.append(svg("text", { x: x(step), y: tall - 6, "text-anchor": "middle" }, page.count(step)));
        }
      }
      page.state.phases.forEach((phase, n) => {
        const from = Math.max(phase.first, page.range.first);
        if (phase.last < page.range.first || phase.first > page.range.last) return;
        if (n && phase.first > page.range.first) {
          const at = x(phase.first - 0.5);
          group.append(svg("line", { class: "phase", x1: at, x2: at, y1: TOP - 6, y2: tall - BOTTOM }));
        }
        const room = x(Math.min(phase.last, page.range.last)) - x(from);
        const same = n && page.state.phases[n - 1].name === phase.name;
        if (spec.phases && room > phase.name.length * 7 && !same) {
          group.append(svg("text", { class: "phase", x: x(from) + 6, y: TOP - 6 }, page.harmless(phase.name)));
        }
      });
      return group;
    }

    function shapesOf(line, y) {
      const xs = line.steps.length ? Array.from(line.steps, x) : [];
      const ys = Array.from(line.values, y);
      const shapes = [];
      if (line.low && line.high) {
        shapes.push(svg("path", { class: `band ${line.style}`, d: areaOf(xs, Array.from(line.low, y), Array.from(line.high, y)) }));
      }
      if (line.style === "dots") {
        xs.forEach((at, i) => {
          if (!Number.isNaN(ys[i])) shapes.push(svg("circle", { class: "dot", cx: at.toFixed(1), cy: ys[i].toFixed(1), r: 3.2 }));
        });
        return shapes;
      }
      const noisy = line.style === "main" && spec.smooth && ys.length > 60;
      const single = ys.filter((value) => !Number.isNaN(value)).length === 1;
      if (single) shapes.push(...xs.map((at, i) => (Number.isNaN(ys[i]) ? null : svg("circle", { class: "dot", cx: at, cy: ys[i], r: 2.5 }))).filter(Boolean));
      shapes.push(svg("path", { class: `line ${noisy ? "raw" : line.style}`, d: pathOf(xs, ys, line.style !== "main") }));
      if (noisy || /^(first|second|third|fourth)$/.test(line.style)) {
        const reach = Math.max(2, Math.round(ys.length / 60));
        const path = svg("path", { class: `line ${line.style}`, d: pathOf(xs, Array.from(smooth(ys, reach)), true) });
        if (noisy) shapes.push(path);
        else shapes[shapes.length - 1] = path;
      }
      return shapes;
    }

    /** Names at the right end of lines, moved apart where they would meet. */
    function labels(lines, y) {
      const { wide, tall } = state.scale;
      const named = lines.filter((line) => line.label && !["main", "dots", "lost"].includes(line.style)).map((line) => {
        const last = line.values.length - 1 - [...line.values].reverse().findIndex((value) => !Number.isNaN(value));
        return { line, at: y(line.values[Math.min(last, line.values.length - 1)]), x: x(line.steps[Math.min(last, line.steps.length - 1)]) };
      }).filter((label) => !Number.isNaN(label.at)).sort((a, b) => a.at - b.at);
      named.forEach((label, n) => {
        if (n && label.at < named[n - 1].at + 13) label.at = named[n - 1].at + 13;
        label.at = Math.min(tall - BOTTOM, Math.max(TOP + 4, label.at));
      });
      return named.map(({ line, at, x: end }) =>
        svg("text", { class: `name ${line.style}`, x: Math.min(end, wide - RIGHT) - 4, y: at - 5, "text-anchor": "end" }, page.harmless(line.label)));
    }

    /** What all lines hold at a step, said and shown. */
    function point(step) {
      state.cursor = step;
      const group = plot.querySelector(".cursor");
      if (!group || !state.scale) return;
      if (step === null) {
        group.replaceChildren();
        readout.textContent = "";
        return;
      }
      const at = x(step);
      group.replaceChildren(svg("line", { x1: at, x2: at, y1: TOP - 6, y2: state.scale.tall - BOTTOM }));
      readout.replaceChildren(`step ${page.count(Math.round(step))}`, ...state.drawn.map((line) => {
        const i = nearest(line, step);
        if (i < 0) return null;
        const spread = line.low && line.high ? ` (${page.number(line.low[i])} to ${page.number(line.high[i])})` : "";
        return el("span", null, `${page.harmless(line.label || spec.title.toLowerCase())} ${page.number(line.values[i])}${spread}`);
      }).filter(Boolean));
    }

    function nearest(line, step) {
      let best = -1;
      const reach = (page.range.last - page.range.first) / (line.style === "dots" ? 30 : 12);
      for (let i = 0; i < line.steps.length; i++) {
        if (Number.isNaN(line.values[i])) continue;
        const off = Math.abs(line.steps[i] - step);
        if (off <= reach && (best < 0 || off <= Math.abs(line.steps[best] - step))) best = i;
      }
      return best;
    }

    function fillTable() {
      const { first, last } = page.range;
      const steps = [...new Set(Array.from({ length: 21 }, (_, i) => Math.round(first + ((last - first) * i) / 20)))];
      const shown = state.drawn.filter((line) => line.style !== "lost");
      rows.replaceChildren(page.table(`${spec.title} at some steps`,
        [["step", true], ...shown.map((line) => [page.harmless(line.label || spec.title), true])],
        steps.map((step) => [page.count(step), ...shown.map((line) => {
          const i = nearest(line, step);
          return i < 0 ? "" : page.number(line.values[i]);
        })])));
    }

    table.addEventListener("toggle", () => table.open && fillTable());

    // --- pointers and keys ---

    let began = null;
    const place = (event) => stepAt(event.clientX - plot.getBoundingClientRect().left);
    plot.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && state.scale) began = { step: place(event), x: event.clientX };
    });
    plot.addEventListener("pointermove", (event) => {
      if (!state.scale) return;
      point(place(event));
      if (!began || Math.abs(event.clientX - began.x) < 6) return;
      const [a, b] = [x(began.step), x(place(event))];
      plot.querySelector(".cursor").append(
        svg("rect", { class: "pick", x: Math.min(a, b), width: Math.abs(b - a), y: TOP - 6, height: state.scale.tall - TOP - BOTTOM + 6 }));
    });
    plot.addEventListener("pointerup", (event) => {
      if (began && Math.abs(event.clientX - began.x) >= 6) {
        const ends = [began.step, place(event)].sort((a, b) => a - b);
        page.range.set(...ends);
      }
      began = null;
    });
    plot.addEventListener("pointerleave", () => {
      began = null;
      point(null);
    });
    plot.addEventListener("dblclick", () => page.range.reset());
    plot.addEventListener("keydown", (event) => {
      const { first, last } = page.range;
      const span = last - first;
      const here = state.cursor ?? Math.min(last, page.state.status.step);
      const move = Math.max(1, span / (event.shiftKey ? 200 : 40));
      const keys = {
        ArrowLeft: () => point(Math.max(first, here - move)),
        ArrowRight: () => point(Math.min(last, here + move)),
        Home: () => point(first),
        End: () => point(Math.min(last, page.state.status.step)),
        "+": () => page.range.set(here - span / 4, here + span / 4),
        "-": () => page.range.set(here - span, here + span),
        Escape: () => page.range.reset(),
      };
      const act = keys[event.key === "=" ? "+" : event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });

    page.range.on(draw);
    new ResizeObserver(() => {
      if (state.scale && Math.abs(host.clientWidth - state.scale.wide) > 2) draw();
    }).observe(host);
    return { draw };
  };

  /** A line as small as a word; its meaning stands beside it. */
  page.sparkline = function (values, wide, tall) {
    const there = values.filter((value) => !Number.isNaN(value));
    if (there.length < 2) return el("span", null, "");
    const cut = there.slice(Math.floor(there.length * 0.05)).sort((a, b) => a - b);
    const [low, high] = [cut[0], cut[Math.max(0, Math.ceil(cut.length * 0.98) - 1)]];
    const xs = values.map((_, i) => 1 + (i / Math.max(1, values.length - 1)) * (wide - 2));
    const ys = values.map((value) => 2 + (1 - Math.min(1.2, (value - low) / (high - low || 1))) * (tall - 4));
    return svg("svg", { class: "spark", viewBox: `0 0 ${wide} ${tall}`, width: wide, height: tall, "aria-hidden": "true" },
      svg("path", { class: "line first", d: pathOf(xs, Array.from(smooth(ys, 2)), true) }));
  };
})((globalThis.page = globalThis.page || {}));
