// A step from the inside: its sequences by the plan, its documents by the tables, some texts, and their proofs.
(function (page) {
  "use strict";

  const { el } = page;
  const ROWS = 16;
  let turn = 0;

  page.startExplorer = function () {
    const input = page.at("step-number");
    page.at("step-form").addEventListener("submit", (event) => {
      event.preventDefault();
      page.openStep(Number(input.value));
    });
    const go = (step) => page.openStep(Math.max(1, Math.min(page.state.status.steps, step)));
    page.at("step-back").addEventListener("click", () => go(Number(input.value) - 1));
    page.at("step-on").addEventListener("click", () => go(Number(input.value) + 1));
    page.at("step-sample").addEventListener("click", () => {
      const { samples } = page.state;
      const later = samples.filter((step) => step > Number(input.value));
      if (samples.length) go(later.length ? later[0] : samples[0]);
    });
  };

  page.showExplorer = function () {
    const { status, samples } = page.state;
    page.at("step-number").max = status.steps;
    if (!page.at("step-number").value) page.at("step-number").value = samples[samples.length - 1] || Math.max(1, status.step);
    page.at("step-sample").hidden = !samples.length;
    page.at("step-lead").textContent = samples.length
      ? `Any step can be asked for; ${page.some(samples.length, "step shows", "steps show")} text and proofs.`
      : "Any step can be asked for; it is worked out here, from the plan.";
  };

  /** Show a step. */
  page.openStep = async function (step) {
    const own = ++turn;
    const out = page.at("step-result");
    page.at("step-number").value = step;
    out.setAttribute("aria-busy", "true");
    try {
      const parts = await shown(step);
      if (own === turn) out.replaceChildren(...parts);
    } catch (error) {
      if (own === turn) out.replaceChildren(page.failed(error));
    }
    out.removeAttribute("aria-busy");
  };

  async function shown(step) {
    const fed = page.state.stretches.filter((s) => s.first <= step && step <= s.last);
    const learned = fed.find((s) => !s.superseded);
    const plan = learned ? await page.planOfSegment(learned.segment) : await page.plan();
    if (!Number.isInteger(step) || step < 1 || step > plan.totalSteps) throw new Error(`the run has steps 1 to ${page.count(plan.totalSteps)}`);
    const [first, end] = plan.span(step);
    const record = learned ? await recordOf(step, learned) : null;
    const sample = page.state.samples.includes(step) || (page.state.served && page.state.texts && learned) ? await page.sample(step).catch(() => null) : null;
    const rows = Array.from({ length: Math.min(ROWS, end - first) }, (_, row) => plan.locate(first + row));
    return [
      summary(step, plan, first, end, record, fed),
      el("div", { class: "rows" }, await Promise.all(rows.map((at, row) => rowOf(plan, at, row, first, sample, record)))),
      end - first > ROWS ? moreRows(plan, first, end, record) : null,
    ].filter(Boolean);
  }

  /** The ledger's record of a learned step: {seq, line, body}. */
  async function recordOf(step, stretch) {
    const LINES = 1000;
    // Other records lie between those of steps, so it stands there or later.
    for (let tile = Math.floor((stretch.seq + step - stretch.first) / LINES); tile < page.state.ledger.tiles; tile++) {
      for (const [n, line] of (await page.ledgerTile(tile)).entries()) {
        if (!line.includes(`"step":${step},`) || !line.includes('"kind":"step"')) continue;
        const { kind, body, seq, hash } = JSON.parse(line);
        if (kind === "step" && body.step === step && body.attempt === stretch.attempt && tile * LINES + n >= stretch.seq) return { seq, line, body, hash };
      }
    }
    return null;
  }

  function summary(step, plan, first, end, record, fed) {
    const facts = [
      ["Phase", page.harmless(plan.phaseAt(first).name)],
      ["Sequences", `${page.count(end - first)}, numbers ${page.count(first)} to ${page.count(end - 1)} of the run`],
      ["Tokens", page.count((end - first) * plan.seqLen)],
    ];
    if (record) {
      const { loss } = record.body;
      facts.push(
        ["Loss", typeof loss === "number" ? page.number(loss / 1e6) : loss],
        ["Update", record.body.update_applied ? "applied" : "not applied"],
        ["Root", page.hash(record.body.root)],
        ["Record", el("span", null, `${record.seq} `, page.hash(record.hash))]);
    } else {
      facts.push(["State", "planned, not trained yet"]);
    }
    const lost = fed.filter((s) => s.superseded);
    if (lost.length) facts.push(["Before", `also fed by attempt ${lost.map((s) => s.attempt).join(", ")}, which was given up`]);
    const list = facts.flatMap(([name, value]) => [el("dt", null, name), el("dd", null, value)]);
    return el("div", { class: "step-summary" },
      el("h3", null, `Step ${page.count(step)}`), el("dl", { class: "facts" }, list), composition(plan, step));
  }

  const MOST_DOMAINS = 12;
  const AT_ONCE = 1024;

  /** How many rows of each domain, as bars; a step of many rows is counted while the rest is read. */
  function composition(plan, step) {
    const list = el("ul", { class: "composition", "aria-label": "Rows by domain" });
    count(plan, step, list);
    return list;
  }

  async function count(plan, step, list) {
    const own = turn;
    const [first, end] = plan.span(step);
    const counts = new Map();
    for (let index = first; index < end; index++) {
      const { domain } = plan.locate(index);
      counts.set(domain, (counts.get(domain) || 0) + 1);
      if ((index - first) % AT_ONCE === AT_ONCE - 1) {
        await new Promise((resolve) => setTimeout(resolve));
        if (own !== turn) return;
      }
    }
    const sorted = [...counts].sort((a, b) => b[1] - a[1]);
    const rest = sorted.slice(MOST_DOMAINS);
    list.replaceChildren(...sorted.slice(0, MOST_DOMAINS).map(([name, rows]) => {
      const bar = el("span", { class: "bar" });
      bar.style.width = `${(rows / sorted[0][1]) * 100}%`;
      return el("li", null, el("span", { class: "who" }, page.harmless(name)), el("span", { class: "rail" }, bar), el("span", { class: "number" }, page.count(rows)));
    }));
    if (rest.length) {
      const rows = rest.reduce((sum, [, some]) => sum + some, 0);
      list.append(el("li", { class: "rest" }, el("span", { class: "who" }, `${rest.length} more`), el("span"), el("span", { class: "number" }, page.count(rows))));
    }
  }

  async function rowOf(plan, at, row, first, sample, record) {
    const inside = sample && sample.rows[row];
    const place = `${at.domain} \u00b7 epoch ${at.epoch} \u00b7 sequence ${page.count(at.number)}`;
    const head = el("h4", null, `Row ${row} `, el("small", null, page.harmless(place)));
    const body = inside ? inside.stretches.map(sampled) : await documentsOf(plan, at);
    const article = el("article", { class: "row" }, head, body);
    if (inside && inside.tokens) article.append(proof(plan, at, row, first, sample, record));
    return article;
  }

  function byline(document) {
    const licence = document.licence ? ` \u00b7 ${document.licence}` : " \u00b7 no licence stated";
    const name = document.gone ? "taken down" : document.id;
    return el("p", { class: "source" },
      document.url ? page.outside(document.url, name) : el("span", null, page.harmless(name)),
      page.harmless(document.gone ? "" : licence), " \u00b7 ",
      el("button", { type: "button", class: "plain", title: document.key, click: () => page.lookUpKey(document.key) }, "when was it seen?"));
  }

  function sampled(stretch) {
    const document = { ...stretch, gone: stretch.taken_down };
    const text = stretch.text === null
      ? el("p", { class: "withheld" }, stretch.taken_down ? "Its text was taken down." : "Its licence does not let this page show it.")
      : el("blockquote", { dir: "auto", class: "text" }, (stretch.from ? "\u2026" : "") + page.harmless(stretch.text.trim()));
    return el("div", { class: "stretch" }, text, byline(document));
  }

  async function documentsOf(plan, at) {
    if (!page.state.documents.whole) {
      return el("p", { class: "withheld" }, `Tokens ${page.count(at.start)} to ${page.count(at.start + plan.seqLen)} of the domain.`);
    }
    const found = await page.documentsAt(at.corpus, at.domain, at.start + 1, plan.seqLen, at.tokens);
    return found.map((document) => el("div", { class: "stretch" }, byline(document)));
  }

  function moreRows(plan, first, end, record) {
    let next = ROWS;
    const box = el("div", { class: "rows" });
    const button = el("button", { type: "button", click: more }, "More rows");
    async function more() {
      const until = Math.min(end - first, next + 32);
      const rows = Array.from({ length: until - next }, (_, n) => next + n);
      next = until;
      button.hidden = next >= end - first;
      box.append(...await Promise.all(rows.map((row) => rowOf(plan, plan.locate(first + row), row, first, null, record))));
    }
    return el("div", null, box, button);
  }

  // --- the proof of a row ---

  /** Whether a row's tokens lead to the root that the ledger has: a sentence; throws where they do not. */
  page.checkRow = async function (plan, at, row, first, sample, record) {
    const inside = sample.rows[row];
    if (!record) throw new Error("the ledger has no record of this step");
    if (record.line !== sample.record) throw new Error("the sample names another record than the ledger has");
    if (BigInt(inside.index) !== BigInt(first + row) || record.body.first_index !== first) throw new Error("the row has another number than the plan gives it");
    if (inside.domain !== at.domain) throw new Error(`the plan has domain ${at.domain} there`);
    const tokens = Uint8Array.from(atob(inside.tokens), (c) => c.charCodeAt(0));
    if (tokens.length !== 4 * (plan.seqLen + 1)) throw new Error("the row has another length than the plan's sequences");
    const leaf = page.sequenceLeaf(inside.index, tokens, inside.buried);
    const root = page.hex(page.rootOfPath(leaf, row, sample.sequences, inside.path.map(page.unhex)));
    if (root !== record.body.root) throw new Error(`they lead to root ${root.slice(0, 16)}, the ledger has ${record.body.root.slice(0, 16)}`);
    return `Proved here: its ${page.count(plan.seqLen + 1)} tokens hash to the root of the step in record ${record.seq}.`;
  };

  function proof(plan, at, row, first, sample, record) {
    const line = el("p", { class: "proof" }, "Checking\u2026");
    page.checkRow(plan, at, row, first, sample, record).then(
      (text) => {
        line.classList.add("right");
        line.textContent = text;
      },
      (error) => {
        line.classList.add("wrong");
        line.textContent = page.harmless(`Not proved: ${error.message}`);
      });
    return line;
  }
})((globalThis.page = globalThis.page || {}));
