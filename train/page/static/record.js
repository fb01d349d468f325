// The record, checked in the reader's own browser: nothing here asks anybody to be believed.
(function (page) {
  "use strict";

  const { el } = page;
  let running = null;

  page.startRecord = function () {
    page.at("record-check").addEventListener("click", () => (running ? (running.stop = true) : check()));
  };

  page.showRecord = function () {
    const { records, steps, head } = page.state.ledger;
    page.at("record-lead").replaceChildren(
      `${page.some(records, "record")}, ${page.count(steps)} of them steps; each names the hash of the one before it. The newest is `, page.hash(head),
      ". A copy of that hash, kept elsewhere, shows later that nothing before it was altered.");
  };

  async function check() {
    running = { stop: false };
    const button = page.at("record-check");
    const list = page.at("record-result");
    button.textContent = "Stop";
    list.replaceChildren();
    try {
      for (const [name, look] of CHECKS) {
        const line = el("li", { class: "checking" }, el("b", null, name), " ", el("span", null, "\u2026"));
        list.append(line);
        const tell = (text) => { line.lastChild.textContent = text; };
        try {
          const text = await look(running, tell);
          const skipped = text === null || text.open !== undefined;
          line.className = skipped ? "skipped" : "right";
          tell(text === null ? "nothing to check" : skipped ? text.open : text);
        } catch (error) {
          line.className = running.stop ? "skipped" : "wrong";
          tell(page.harmless(error.message));
        }
        if (running.stop) break;
      }
    } finally {
      running = null;
      button.textContent = "Check again";
    }
  }

  /** Let the page breathe between pieces of work. */
  const breath = () => new Promise((resolve) => setTimeout(resolve));

  /** Calls ``see`` with every record of the ledger, chain checked. */
  async function follow(state, tell, see) {
    const chain = page.chain();
    for (let tile = 0; tile < page.state.ledger.tiles; tile++) {
      for (const line of await page.ledgerTile(tile)) await see(chain.take(line));
      tell(`${page.count(chain.count)} of ${page.count(page.state.ledger.records)}`);
      await breath();
      if (state.stop) throw new Error("stopped");
    }
    return chain;
  }

  let run = null;
  let steps = null;
  /** Roots over the first records, at the sizes that heads are of. */
  let roots = new Map();

  async function chainHolds(state, tell) {
    [run, steps] = [null, { count: 0, wrong: null, expected: new Map() }];
    const segments = new Map();
    const sizes = new Set((await page.heads()).map((head) => head.size));
    const tree = page.growingTree();
    roots = new Map();
    const chain = await follow(state, tell, async (record) => {
      if (sizes.size) tree.add(page.unhex(record.hash));
      if (sizes.has(tree.size)) roots.set(tree.size, page.hex(tree.root()));
      if (record.kind === "run") run = record.body;
      if (record.kind === "step") await stepFits(record, segments);
      if (record.kind === "attempt") steps.expected.set(record.body.attempt, record.body.checkpoint_step + 1);
    });
    if (chain.count !== page.state.ledger.records) throw new Error(`${page.count(chain.count)} records are here, ${page.count(page.state.ledger.records)} were announced`);
    if (chain.head !== page.state.ledger.head) throw new Error("the last record is not the one that was announced");
    return `${page.some(chain.count, "record")}: numbers, links, hashes and form are right, up to ${chain.head.slice(0, 16)}`;
  }

  /** Notes what is wrong with a step's place; the plan says which sequences it must be made of. */
  async function stepFits(record, segments) {
    const { step, attempt, segment, first_index: first, sequences, tokens } = record.body;
    steps.count += 1;
    if (steps.wrong) return;
    const where = `record ${record.seq}, step ${step}`;
    const expected = steps.expected.get(attempt);
    if (expected === undefined) steps.wrong = `${where}: belongs to attempt ${attempt}, which never began`;
    else if (step !== expected) steps.wrong = `${where}: step ${expected} was to come`;
    steps.expected.set(attempt, step + 1);
    if (!segments.has(segment)) segments.set(segment, page.state.plans.of_segment[segment] === undefined ? null : await page.planOfSegment(segment));
    const plan = segments.get(segment);
    if (!plan || step > plan.totalSteps) {
      steps.wrong = steps.wrong || `${where}: lies outside the plan`;
      return;
    }
    const [low, high] = plan.span(step);
    if (first !== low || sequences !== high - low || tokens !== (high - low) * plan.seqLen) steps.wrong = steps.wrong || `${where}: was fed other sequences than planned`;
  }

  async function stepsFollow() {
    if (!steps) throw new Error("the chain was not followed to its end");
    if (steps.wrong) throw new Error(steps.wrong);
    return steps.count ? `${page.some(steps.count, "step")}: each follows the one before it, and is made of the sequences that the plan has for it` : null;
  }

  async function frozen() {
    if (!run) throw new Error("the ledger has no run record");
    const text = await page.text("run", page.state.run_id);
    if (page.hex(page.sha256(page.utf8(text))) !== run.run_json) throw new Error("run.json is not the file that the first record names");
    const first = await page.data("plans/0", page.state.plans.ids[0]);
    const { plan } = JSON.parse(text);
    if (page.canonical({ ...first, seed: Number(first.seed) }) !== page.canonical(plan)) throw new Error("the first plan is not the one in run.json");
    return "run.json is the file that the first record names, and holds the first plan";
  }

  async function headsHold() {
    const heads = await page.heads();
    // Whoever cut the record off could leave out the heads that cover it.
    if (!heads.length) return { open: run && run.signer ? `open: the first record names the signer ${run.signer}, but no head of theirs lies here, so nothing shows that the end was not cut off` : "open: nobody signs this run, so nothing shows that the end was not cut off" };
    for (const head of heads) {
      if (head.origin !== page.state.heads.origin) throw new Error(`the head of ${page.count(head.size)} records is of another run`);
      if (!roots.has(head.size)) throw new Error(`a head covers ${page.count(head.size)} records, fewer were found here`);
      if (roots.get(head.size) !== head.root) throw new Error(`the first ${page.count(head.size)} records are not those that were signed`);
    }
    if (run && run.signer !== page.state.heads.signer) throw new Error("the first record names another signer");
    const newest = heads[heads.length - 1];
    const checked = await page.checkSignatures(heads);
    const by = page.state.heads.signer;
    const said = `${page.some(heads.length, "head")}, the newest of ${page.count(newest.size)} records, cover what lies here`;
    return checked ? `${said}, and are signed by ${by}: compare that key with one that you got elsewhere` : `${said}; this browser cannot check Ed25519, so whether ${by} signed them is open`;
  }

  async function sampledRows(state, tell) {
    let [rows, proved] = [0, 0];
    const learned = page.state.stretches.filter((s) => !s.superseded);
    for (const step of spread(page.state.samples, 12)) {
      const stretch = learned.find((s) => s.first <= step && step <= s.last);
      const plan = await page.planOfSegment(stretch.segment);
      const sample = await page.sample(step);
      const record = JSON.parse(sample.record);
      if ((await page.ledgerLine(record.seq)) !== sample.record) throw new Error(`step ${step}: the sample names another record than the ledger has`);
      const [first] = plan.span(step);
      for (const [row, inside] of sample.rows.entries()) {
        rows += 1;
        if (!inside.tokens) continue;
        await page.checkRow(plan, plan.locate(first + row), row, first, sample, { ...record, line: sample.record });
        proved += 1;
      }
      tell(`step ${page.count(step)}`);
      await breath();
      if (state.stop) throw new Error("stopped");
    }
    return rows ? `${page.count(proved)} rows of ${page.some(Math.min(12, page.state.samples.length), "step")}: their tokens hash to the roots in the ledger` : null;
  }

  const spread = (list, most) => (list.length <= most ? list : Array.from({ length: most }, (_, n) => list[Math.floor((n * (list.length - 1)) / (most - 1))]));

  const CHECKS = [
    ["Chain", chainHolds],
    ["Beginning", frozen],
    ["Heads", headsHold],
    ["Steps", stepsFollow],
    ["Rows", sampledRows],
  ];
})((globalThis.page = globalThis.page || {}));
