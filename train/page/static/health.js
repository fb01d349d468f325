// Norms, routing, pace: every other number that the run keeps, each in a small chart over the same steps.
(function (page) {
  "use strict";

  const { el } = page;
  const KNOWN = {
    grad_norm: ["Gradient norm", ""],
    lr: ["Learning rate", ""],
    tokens_per_s: ["Pace", "tokens a second"],
    step_s: ["Time a step", "seconds"],
    loading_s: ["Waiting for data", "seconds a step"],
    checkpoint_s: ["Writing checkpoints", "seconds"],
    mfu: ["Use of the accelerators", "of their peak"],
    memory: ["Memory of the accelerators", "bytes, at most"],
    host_memory: ["Memory of the host", "bytes"],
    total_tokens: ["Tokens", ""],
    expert_load_max: ["Busiest expert", "times the mean load, averaged over layers"],
    expert_load_min: ["Idlest expert", "times the mean load, of all layers"],
    expert_load_entropy: ["Evenness of experts", "entropy of their load, 1 is even"],
    drop_rate: ["Dropped", "of all choices of experts"],
    router_bias_max: ["Largest bias", "of any expert"],
    router_z_loss: ["Router z-loss", ""],
    z_loss: ["Z-loss", ""],
    bits_per_byte_held_out: ["Held-out text", "bits a byte"],
  };
  const GROUPS = [
    ["Norms", /norm/],
    ["Routing", /expert|router|route|moe|drop|load|balance/],
    ["Pace and schedule", /^lr$|_s$|second|mfu|rate|memory|total_tokens/],
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
        const [title, unit] = KNOWN[series.name] || [plain(series.name), ""];
        const chart = page.chart(figure, {
          id: `health-${series.slug}`, title: page.harmless(title), unit, height: 150, smooth: series.name !== "lr",
          lines: () => [{ slug: series.slug, label: "", style: "main" }],
        });
        drawn.set(series.slug, { figure, chart });
      }
    }
    page.at("health-none").hidden = names.length > 0;
    return draw();
  };

  /** Draw what can be seen: what is folded away loads nothing. */
  const draw = () => Promise.all([...drawn.values()].filter(({ figure }) => figure.offsetParent).map(({ chart }) => chart.draw()));

  const plain = (name) => name.replace(/[_/]+/g, " ").replace(/^./, (first) => first.toUpperCase());

  /** The grid of a group; what goes beyond the first few is folded away. */
  function place(group, n) {
    const id = `health-${group.toLowerCase().replace(/ /g, "-")}`;
    if (!page.at(id)) {
      const heading = group === "all" ? null : el("h3", { class: "group" }, group);
      page.at("health-charts").append(el("div", null, heading, el("div", { id, class: "small-charts" })));
    }
    if (group === "all" || n < SHOWN) return page.at(id);
    if (!page.at(`${id}-more`)) {
      page.at(id).after(el("details", { toggle: draw }, el("summary", null, "More"), el("div", { id: `${id}-more`, class: "small-charts" })));
    }
    return page.at(`${id}-more`);
  }
})((globalThis.page = globalThis.page || {}));
