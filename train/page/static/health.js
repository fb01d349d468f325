// Norms, routing, pace: every other number that the run keeps, each in a small chart over the same steps.
(function (page) {
  "use strict";

  const { el } = page;
  const KNOWN = {
    grad_norm: ["Gradient norm", ""],
    lr: ["Learning rate", ""],
    tokens_per_s: ["Pace", "tokens a second"],
    expert_load_max: ["Busiest expert", "times the mean load, averaged over layers"],
  };
  const GROUPS = [
    ["Norms", /norm/],
    ["Routing", /expert|router|route|moe|drop|load|balance/],
    ["Pace and schedule", /^lr$|_per_s$|second|mfu|rate/],
    ["Other", /./],
  ];
  const SHOWN = 6;
  /** Groups get a heading once there are more charts than these. */
  const FEW = 8;
  const drawn = new Map();

  page.showHealth = function () {
    const names = page.state.series.list.filter((series) => !series.domains && !/^loss(_held_out)?$/.test(series.name));
    for (const [group, pattern] of GROUPS) {
      const own = names.filter((series) => GROUPS.find(([, p]) => p.test(series.name))[1] === pattern);
      for (const [n, series] of own.entries()) {
        if (drawn.has(series.slug)) continue;
        const figure = el("div", null);
        place(names.length > FEW ? group : "all", n).append(figure);
        const [title, unit] = KNOWN[series.name] || [series.name.replace(/[_/]+/g, " "), ""];
        const chart = page.chart(figure, {
          id: `health-${series.slug}`, title: page.harmless(title), unit, height: 150, smooth: series.name !== "lr",
          lines: () => [{ slug: series.slug, label: "", style: "main" }],
        });
        drawn.set(series.slug, chart);
      }
    }
    page.at("health-none").hidden = names.length > 0;
    return Promise.all([...drawn.values()].map((chart) => chart.draw()));
  };

  /** The grid of a group; what goes beyond the first few is folded away. */
  function place(group, n) {
    const id = `health-${group.toLowerCase().replace(/ /g, "-")}`;
    if (!page.at(id)) {
      const heading = group === "all" ? null : el("h3", { class: "group" }, group);
      page.at("health-charts").append(el("div", null, heading, el("div", { id, class: "small-charts" })));
    }
    if (group === "all" || n < SHOWN) return page.at(id);
    if (!page.at(`${id}-more`)) {
      page.at(id).after(el("details", null, el("summary", null, "More"), el("div", { id: `${id}-more`, class: "small-charts" })));
    }
    return page.at(`${id}-more`);
  }
})((globalThis.page = globalThis.page || {}));
