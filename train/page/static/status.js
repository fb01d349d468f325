// The head of the page: what the run is, how far it is, when it will be done.
(function (page) {
  "use strict";

  const { el } = page;
  const SAID = {
    training: "Training now",
    stopped: "Standing still",
    finished: "Finished",
    "not begun": "Not begun",
  };

  function figure(label, value, more) {
    return el("div", null, el("dt", null, label), el("dd", null, value, more ? el("small", null, more) : null));
  }

  page.showStatus = function () {
    const { status: now, title, description, phases } = page.state;
    document.title = `${page.harmless(title)} · step ${page.count(now.step)} of ${page.count(now.steps)}`;
    page.at("title").textContent = page.harmless(title);
    page.at("description").textContent = page.harmless(description || "");
    const share = now.steps ? now.step / now.steps : 0;
    page.at("state").replaceChildren(
      el("span", { class: `light ${now.state.replace(" ", "-")}`, "aria-hidden": "true" }), SAID[now.state] || now.state);
    page.at("figures").replaceChildren(...[
      figure("Step", page.count(now.step), `of ${page.count(now.steps)}`),
      figure("Tokens", page.short(now.tokens), `of ${page.short(now.tokens + now.tokens_left)}`),
      now.loss === null ? null : figure("Loss", page.number(now.loss), "nats a token"),
      !now.tokens_per_s ? null : now.state === "finished" || now.eta_s === null
        ? figure("Pace", page.short(now.tokens_per_s), "tokens a second")
        : figure("Left", page.duration(now.eta_s), `at ${page.short(now.tokens_per_s)} tokens a second`),
    ].filter(Boolean));
    const bar = page.at("progress");
    bar.setAttribute("aria-valuenow", (share * 100).toFixed(1));
    bar.setAttribute("aria-valuetext", `step ${page.count(now.step)} of ${page.count(now.steps)}, ${(share * 100).toFixed(1)} percent`);
    const named = phases.filter((phase, n) => !n || phases[n - 1].name !== phase.name).map((phase) => ({
      name: phase.name, first: phase.first, last: phases.filter((p) => p.name === phase.name).pop().last,
    }));
    bar.replaceChildren(...named.map((phase) => {
      const length = phase.last - phase.first + 1;
      const done = Math.min(1, Math.max(0, (now.step - phase.first + 1) / length));
      const part = el("div", { class: "part" }, el("span", { class: "done" }), el("span", { class: "part-name" }, page.harmless(phase.name)));
      part.style.flexGrow = length;
      part.firstChild.style.width = `${done * 100}%`;
      return part;
    }));
    const asides = [
      now.attempts ? page.some(now.attempts, "start") + (now.ranks ? `, last on ${page.some(now.ranks, "rank")}` : "") : null,
      now.superseded ? `${page.some(now.superseded, "step")} superseded` : null,
      now.skipped_updates ? `${page.some(now.skipped_updates, "update")} not applied` : null,
      now.alerts ? page.some(now.alerts, "alert") : null,
      now.not_finite ? `${page.some(now.not_finite, "loss", "losses")} not finite` : null,
    ].filter(Boolean);
    page.at("asides").replaceChildren(
      "Last record ", page.moment(now.written), asides.length ? ` · ${asides.join(" · ")}` : "");
  };
})((globalThis.page = globalThis.page || {}));
