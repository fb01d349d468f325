// Domains: what was planned of each, what was really trained on, and how well it is learned.
(function (page) {
  "use strict";

  const { el } = page;
  const MOST_CHOSEN = 4;
  const COLUMNS = [
    ["name", "Domain", false],
    ["realised", "Realised of planned", false],
    ["tokens", "Tokens", true],
    ["share", "Share", true],
    ["deviation", "Off plan", true, "Sequences above or below the exact share of what the run has fed"],
    ["epochs", "Epochs", true],
    ["loss", "Loss", true],
    ["held_out", "Held out", true],
    [null, "Loss so far", false],
  ];
  let order = ["realised", -1];
  let words = "";
  let curves = null;

  page.startMixture = function () {
    const head = COLUMNS.map(([field, name, number, about]) =>
      el("th", { scope: "col", class: number ? "number" : null, "data-field": field },
        field ? el("button", { type: "button", title: about, click: () => sortBy(field) }, name) : name));
    page.at("mixture-table").append(el("thead", null, el("tr", null, head)), el("tbody", null));
    page.at("mixture-find").addEventListener("input", (event) => {
      words = event.target.value.trim().toLowerCase();
      rows();
    });
  };

  function sortBy(field) {
    order = [field, order[0] === field ? -order[1] : field === "name" ? 1 : -1];
    rows();
  }

  page.showMixture = async function () {
    const total = page.state.domains.reduce((sum, domain) => sum + domain.realised, 0);
    for (const domain of page.state.domains) {
      domain.share = total ? domain.realised / total : 0;
      domain.deviation = domain.realised - domain.expected;
    }
    const worst = Math.max(0, ...page.state.domains.map((domain) => Math.abs(domain.deviation)));
    page.at("mixture-sum").textContent =
      `${page.some(page.state.domains.length, "domain")}; none strays more than ${worst.toFixed(2)} sequences from its exact share of the ${page.count(total)} that were learned.`;
    page.at("mixture-find").closest("p").hidden = page.state.domains.length <= 12;
    rows();
    if (page.seriesOf("loss-by-domain")) {
      curves = await page.window("loss-by-domain", 1, page.state.status.steps, 64);
      rows();
    }
  };

  function rows() {
    const [field, sign] = order;
    const shown = page.state.domains
      .map((domain, number) => ({ ...domain, number }))
      .filter((domain) => domain.name.includes(words))
      .sort((a, b) => sign * (field === "name" ? (a.name < b.name ? -1 : 1) : (a[field] ?? -Infinity) - (b[field] ?? -Infinity)));
    const most = Math.max(1, ...page.state.domains.map((domain) => Math.max(domain.planned, domain.realised)));
    for (const head of page.at("mixture-table").querySelectorAll("th[data-field]")) {
      const own = head.dataset.field === field;
      if (own) head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    page.at("mixture-table").querySelector("tbody").replaceChildren(...shown.map((domain) => row(domain, most)));
  }

  function row(domain, most) {
    const box = el("input", {
      type: "checkbox", id: `draw-${domain.name}`, change: (event) => choose(domain.name, event.target.checked),
    });
    box.checked = page.chosen.includes(domain.name);
    const weights = Object.entries(domain.weights).map(([phase, weight]) => `${phase} ${weight}`).join(", ");
    const label = el("label", { for: box.id, title: `weights: ${weights || "none"}` }, page.harmless(domain.name));
    const off = domain.deviation;
    return el("tr", null,
      el("th", { scope: "row" }, box, label),
      el("td", null, bar(domain, most)),
      el("td", { class: "number" }, page.short(domain.tokens)),
      el("td", { class: "number" }, `${(domain.share * 100).toFixed(domain.share < 0.1 ? 2 : 1)}%`),
      el("td", { class: "number" }, `${off < -0.005 ? "\u2212" : off > 0.005 ? "+" : ""}${Math.abs(off).toFixed(2)}`),
      el("td", { class: "number" }, domain.epochs.toFixed(domain.epochs < 0.1 ? 4 : 2)),
      el("td", { class: "number" }, page.number(domain.loss)),
      el("td", { class: "number" }, page.number(domain.held_out)),
      el("td", null, curves ? page.sparkline(Array.from(curves.mean[domain.number] || []), 110, 22) : ""));
  }

  /** Planned as an outline, realised as its filling. */
  function bar(domain, most) {
    const text = `${page.count(domain.realised)} of ${page.count(domain.planned)} sequences`;
    const [outline, filling] = [el("span", { class: "planned" }), el("span", { class: "realised" })];
    outline.style.width = `${(domain.planned / most) * 100}%`;
    filling.style.width = `${(domain.realised / most) * 100}%`;
    return el("div", { class: "planbar", title: text }, outline, filling, el("span", { class: "unseen" }, text));
  }

  function choose(name, on) {
    page.chosen = page.chosen.filter((chosen) => chosen !== name);
    if (on) page.chosen.push(name);
    // The charts stay readable: the one that was chosen first makes room.
    if (page.chosen.length > MOST_CHOSEN) {
      const gone = page.at(`draw-${page.chosen.shift()}`);
      if (gone) gone.checked = false;
    }
    page.showLoss();
  }
})((globalThis.page = globalThis.page || {}));
