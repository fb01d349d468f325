// The loss, what it was forecast to be, what was given up, and the marks of what happened beneath it.
(function (page) {
  "use strict";

  const { el, svg } = page;
  const ORDER = ["first", "second", "third", "fourth"];
  const SIGNS = {
    amendment: "M0-5L5 0L0 5L-5 0Z",
    rollback: "M4-5L-5 0L4 5Z",
    alert: "M0-6L6 5L-6 5Z",
    note: "M-4-4H4V4H-4Z",
    paper: "M-4-4H4V4H-4Z",
    branch: "M-4 5L0-5L4 5",
    control: "M-4 5L0-5L4 5",
    attempt: "M0-3A3 3 0 1 1 0 3A3 3 0 1 1 0-3",
    end: "M-1.5-6H1.5V6H-1.5Z",
    forecast: "M-5 0H5",
    checkpoint: "M0-4V4",
  };

  /** Domains drawn on the chart, by name, in the order in which they were chosen. */
  page.chosen = [];

  let chart = null;
  let lost = [];
  let forecast = null;

  page.startLoss = function () {
    chart = page.chart(page.at("loss-chart"), {
      id: "loss", title: "Loss", unit: "nats a token", height: 340, smooth: true, phases: true, under: page.at("loss-track-box"),
      lines() {
        const lines = [{ slug: "loss", label: "all", style: "main" }];
        page.chosen.forEach((name, n) => {
          const line = page.state.domains.findIndex((domain) => domain.name === name);
          if (line >= 0) lines.push({ slug: "loss-by-domain", label: name, style: ORDER[n], line });
        });
        lines.push({ slug: "loss_held_out", label: "held out", style: "dots" });
        return lines;
      },
      extra: () => [...abandoned(), ...forecastLines()],
    });
    track();
    controls();
  };

  page.showLoss = async function () {
    [lost, forecast] = await Promise.all([
      page.state.abandoned ? page.data("abandoned", page.state.ledger.records) : [],
      page.state.forecast ? page.data("forecast", page.state.forecast) : null,
    ]);
    showRange();
    await chart.draw();
    drawTrack();
    const has = (slug) => Boolean(page.seriesOf(slug));
    page.at("loss-key").replaceChildren(...[
      key("main", "all text, averaged; behind it every step, or the least and most of each bin"),
      has("loss_held_out") ? key("dots", "held-out documents") : null,
      lost.length ? key("lost", "trained, then given up") : null,
      forecast ? key("forecast", `forecast before the first step, and its ${percent(forecast.level)} band`) : null,
      forecast && forecast.ladder.length ? key("rung", "smaller runs that it was made from, by how far each was") : null,
    ].filter(Boolean));
    page.at("forecast-said").hidden = !forecast;
    if (forecast) page.at("forecast-said").replaceChildren(...told(forecast));
  };

  const percent = (share) => `${page.number(Number(share) * 100)}%`;

  /** What was forecast, by whom, and how it went. */
  function told({ by, seq, rungs, held, score }) {
    const from = rungs.map((rung) => `${rung.name} (${page.short(rung.active)} active parameters)`).join(", ");
    const parts = [`Forecast by ${by} before the first step`, rungs.length ? `, from ${from}` : "", `; record ${seq}. `];
    if (held[1]) parts.push(`Left out and forecast from the smaller ones, ${held[0]} of ${held[1]} final losses lay inside the band. `);
    if (score) {
      const all = score.finals.find((final) => final.name === "loss_held_out" && !final.domain) || score.finals.find((final) => !final.domain);
      parts.push(`Scored in record ${score.seq}: ${score.inside} of ${page.some(score.points, "point")} inside the band`);
      if (all) parts.push(`; the final loss was forecast as ${page.number(all.forecast)} and came out as ${page.number(all.measured)}, ${(Math.abs(all.error) * 100).toFixed(2)}% off`);
      parts.push(".");
    }
    return [page.harmless(parts.join(""))];
  }

  function key(style, text) {
    const sign = style === "dots"
      ? svg("circle", { class: "dot", cx: 11, cy: 6, r: 3.2 })
      : svg("path", { class: `line ${style}`, d: "M1 6H21" });
    return el("li", null, svg("svg", { width: 22, height: 12, "aria-hidden": "true" }, sign), text);
  }

  const numbers = (values) => Float64Array.from(values, (value) => (value === null ? NaN : value));

  function abandoned() {
    return lost.filter((line) => line.last >= page.range.first && line.first <= page.range.last).map((line) => ({
      label: `attempt ${line.attempt}, given up`, style: "lost", steps: numbers(line.steps), values: numbers(line.loss),
    }));
  }

  function forecastLines() {
    if (!forecast) return [];
    const whole = ["loss", "loss_held_out"].find((own) => forecast.curves.some(({ slug }) => slug === own));
    const shown = forecast.curves.filter(({ slug, domain }) => slug === whole || (slug === "loss-by-domain" && page.chosen.includes(domain)));
    const lines = shown.map((curve) => ({
      label: `forecast${curve.domain === null ? "" : ` ${curve.domain}`}${curve.slug === "loss_held_out" ? ", held out" : ""}`, style: "forecast",
      steps: numbers(curve.steps), values: numbers(curve.loss), low: numbers(curve.low), high: numbers(curve.high),
    }));
    for (const rung of forecast.ladder) {
      lines.push({ label: rung.name, style: "rung", steps: numbers(rung.steps), values: numbers(rung.loss) });
    }
    return lines;
  }

  // --- what happened, beneath the curve ---

  let marks = [];
  let at = -1;

  function track() {
    const strip = page.at("loss-track");
    strip.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Enter" && marks[at]) page.openEvent(marks[at].seq);
      if (move === undefined || !marks.length) return;
      event.preventDefault();
      at = Math.max(0, Math.min(marks.length - 1, at + move));
      tell();
    });
    strip.addEventListener("focus", () => {
      if (at < 0 && marks.length) {
        at = marks.length - 1;
        tell();
      }
    });
    strip.addEventListener("pointermove", (event) => {
      const x = event.clientX - strip.getBoundingClientRect().left;
      const near = marks.map((mark, n) => [Math.abs(mark.x - x), n]).sort((a, b) => a[0] - b[0] || b[1] - a[1])[0];
      if (near && near[0] < 12 && near[1] !== at) {
        at = near[1];
        tell();
      }
    });
    strip.addEventListener("click", () => marks[at] && page.openEvent(marks[at].seq));
    page.range.on(drawTrack);
    new ResizeObserver(drawTrack).observe(strip.parentElement);
  }

  function drawTrack() {
    const strip = page.at("loss-track");
    const wide = Math.max(240, strip.parentElement.clientWidth);
    const { first, last } = page.range;
    const kept = marks[at] && marks[at].seq;
    const place = (step) => 46 + ((step - first) / Math.max(1, last - first)) * (wide - 60);
    marks = page.state.marks
      .filter(([step]) => step >= first - 1 && step <= last)
      .map(([step, kind, seq]) => ({ kind, seq, step, x: Math.max(46, place(step)) }));
    at = marks.findIndex((mark) => mark.seq === kept);
    strip.setAttribute("viewBox", `0 0 ${wide} 26`);
    strip.replaceChildren(
      svg("line", { x1: 46, x2: wide - 14, y1: 13, y2: 13, class: "rail" }),
      ...marks.map((mark) => svg("path", { class: `mark ${mark.kind}`, d: SIGNS[mark.kind] || SIGNS.note, transform: `translate(${mark.x.toFixed(1)} 13)` })));
    page.at("loss-track-box").hidden = !page.state.marks.length;
  }

  async function tell() {
    const mark = marks[at];
    page.at("loss-track").querySelectorAll(".mark").forEach((shape, n) => shape.classList.toggle("here", n === at));
    const event = await page.eventOf(mark.seq);
    if (marks[at] !== mark || !event) return;
    const by = event.who ? `, by ${event.who}` : "";
    page.at("loss-mark").textContent = page.harmless(`Step ${page.count(mark.step)}, ${event.kind}${by}: ${event.said}${event.why ? ` \u2014 ${event.why}` : ""}`);
  }

  // --- the range that all charts show ---

  function controls() {
    const total = () => page.state.status.steps;
    const reached = () => Math.max(8, page.state.status.step);
    const span = () => page.range.last - page.range.first;
    const acts = {
      "range-all": () => page.range.reset(),
      "range-tenth": () => page.range.set(reached() - total() / 10, reached()),
      "range-hundredth": () => page.range.set(reached() - total() / 100, reached()),
      "range-back": () => page.range.set(page.range.first - span() / 2, page.range.last - span() / 2),
      "range-on": () => page.range.set(page.range.first + span() / 2, page.range.last + span() / 2),
    };
    for (const [id, act] of Object.entries(acts)) page.at(id).addEventListener("click", act);
    page.range.on(showRange);
  }

  function showRange() {
    page.at("range").textContent = `Steps ${page.count(page.range.first)} to ${page.count(page.range.last)}`;
  }
})((globalThis.page = globalThis.page || {}));
