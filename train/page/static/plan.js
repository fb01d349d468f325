// The plan of a run, in the browser: which sequence a row of a step is, and at which steps a stretch of a domain
// is trained on. Written from docs/reference/plan.md, apart from the Python that trains: two programs that agree.
//
// Numbers stay below 2^53 and are exact; products that do not are BigInt.
(function (page) {
  "use strict";

  const TABLE_LIMIT = 4096;
  const ROUNDS = 8;
  const M32 = 2 ** 32;
  const M64 = (1n << 64n) - 1n;

  // --- keys ---

  function planKey(...fields) {
    const parts = [page.utf8("plan/v1\0")];
    for (const field of fields) {
      const text = page.utf8(String(field));
      const length = new Uint8Array(4);
      new DataView(length.buffer).setUint32(0, text.length, true);
      parts.push(length, text);
    }
    return page.sha256(page.joined(...parts));
  }

  // --- keyed permutations ---

  function mix32(v) {
    v = Math.imul(v ^ (v >>> 16), 0x85ebca6b);
    v = Math.imul(v ^ (v >>> 13), 0xc2b2ae35);
    return (v ^ (v >>> 16)) >>> 0;
  }

  function mix64(v) {
    v = ((v ^ (v >> 33n)) * 0xff51afd7ed558ccdn) & M64;
    v = ((v ^ (v >> 33n)) * 0xc4ceb9fe1a85ec53n) & M64;
    return v ^ (v >> 33n);
  }

  function table(key, size) {
    const words = new DataView(key.buffer);
    const [first, second] = [words.getBigUint64(0, true), words.getBigUint64(8, true)];
    const hashes = Array.from({ length: size }, (_, i) => mix64(mix64((BigInt(i) + first) & M64) ^ second));
    const forward = Array.from({ length: size }, (_, i) => i);
    forward.sort((a, b) => (hashes[a] < hashes[b] ? -1 : hashes[a] > hashes[b] ? 1 : a - b));
    const back = new Array(size);
    forward.forEach((to, from) => { back[to] = from; });
    return { permute: (index) => forward[index], invert: (value) => back[value] };
  }

  function network(key, size) {
    let root = Math.floor(Math.sqrt(size - 1));
    while (root * root > size - 1) root--;
    while ((root + 1) * (root + 1) <= size - 1) root++;
    const a = root + 1;
    const b = Math.ceil(size / a);
    const view = new DataView(key.buffer);
    const words = Array.from({ length: ROUNDS }, (_, r) => view.getUint32(4 * r, true));
    const shift = (value, r, radix) => Math.floor((mix32((value + words[r]) | 0) * radix) / M32);
    function forward(index) {
      let [left, right] = [Math.floor(index / b), index % b];
      for (let r = 0; r < ROUNDS; r += 2) {
        left = (left + shift(right, r, a)) % a;
        right = (right + shift(left, r + 1, b)) % b;
      }
      return left * b + right;
    }
    function back(value) {
      let [left, right] = [Math.floor(value / b), value % b];
      for (let r = ROUNDS - 2; r >= 0; r -= 2) {
        right = (right + b - shift(left, r + 1, b)) % b;
        left = (left + a - shift(right, r, a)) % a;
      }
      return left * b + right;
    }
    const walk = (move) => (at) => {
      do at = move(at); while (at >= size);
      return at;
    };
    return { permute: walk(forward), invert: walk(back) };
  }

  const known = new Map();

  /** The keyed permutation of the numbers below a size: {permute, invert}. */
  function permutation(key, size) {
    const name = `${page.hex(key)}/${size}`;
    let found = known.get(name);
    if (!found) {
      if (known.size > 256) known.clear();
      found = size <= TABLE_LIMIT ? table(key, size) : network(key, size);
      known.set(name, found);
    }
    return found;
  }

  // --- the quota tree ---

  /** Of the first n items of a node, how many go left: floor((2an + t) / 2t). */
  function goLeft(node, n) {
    const product = 2 * node.left * n + node.total;
    if (product < 2 ** 53) return Math.floor(product / (2 * node.total));
    return Number((2n * BigInt(node.left) * BigInt(n) + BigInt(node.total)) / (2n * BigInt(node.total)));
  }

  function plantTree(quotas, exact, length) {
    const leaves = new Map();
    const leaf = (name) => {
      const made = { name, parent: null, side: 0 };
      leaves.set(name, made);
      return made;
    };
    const node = (left, total, lower, upper) => {
      const made = { left, total, children: [lower, upper], parent: null, side: 0 };
      [lower.parent, lower.side, upper.parent, upper.side] = [made, 0, made, 1];
      return made;
    };
    const byName = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    function split(names) {
      if (names.length === 1) return leaf(names[0]);
      const total = names.reduce((sum, name) => sum + quotas[name], 0);
      let [running, best, at, left] = [0, Infinity, 0, 0];
      for (let place = 1; place < names.length; place++) {
        running += quotas[names[place - 1]];
        const off = Math.abs(2 * running - total);
        if (off < best) [best, at, left] = [off, place, running];
      }
      return node(left, total, split(names.slice(0, at)), split(names.slice(at)));
    }
    const weighted = Object.keys(quotas).sort((a, b) => quotas[b] - quotas[a] || byName(a, b));
    let root = weighted.length ? split(weighted) : null;
    const asked = Object.keys(exact).sort((a, b) => exact[a] - exact[b] || byName(a, b));
    let remaining = length - asked.reduce((sum, name) => sum + exact[name], 0);
    for (const name of asked) {
      remaining += exact[name];
      root = root ? node(exact[name], remaining, leaf(name), root) : leaf(name);
    }
    return { root, leaves };
  }

  /** Domain and rank in the domain of the n-th item. */
  function draw(tree, n) {
    let at = tree.root;
    while (at.children) {
      const before = goLeft(at, n);
      const left = goLeft(at, n + 1) > before;
      n = left ? before : n - before;
      at = at.children[left ? 0 : 1];
    }
    return [at.name, n];
  }

  /** How many of the first n items are a domain's. */
  function countOf(tree, name, n) {
    const path = [];
    for (let at = tree.leaves.get(name); at; at = at.parent) path.push(at);
    if (!path.length) return 0;
    for (let i = path.length - 1; i > 0; i--) {
      const left = goLeft(path[i], n);
      n = path[i - 1].side === 0 ? left : n - left;
    }
    return n;
  }

  /** The item that holds a rank of a domain; the rank must lie in the phase. */
  function itemOf(tree, name, rank) {
    let item = BigInt(rank);
    for (let at = tree.leaves.get(name); at.parent; at = at.parent) {
      const [left, total] = [BigInt(at.parent.left), BigInt(at.parent.total)];
      if (at.side === 0) {
        item = (2n * total * (item + 1n) - total + 2n * left - 1n) / (2n * left) - 1n;
      } else {
        item = (2n * total * item + total) / (2n * (total - left));
      }
    }
    return Number(item);
  }

  // --- the plan ---

  const modulo = (value, size) => ((value % size) + size) % size;

  function openPhase(raw) {
    const tree = plantTree(raw.quotas, raw.exact, raw.end - raw.first);
    return { ...raw, tree, taken: (name) => countOf(tree, name, raw.end - raw.first) };
  }

  /** Batch schedule: [first step, sequences a step, first index], from phases and skipped ranges. */
  function schedule(phases, skips) {
    const entries = [];
    let [step, reached] = [1, 0];
    function stretch(first, end, batch) {
      if (end <= first) return;
      const last = entries[entries.length - 1];
      if (!last || last.batch !== batch || first !== reached) entries.push({ step, batch, first });
      step += Math.floor((end - first) / batch);
      reached = end;
    }
    for (const phase of phases) {
      let first = phase.first;
      for (const [from, to] of skips) {
        if (phase.first <= from && from < phase.end) {
          stretch(first, from, phase.batch);
          first = to;
        }
      }
      stretch(first, phase.end, phase.batch);
    }
    return { entries, steps: step - 1 };
  }

  /**
   * A plan as run.json and the ledger hold it, ready to be asked. Throws a RangeError outside the plan.
   *
   *   span(step)        [first, end) global indices of a step
   *   locate(index)     {domain, corpus, epoch, number, start, tokens}: the sequence, where it begins in its ring
   *   rows(step)        the sequences of a step, in order
   *   find(domain, epoch, number)             {index, step, row}, or null where the plan does not reach it
   *   exposures(domain, corpus, start, end)   [{step, row, index, epoch, phase, tokens}] of a stretch of tokens
   */
  page.openPlan = function (raw) {
    const seed = String(raw.seed);
    const seqLen = raw.seq_len;
    const phases = raw.phases.map(openPhase);
    const skips = raw.skips || [];
    const tombstones = raw.tombstones || [];
    const rings = new Map(raw.domains.map((d) => [d.name, d.pieces]));
    const { entries, steps } = schedule(phases, skips);
    const last = phases[phases.length - 1];

    function entryOf(step) {
      if (!(step >= 1 && step <= steps)) throw new RangeError(`the plan has steps 1 to ${steps}, not ${step}`);
      return entries.filter((entry) => entry.step <= step).pop();
    }

    function span(step) {
      const entry = entryOf(step);
      const first = entry.first + (step - entry.step) * entry.batch;
      return [first, first + entry.batch];
    }

    function stepOf(index) {
      const at = entries.filter((entry) => entry.first <= index).length - 1;
      const entry = entries[at];
      const step = entry.step + Math.floor((index - entry.first) / entry.batch);
      // Skipped: the next entry begins later than this one ends.
      if (at + 1 < entries.length && step >= entries[at + 1].step) return null;
      return { step, row: (index - entry.first) % entry.batch };
    }

    const phaseAt = (index) => phases.find((phase) => phase.first <= index && index < phase.end);

    function shuffled(phase, place, move) {
      const number = Math.floor(place / phase.window);
      const size = Math.min(phase.window, phase.end - phase.first - number * phase.window);
      const key = planKey(seed, "window", phase.number, number);
      return number * phase.window + permutation(key, size)[move](place % phase.window);
    }

    const perEpoch = (ring) => Math.floor(ring.tokens / seqLen);

    function offset(name, ring, epoch) {
      if (epoch === 0) return 0;
      const word = new DataView(planKey(seed, "offset", name, epoch).buffer).getBigUint64(0, true);
      return Number((word * BigInt(ring.tokens)) >> 64n);
    }

    const order = (name, ring, epoch) => permutation(planKey(seed, "order", name, epoch), perEpoch(ring));

    function locate(index) {
      const phase = phaseAt(index);
      if (!phase) throw new RangeError(`the plan ends at sequence ${last.end}, not after ${index}`);
      const [name, rank] = draw(phase.tree, shuffled(phase, index - phase.first, "permute"));
      const running = phase.cursors[name] + rank;
      const ring = rings.get(name).filter((piece) => piece.running <= running).pop();
      const into = running - ring.running;
      const epoch = ring.epoch + Math.floor(into / perEpoch(ring));
      const number = order(name, ring, epoch).permute(into % perEpoch(ring));
      const start = (offset(name, ring, epoch) + number * seqLen) % ring.tokens;
      return { domain: name, corpus: ring.corpus_id, epoch, number, start, tokens: ring.tokens };
    }

    function rows(step) {
      const [first, end] = span(step);
      return Array.from({ length: end - first }, (_, row) => locate(first + row));
    }

    /** Where the sequence with a running index of a domain stands: {index, phase}, or null. */
    function indexOf(name, running) {
      for (const phase of phases) {
        const rank = running - (phase.cursors[name] ?? 0);
        if (rank >= 0 && rank < phase.taken(name)) {
          const item = itemOf(phase.tree, name, rank);
          return { index: phase.first + shuffled(phase, item, "invert"), phase };
        }
      }
      return null;
    }

    const consumed = (name) => (last.cursors[name] ?? 0) + last.taken(name);

    function find(name, epoch, number) {
      const pieces = rings.get(name) || [];
      const ring = pieces.filter((piece) => piece.epoch <= epoch).pop();
      if (!ring || number >= perEpoch(ring)) return null;
      const place = order(name, ring, epoch).invert(number);
      const running = ring.running + (epoch - ring.epoch) * perEpoch(ring) + place;
      const next = pieces[pieces.indexOf(ring) + 1];
      const found = next && running >= next.running ? null : indexOf(name, running);
      const at = found && stepOf(found.index);
      return at && { index: found.index, ...at };
    }

    /** Targets of [start, end) by sequence of an epoch: the targets lie one after the inputs, hence the shift. */
    function targets(name, ring, epoch, start, end) {
      const begin = modulo(start - 1 - offset(name, ring, epoch), ring.tokens);
      const beyond = begin + end - start;
      const seen = new Map();
      for (const [low, high] of [[begin, Math.min(beyond, ring.tokens)], [0, beyond - ring.tokens]]) {
        const until = Math.min(high, perEpoch(ring) * seqLen);
        for (let at = low; at < until; ) {
          const j = Math.floor(at / seqLen);
          const border = Math.min(until, (j + 1) * seqLen);
          seen.set(j, (seen.get(j) || 0) + border - at);
          at = border;
        }
      }
      return seen;
    }

    function reads(name, ring, start, end) {
      const pieces = rings.get(name);
      const later = pieces.slice(pieces.indexOf(ring) + 1).map((piece) => piece.running);
      const until = Math.min(consumed(name), ...later);
      const found = [];
      if (end > ring.tokens || start >= end) return found;
      for (let n = 0; ring.running + n * perEpoch(ring) < until; n++) {
        const epoch = ring.epoch + n;
        for (const [j, tokens] of targets(name, ring, epoch, start, end)) {
          const running = ring.running + n * perEpoch(ring) + order(name, ring, epoch).invert(j);
          if (running < until) found.push({ running, epoch, tokens });
        }
      }
      return found;
    }

    function exposures(name, corpus, start, end) {
      const result = [];
      for (const ring of (rings.get(name) || []).filter((piece) => piece.corpus_id === corpus)) {
        for (const read of reads(name, ring, start, end)) {
          const { index, phase } = indexOf(name, read.running);
          const at = stepOf(index);
          if (at) result.push({ ...at, ...read, index, phase: phase.name });
        }
        for (const stone of tombstones) {
          if (stone.domain !== name || stone.corpus_id !== corpus) continue;
          const [low, high] = [Math.max(start, stone.start), Math.min(end, stone.end)];
          for (const lost of low < high ? reads(name, ring, low, high) : []) {
            const hit = result.find((e) => e.running === lost.running);
            if (hit && hit.step >= stone.from_step) hit.tokens -= lost.tokens;
          }
        }
      }
      return result
        .filter((exposure) => exposure.tokens > 0)
        .sort((a, b) => a.index - b.index)
        .map(({ running, ...exposure }) => exposure);
    }

    return {
      raw, seqLen, phases, rings, skips, tombstones, entries,
      totalSteps: steps, totalSequences: last.end,
      span, stepOf, phaseAt, locate, rows, find, exposures, consumed, perEpoch,
      domains: raw.domains.map((d) => d.name),
    };
  };
})((globalThis.page = globalThis.page || {}));
