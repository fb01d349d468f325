// Signed heads and the key trie: what somebody put a signature to, checked against what lies here.
(function (page) {
  "use strict";

  const EMPTY = new Uint8Array(32);

  const unbase64 = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

  // --- heads (C2SP signed-note, tlog-checkpoint) ---

  /** A verifier key NAME+HASH+BASE64: {name, short, raw}; throws where its parts do not fit. */
  function keyOf(text) {
    const [name, short, ...rest] = text.split("+");
    const raw = unbase64(rest.join("+"));
    if (raw.length !== 33 || raw[0] !== 1) throw new Error("the run names no Ed25519 key");
    if (page.hex(page.sha256(page.joined(page.utf8(`${name}\n`), raw)).subarray(0, 4)) !== short) throw new Error("the verifier key's hash is not that of its name and key");
    return { name, short, raw: raw.subarray(1) };
  }

  /** A signed note as {text, origin, size, root, corpora, signature}; signature is null where the signer's is missing. */
  function parse(note, key) {
    const cut = note.lastIndexOf("\n\n");
    if (cut < 0) throw new Error("a head is no signed note");
    const text = note.slice(0, cut + 1);
    const [origin, size, root, ...more] = text.split("\n");
    const signatures = note.slice(cut + 2).split("\n").map((line) => line.split(" ")).filter(([dash, name]) => dash === "\u2014" && name === key.name);
    const signature = signatures.map(([, , encoded]) => unbase64(encoded)).find((raw) => page.hex(raw.subarray(0, 4)) === key.short);
    const corpora = new Map(more.filter((line) => line.startsWith("corpus ")).map((line) => line.split(" ")).map(([, id, keys, documents]) => [id, { keys, documents }]));
    return { text, origin, size: Number(size), root: page.hex(unbase64(root)), corpora, signature: signature ? signature.subarray(4) : null };
  }

  /** The published heads, oldest first. */
  page.heads = async function () {
    if (!page.state.heads) return [];
    const key = keyOf(page.state.heads.signer);
    return (await page.data("heads", page.state.ledger.records)).map((note) => parse(note, key));
  };

  /** Whether this browser can check the signatures; throws where one is wrong. */
  page.checkSignatures = async function (heads) {
    const { raw, name } = keyOf(page.state.heads.signer);
    let key;
    try {
      key = await crypto.subtle.importKey("raw", raw, { name: "Ed25519" }, false, ["verify"]);
    } catch {
      return false;
    }
    for (const head of heads) {
      const right = head.signature && await crypto.subtle.verify({ name: "Ed25519" }, key, head.signature, page.utf8(head.text));
      if (!right) throw new Error(`the head of ${page.count(head.size)} records is not signed by ${name}`);
    }
    return true;
  };

  /** Grows the tree of RFC 6962 entry by entry: add(bytes), and root() at any time. */
  page.growingTree = function () {
    // Roots of the perfect trees that the entries so far make, the largest first.
    const peaks = [];
    return {
      size: 0,
      add(entry) {
        let hash = page.leafHash(entry);
        for (let at = this.size; at % 2 === 1; at = (at - 1) / 2) hash = page.nodeHash(peaks.pop(), hash);
        peaks.push(hash);
        this.size += 1;
      },
      root() {
        if (!peaks.length) return page.sha256(new Uint8Array(0));
        return peaks.reduceRight((right, left) => page.nodeHash(left, right));
      },
    };
  };

  // --- the key trie ---

  const keyLeaf = (key) => page.leafHash(page.joined(page.utf8("key/v1\0"), key));
  const bit = (key, place) => (key[place >> 3] >> (7 - (place & 7))) & 1;

  /** Hash of the part of the trie, ``depth`` bits down, that holds these sorted keys. */
  function rootOfKeys(keys, depth) {
    if (keys.length < 2) return keys.length ? keyLeaf(keys[0]) : EMPTY;
    const middle = keys.findIndex((key) => bit(key, depth));
    const cut = middle < 0 ? keys.length : middle;
    return page.nodeHash(rootOfKeys(keys.slice(0, cut), depth + 1), rootOfKeys(keys.slice(cut), depth + 1));
  }

  /** Root over parts [count, hash], left to right; a single key keeps its leaf's hash on the way up. */
  function rootOfParts(parts) {
    let level = parts;
    while (level.length > 1) {
      level = Array.from({ length: level.length / 2 }, (_, n) => {
        const [[a, left], [b, right]] = [level[2 * n], level[2 * n + 1]];
        if (a + b < 2) return [a + b, a ? left : right];
        return [a + b, page.nodeHash(left, right)];
      });
    }
    return level[0];
  }

  /**
   * That a key is in no corpus of the run, as the ledger's own roots say; throws where that does not come out.
   * Resolves to sentences; none where the ledger holds no roots.
   */
  page.proveAbsent = async function (key) {
    const [parts, bucket] = await Promise.all([
      page.data("keys/parts", page.state.documents.mark), page.data(`keys/${key.slice(0, 2)}`, page.state.documents.mark)]);
    const heads = await page.heads();
    const newest = heads[heads.length - 1];
    const shown = [];
    const ids = Object.keys(page.state.documents.tiles);
    for (const { seq, id, keys_root: root } of page.state.corpora) {
      const record = JSON.parse(await page.ledgerLine(seq));
      if (record.kind !== "corpus" || record.body.corpus_id !== id || record.body.keys_root !== root) throw new Error(`record ${seq} names another root`);
      const number = ids.indexOf(id);
      const own = [...new Set(bucket.kept.filter((row) => row[1] === number).map(([found]) => found))].sort();
      if (own.includes(key)) throw new Error("the key is there");
      const place = parseInt(key.slice(0, 2), 16);
      const whole = parts[number].map(([count, hash], n) => (n === place ? [own.length, rootOfKeys(own.map(page.unhex), 8)] : [count, page.unhex(hash)]));
      if (page.hex(rootOfParts(whole)[1]) !== root) throw new Error(`the keys here are not those of corpus ${id.slice(0, 16)}`);
      const signed = newest && newest.corpora.has(id) && newest.corpora.get(id).keys === root;
      shown.push(`Proved here: the ${page.some(own.length, "key")} that begin like it make, with the other parts, the root of keys that record ${seq}${signed ? " and the signed head name" : " names"} for corpus ${id.slice(0, 16)}; this one is not among them.`);
    }
    return shown;
  };
})((globalThis.page = globalThis.page || {}));
