// Was this text trained on? Its key is computed here and leaves the browser as its first byte at most.
(function (page) {
  "use strict";

  const { el } = page;
  const TILE = 1024;
  const AT_ONCE = 200;
  let turn = 0;

  // --- the tables ---

  const corpora = () => Object.keys(page.state.documents.tiles);

  async function table(corpus, domain, tile) {
    return page.data(`documents/${corpus}/${domain}/${tile}`, page.state.documents.mark);
  }

  /** A row of a tile. */
  function documentOf(found, row) {
    let start = found.first;
    for (let n = 0; n < row; n++) start += found.tokens[n];
    const licence = found.licence[row];
    return {
      id: found.id[row], url: found.url[row], licence: licence === null ? null : found.licences[licence],
      key: found.key[row], start, tokens: found.tokens[row], gone: found.gone.includes(row),
    };
  }

  /** Documents with tokens in a stretch that begins at ``first``, round a ring of ``ring`` tokens. */
  page.documentsAt = async function (corpus, domain, first, count, ring) {
    const number = corpora().indexOf(corpus);
    const firsts = page.state.documents.tiles[corpus][domain];
    const found = [];
    for (let at = first % ring, left = count; left > 0; ) {
      const until = Math.min(ring, at + left);
      let tile = firsts.filter((token) => token <= at).length - 1;
      for (; tile < firsts.length && firsts[tile] < until; tile++) {
        const own = await table(number, domain, tile);
        for (let row = 0, start = own.first; row < own.tokens.length && start < until; start += own.tokens[row++]) {
          if (start + own.tokens[row] > at) found.push(documentOf(own, row));
        }
      }
      left -= until - at;
      at = 0;
    }
    return found;
  };

  // --- asking ---

  /** Key of a text: SHA-256 over doc/v1, a zero byte and the text in NFC with CRLF as LF. */
  page.keyOf = (text) => page.hex(page.sha256(page.utf8(`doc/v1\0${text.normalize("NFC").replace(/\r\n/g, "\n")}`)));

  page.startLookup = function () {
    page.at("lookup-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const text = page.at("lookup-text").value;
      const key = text.trim();
      answer(/^[0-9a-fA-F]{64}$/.test(key) ? [["the key", key.toLowerCase()]] : variants(text));
    });
    page.at("lookup-file").addEventListener("change", async (event) => {
      const [file] = event.target.files;
      if (!file) return;
      try {
        const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await file.arrayBuffer());
        answer(variants(text));
      } catch {
        page.at("lookup-result").replaceChildren(page.failed(new Error(`${file.name} is not UTF-8 text`)));
      }
    });
  };

  page.showLookup = function () {
    const { documents } = page.state;
    const can = documents.whole || page.state.served;
    page.at("lookup-form").hidden = !can;
    page.at("lookup-lead").textContent = can
      ? `Paste a whole document, or its key. The key is computed in your browser; the text goes nowhere. ${page.count(documents.documents)} documents and ${page.count(documents.excluded)} exclusions can be asked for.`
      : documents.missing
        ? "The corpus did not lie beside the run when this page was made, so documents cannot be looked up here."
        : `The corpus has ${page.count(documents.documents)} documents and ${page.count(documents.excluded)} exclusions, more than this page holds. Ask the run itself: millstream audit doc ${page.state.name} --file FILE`;
  };

  /** Look a key up, and go to the answer. */
  page.lookUpKey = function (key) {
    page.at("lookup-text").value = key;
    page.at("documents").scrollIntoView();
    page.at("lookup-result").focus({ preventScroll: true });
    answer([["the key", key]]);
  };

  /** Pasting may lose or add white space at the ends; each reading has a key of its own. */
  function variants(text) {
    const bare = text.replace(/\s+$/, "");
    const named = [
      ["the text as given", text], ["the text with one line break at its end", `${bare}\n`],
      ["the text without white space at its end", bare], ["the text without white space at its ends", bare.trimStart()],
    ];
    const keys = new Map();
    for (const [name, value] of named) {
      const key = page.keyOf(value);
      if (!keys.has(key)) keys.set(key, name);
    }
    return [...keys].map(([key, name]) => [name, key]);
  }

  async function answer(asked) {
    const own = ++turn;
    const out = page.at("lookup-result");
    out.replaceChildren(el("p", null, "Looking\u2026"));
    try {
      const parts = [];
      for (const [name, key] of asked) {
        const found = await lookUp(key);
        if (!found.length) continue;
        parts.push(el("p", { class: "by" }, `Found by ${name}: key `, page.hash(key)), ...found);
        break;
      }
      if (!parts.length) parts.push(...await absent(asked));
      if (own === turn) out.replaceChildren(...parts);
    } catch (error) {
      if (own === turn) out.replaceChildren(page.failed(error));
    }
  }

  async function absent(asked) {
    const [, key] = asked[0];
    const proofs = page.state.documents.whole
      ? await page.proveAbsent(key).then(
        (shown) => shown.map((text) => el("p", { class: "proof right" }, text)),
        (error) => [el("p", { class: "proof wrong" }, page.harmless(`Not proved: ${error.message}`))])
      : [];
    return [
      el("p", { class: "verdict" }, "Never read."),
      el("p", null, `No document of this text is in the corpus, in what was held out, or in what was excluded. Looked for as ${asked.map(([name]) => name).join("; ")}.`),
      el("p", { class: "by" }, "Key ", page.hash(key)), ...proofs,
    ];
  }

  async function lookUp(key) {
    if (!page.state.documents.whole) {
      const found = await page.data(`ask/${key}`, page.state.ledger.records);
      return found.map(asTold);
    }
    const bucket = await page.data(`keys/${key.slice(0, 2)}`, page.state.documents.mark);
    const own = (rows) => rows.filter(([found]) => found === key);
    const kept = await Promise.all(own(bucket.kept).map(async ([, corpus, domain, tile, row]) =>
      keptCard(corpora()[corpus], domain, documentOf(await table(corpus, domain, tile), row))));
    const excluded = await Promise.all(own(bucket.excluded).map(excludedCard));
    return [...kept, ...own(bucket.held_out).map(heldOutCard), ...excluded];
  }

  // --- answers ---

  function card(verdict, title, ...more) {
    return el("article", { class: "answer" }, el("p", { class: "verdict" }, verdict), el("h3", null, page.harmless(title)), ...more);
  }

  const licenceOf = (document) => document.licence || "no licence stated";

  async function keptCard(corpus, domain, document) {
    const plan = await page.plan();
    const rings = (plan.rings.get(domain) || []).filter((ring) => ring.corpus_id === corpus);
    const about = el("p", { class: "by" }, page.harmless(`domain ${domain} \u00b7 ${page.some(document.tokens, "token")} \u00b7 ${licenceOf(document)}`),
      document.url ? [" \u00b7 ", page.outside(document.url)] : null);
    const title = document.gone ? "A document that was taken down" : document.id;
    if (rings.length && rings.every((ring) => document.start + document.tokens > ring.tokens)) {
      return card("Kept, but beyond the limit of its domain: no step reads it.", title, about);
    }
    const seen = await exposuresOf(corpus, domain, document.start, document.start + document.tokens);
    return card(verdictOf(seen), title, about, seen.length ? exposureTable(seen) : null);
  }

  /** Every occurrence of a stretch of tokens, as the run fed it or is going to. */
  async function exposuresOf(corpus, domain, start, end) {
    const seen = [];
    const missed = new Set(page.state.not_applied);
    const known = new Map();
    for (const stretch of page.state.stretches) {
      const number = page.state.plans.of_segment[stretch.segment];
      if (!known.has(number)) known.set(number, (await page.planNumber(number)).exposures(domain, corpus, start, end));
      for (const place of known.get(number)) {
        if (place.step < stretch.first || place.step > stretch.last) continue;
        const status = stretch.superseded ? "superseded" : missed.has(place.step) ? "not applied" : "learned";
        seen.push({ ...place, attempt: stretch.attempt, status });
      }
    }
    const inForce = (await page.plan()).exposures(domain, corpus, start, end);
    seen.push(...inForce.filter((place) => place.step > page.state.status.step).map((place) => ({ ...place, attempt: null, status: "planned" })));
    return seen.sort((a, b) => a.step - b.step || (a.attempt ?? Infinity) - (b.attempt ?? Infinity) || a.index - b.index);
  }

  function verdictOf(seen) {
    const count = (status) => seen.filter((place) => place.status === status).length;
    const [learned, planned, lost] = [count("learned"), count("planned"), count("superseded") + count("not applied")];
    if (!seen.length) return "Kept, but no step of the plan reads it.";
    const parts = [learned ? `learned from ${learned === 1 ? "once" : `${page.count(learned)} times`}` : null, planned ? `planned ${planned === 1 ? "once" : `${page.count(planned)} times`}` : null, lost ? `fed ${lost === 1 ? "once" : `${page.count(lost)} times`} without staying` : null];
    const text = parts.filter(Boolean).join(", ");
    return `${text[0].toUpperCase()}${text.slice(1)}.`;
  }

  function exposureTable(seen) {
    const rows = seen.slice(0, AT_ONCE).map((place) => [
      el("button", { type: "button", class: "plain", click: () => openAt(place.step) }, page.count(place.step)),
      page.count(place.row), String(place.epoch), page.harmless(place.phase), place.attempt ?? "", page.count(place.tokens), place.status]);
    return el("div", { class: "narrow" },
      page.table("Occurrences of the document", [["step", true], ["row", true], ["epoch", true], ["phase", false], ["attempt", true], ["tokens", true], ["status", false]], rows),
      seen.length > AT_ONCE ? el("p", { class: "by" }, `and ${page.count(seen.length - AT_ONCE)} more`) : null);
  }

  function openAt(step) {
    page.at("steps").scrollIntoView();
    page.openStep(step);
  }

  function heldOutCard([, domain, id]) {
    return card("Held out for evaluation: no step reads it.", id, el("p", { class: "by" }, `domain ${page.harmless(domain)}`));
  }

  async function excludedCard([, domain, id, stage, rule, value, threshold, kept]) {
    const measured = [value && `measured ${value}`, threshold && `limit ${threshold}`].filter(Boolean).join(", ");
    const out = card(`Left out by ${stage}/${rule}${measured ? `: ${measured}` : ""}.`, id, el("p", { class: "by" }, `domain ${page.harmless(domain)}`));
    if (kept) {
      const twins = await lookUpKept(kept);
      out.append(el("p", null, "Kept instead of it:"), ...twins);
    }
    return out;
  }

  /** The kept or held-out document of a key; never what was excluded, so that two duplicates do not name each other for ever. */
  async function lookUpKept(key) {
    const bucket = await page.data(`keys/${key.slice(0, 2)}`, page.state.documents.mark);
    const own = (rows) => rows.filter(([found]) => found === key).slice(0, 1);
    const kept = own(bucket.kept).map(async ([, corpus, domain, tile, row]) =>
      keptCard(corpora()[corpus], domain, documentOf(await table(corpus, domain, tile), row)));
    return [...await Promise.all(kept), ...own(bucket.held_out).map(heldOutCard)];
  }

  /** An answer that the serving process worked out, from the corpus itself. */
  function asTold(told) {
    const about = el("p", { class: "by" }, `domain ${page.harmless(told.domain)}`);
    if (told.state === "held out") return card("Held out for evaluation: no step reads it.", told.id, about);
    if (told.state === "beyond limit") return card("Kept, but beyond the limit of its domain: no step reads it.", told.id, about);
    if (told.state === "excluded") {
      return card(`Left out by ${told.stage}/${told.rule}.`, told.id, about, told.twin ? el("p", null, "Kept instead of it:") : null, told.twin ? asTold(told.twin) : null);
    }
    return card(verdictOf(told.exposures), told.id, about, told.exposures.length ? exposureTable(told.exposures) : null);
  }
})((globalThis.page = globalThis.page || {}));
