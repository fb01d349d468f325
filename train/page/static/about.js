// What the run is made of: recipe, code, environment, corpora, what was left out, and files to take along.
(function (page) {
  "use strict";

  const { el } = page;

  page.showAbout = async function () {
    const about = await page.data("about", page.state.made);
    const libraries = Object.entries(about.environment.libraries).map(([name, version]) => `${name} ${version}`).join(", ");
    page.at("about-facts").replaceChildren(...[
      ["Run", page.hash(about.run_id)],
      ...(page.state.contact ? [["Contact", contact(page.state.contact)]] : []),
      ["Begun", page.moment(about.created)],
      ["Code", el("span", null, `Millstream ${page.harmless(about.code.version)}, `, page.hash(about.code.digest))],
      ["Plan", page.hash(about.plan_id)],
      ["Environment", page.harmless(`Python ${about.environment.python}, ${libraries}; ${about.environment.platform}`)],
      ...about.corpora.map((corpus) => ["Corpus", el("span", null, page.hash(corpus.id), corpus.domains ? `, ${page.some(corpus.files, "file")}, ${page.bytes(corpus.bytes)}` : ", not beside the run")]),
    ].flatMap(([name, value]) => [el("dt", null, name), el("dd", null, value)]));
    page.at("about-recipe").textContent = page.harmless(about.recipe);
    page.at("corpora").replaceChildren(...about.corpora.filter((corpus) => corpus.domains).flatMap(corpusOf));
    page.at("corpora-none").hidden = about.corpora.some((corpus) => corpus.domains);
    page.at("downloads").replaceChildren(...page.state.downloads.map((file) => el("li", null,
      el("a", { href: `downloads/${encodeURIComponent(file.name)}`, download: file.name }, file.name), ` ${page.bytes(file.bytes)}`, el("br"), el("small", null, file.about))));
  };

  const contact = (text) => (/^[^\s@:]+@[^\s@:]+$/.test(text) ? el("a", { href: `mailto:${encodeURI(text)}` }, page.harmless(text)) : page.outside(text, text));

  function corpusOf(corpus) {
    const excluded = (domain) => Object.values(domain.exclusions).reduce((sum, count) => sum + count, 0);
    const parts = [
      el("h3", null, "What was read, kept and left out"),
      page.table("Records by domain",
        [["domain", false], ["read", true], ["kept", true], ["held out", true], ["left out", true], ["share", true], ["tokens", true]],
        corpus.domains.map((domain) => [
          page.harmless(domain.name), page.count(domain.read), page.count(domain.kept), page.count(domain.held_out),
          page.count(excluded(domain)), `${((excluded(domain) / Math.max(1, domain.read)) * 100).toFixed(1)}%`, page.short(domain.tokens)])),
      el("h3", null, "Why records were left out"), rules(corpus),
    ];
    if (!corpus.report) return parts;
    const { sources, duplicates, contamination } = corpus.report;
    parts.push(el("h3", null, "Sources and licences"), page.table("Sources and licences",
      [["source", false], ["licence", false], ["documents", true], ["tokens", true]],
      sources.flatMap((source) => source.licences.map((x) => [page.harmless(source.name), page.harmless(x.licence || "none stated"), page.count(x.documents), page.short(x.tokens)]))));
    if (duplicates.clusters) {
      parts.push(el("h3", null, "Duplicates"),
        el("p", null, page.harmless(`${Object.entries(duplicates.by_rule).map(([rule, n]) => `${rule}: ${page.count(n)}`).join(", ")}, for ${page.some(duplicates.clusters, "document")} that stay. The most repeated:`)),
        page.table("Most repeated documents", [["stays", false], ["dropped for it", true], ["least similar", true]],
          duplicates.largest.map((x) => [page.harmless(x.kept_id), page.count(x.dropped), page.number(x.similarity)])));
    }
    if (contamination.length) {
      parts.push(el("h3", null, "Evaluation sets"), page.table("Evaluation sets",
        [["set", false], ["documents dropped", true], ["items planted", true], ["found", true], ["too short", true], ["clean, yet flagged", true]],
        contamination.map((x) => [page.harmless(x.set), page.count(x.dropped), page.count(x.planted), page.count(x.found), page.count(x.too_short), page.count(x.flagged)])));
    }
    return parts;
  }

  function rules(corpus) {
    const totals = new Map();
    for (const domain of corpus.domains) {
      for (const [rule, count] of Object.entries(domain.exclusions)) {
        const known = totals.get(rule) || [0, []];
        totals.set(rule, [known[0] + count, [...known[1], [domain.name, count]]]);
      }
    }
    const rows = [...totals].sort((a, b) => b[1][0] - a[1][0]).map(([rule, [count, where]]) => [
      page.harmless(rule), page.count(count),
      page.harmless(where.sort((a, b) => b[1] - a[1]).slice(0, 4).map(([name, n]) => `${name} ${page.count(n)}`).join(", ") + (where.length > 4 ? " \u2026" : ""))]);
    return rows.length ? page.table("Records by rule", [["rule", false], ["records", true], ["most in", false]], rows) : el("p", null, "Nothing was left out.");
  }
})((globalThis.page = globalThis.page || {}));
