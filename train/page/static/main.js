// Starts the page, and follows the run while it goes.
(function (page) {
  "use strict";

  const EVERY = 20_000;

  /** Show what the state says, part by part; a part that fails says so where it stands. */
  async function show() {
    page.range.fit();
    const parts = [
      ["status", page.showStatus], ["loss", page.showLoss], ["mixture", page.showMixture], ["timeline", page.showTimeline],
      ["papers", page.showPapers], ["health", page.showHealth], ["steps", page.showExplorer], ["documents", page.showLookup],
      ["record", page.showRecord], ["about", page.showAbout],
    ];
    const [status, loss, ...others] = parts.map(([id, part]) => async () => {
      try {
        await part();
      } catch (error) {
        console.error(error);
        const old = page.at(`${id}-failed`);
        if (old) old.remove();
        const said = page.failed(error);
        said.id = `${id}-failed`;
        page.at(id).append(said);
      }
    });
    await status();
    await loss();
    page.drawn = page.drawn || performance.now();
    await Promise.all(others.map((show) => show()));
    page.at("made").replaceChildren("Made ", page.moment(page.state.made), ".");
    document.body.dataset.ready = page.state.made;
  }

  /** Show what became of the run since. */
  page.refresh = async function () {
    if (document.visibilityState !== "visible") return;
    const state = await page.data("state", Date.now()).catch(() => null);
    if (!state || state.made === page.state.made) return;
    page.state = state;
    await show();
  };

  async function start() {
    try {
      page.state = await page.data("state", Date.now());
    } catch {
      page.at("title").textContent = "This page has no data yet";
      page.at("description").textContent = "Beside it there must be a folder named data, which millstream page writes.";
      return;
    }
    for (const begin of [page.startLoss, page.startMixture, page.startTimeline, page.startExplorer, page.startLookup, page.startRecord]) begin();
    await show();
    page.openStep(Number(page.at("step-number").value));
    if (page.state.status.state !== "finished" || page.state.served) setInterval(page.refresh, EVERY);
  }

  start();
})((globalThis.page = globalThis.page || {}));
