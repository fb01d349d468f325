// Answers questions about plans by the page's own plan.js: node page_plan.js STATIC-FOLDER < QUESTIONS > ANSWERS
"use strict";
const [folder] = process.argv.slice(2);
require(`${folder}/sha256.js`);
require(`${folder}/plan.js`);

const answers = JSON.parse(require("fs").readFileSync(0, "utf8")).map(({ plan: raw, rows, spans, sequences }) => {
  const plan = page.openPlan(raw);
  return {
    steps: plan.totalSteps,
    spans: rows.map((step) => plan.span(step)),
    rows: rows.map((step) => plan.rows(step).map((r) => [r.domain, r.corpus, r.epoch, r.number, r.start])),
    exposures: spans.map(([domain, corpus, start, end]) =>
      plan.exposures(domain, corpus, start, end).map((e) => [e.index, e.step, e.row, e.epoch, e.phase, e.tokens])),
    found: sequences.map(([domain, epoch, number]) => {
      const found = plan.find(domain, epoch, number);
      return found && [found.index, found.step, found.row];
    }),
  };
});
process.stdout.write(JSON.stringify(answers));
