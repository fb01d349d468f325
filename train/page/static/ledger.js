// The ledger, checked where it is read: canonical form, hash chain, Merkle trees. Written from docs/reference/ledger.md.
(function (page) {
  "use strict";

  const FIRST = "0".repeat(64);

  /** RFC 8785 of a JSON value that holds no fractions. */
  page.canonical = function canonical(value) {
    if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
    if (value === null || typeof value !== "object") return JSON.stringify(value);
    // Plain sort() compares UTF-16 code units, as the RFC wants.
    const fields = Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`);
    return `{${fields.join(",")}}`;
  };

  const digest = (text) => page.hex(page.sha256(page.utf8(text)));

  /**
   * Follows a chain line by line: take(line) returns the record, or throws an Error that says what does not fit.
   * ``count`` and ``head`` say how far it came.
   */
  page.chain = function () {
    const chain = { count: 0, head: FIRST, take };
    function take(line) {
      const where = `record ${chain.count}`;
      let record;
      try {
        record = JSON.parse(line);
      } catch {
        throw new Error(`${where} is no record`);
      }
      const { hash, ...rest } = record;
      if (record.seq !== chain.count) throw new Error(`${where}: is numbered ${record.seq}`);
      if (record.prev !== chain.head) throw new Error(`${where}: names another record as the one before it`);
      if (digest(page.canonical(rest)) !== hash) throw new Error(`${where}: does not match its hash; it was altered`);
      if (page.canonical(record) !== line) throw new Error(`${where}: is not in canonical form`);
      chain.count += 1;
      chain.head = hash;
      return record;
    }
    return chain;
  };

  // --- Merkle trees (RFC 6962) ---

  const LEAF = new Uint8Array([0]);
  const NODE = new Uint8Array([1]);

  page.leafHash = (bytes) => page.sha256(page.joined(LEAF, bytes));
  page.nodeHash = (left, right) => page.sha256(page.joined(NODE, left, right));

  /** The root that a leaf and its path lead to (RFC 9162, 2.1.3.2); throws where the path does not fit the tree. */
  page.rootOfPath = function (leaf, index, size, path) {
    if (!(index >= 0 && index < size)) throw new Error(`no entry ${index} in a tree of ${size}`);
    let [at, last, found] = [index, size - 1, leaf];
    for (const sibling of path) {
      if (last === 0) throw new Error("a path is too long for its tree");
      if (at % 2 === 1 || at === last) {
        found = page.nodeHash(sibling, found);
        while (at % 2 === 0 && at > 0) [at, last] = [Math.floor(at / 2), Math.floor(last / 2)];
      } else {
        found = page.nodeHash(found, sibling);
      }
      [at, last] = [Math.floor(at / 2), Math.floor(last / 2)];
    }
    if (last !== 0) throw new Error("a path is too short for its tree");
    return found;
  };

  /** Leaf of a sequence in its step's tree: global index (text), tokens (u32 little-endian bytes), buried stretches. */
  page.sequenceLeaf = function (index, tokens, buried) {
    const head = new Uint8Array(8);
    new DataView(head.buffer).setBigUint64(0, BigInt(index), true);
    const stones = new Uint8Array(8 * buried.length);
    buried.forEach(([first, end], n) => {
      const view = new DataView(stones.buffer, 8 * n);
      view.setUint32(0, first, true);
      view.setUint32(4, end, true);
    });
    return page.leafHash(page.joined(page.utf8("seq/v1\0"), head, tokens, stones));
  };

  // --- the published lines ---

  const LINES = 1000;

  /** A step from the inside; its file changes when the step is trained again or a document of it is taken down. */
  page.sample = (step) => page.data(`samples/${step}`, `${page.state.documents.mark}-${page.state.stretches.length}`);

  /** The lines of a tile of the ledger. */
  page.ledgerTile = async (tile) => (await page.text(`ledger/${tile}`, Math.min(page.state.ledger.records, (tile + 1) * LINES))).split("\n");

  /** The line of a record. */
  page.ledgerLine = async (seq) => (await page.ledgerTile(Math.floor(seq / LINES)))[seq % LINES];

  /** The plan under which a segment's steps were fed. */
  page.planOfSegment = (segment) => page.planNumber(page.state.plans.of_segment[segment]);

  const plans = new Map();

  /** A published plan, opened. */
  page.planNumber = async function (number) {
    const id = page.state.plans.ids[number];
    if (!plans.has(id)) plans.set(id, page.openPlan(await page.data(`plans/${number}`, id)));
    return plans.get(id);
  };

  /** The plan in force. */
  page.plan = () => page.planNumber(page.state.plans.in_force);
})((globalThis.page = globalThis.page || {}));
