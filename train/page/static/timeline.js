// What happened: every record that is no step, newest first, with who, why, and its place in the ledger.
(function (page) {
  "use strict";

  const { el } = page;
  const EVENTS = 500;
  const AT_ONCE = 40;
  const QUIET = new Set(["checkpoint", "segment"]);
  let shown = AT_ONCE;
  let hidden = new Set(QUIET);

  const tile = (number) => page.data(`timeline/${number}`, page.state.timeline.revision);

  /** The event of a record. */
  page.eventOf = async function (seq) {
    for (let number = page.state.timeline.tiles - 1; number >= 0; number--) {
      const events = await tile(number);
      const found = events.find((event) => event.seq === seq);
      if (found || events[0].seq < seq) return found;
    }
    return undefined;
  };

  /** Show the timeline as far as an event, and go there. */
  page.openEvent = async function (seq) {
    const event = await page.eventOf(seq);
    if (event) hidden.delete(event.kind);
    while (!page.at(`event-${seq}`) && shown < page.state.timeline.events + AT_ONCE) {
      await page.showTimeline();
      if (!page.at(`event-${seq}`)) shown += AT_ONCE;
    }
    const found = page.at(`event-${seq}`);
    if (found) {
      found.scrollIntoView({ block: "center" });
      found.focus();
    }
  };

  page.startTimeline = function () {
    page.at("timeline-more").addEventListener("click", () => {
      shown += AT_ONCE;
      page.showTimeline();
    });
  };

  page.showTimeline = async function () {
    const kinds = new Map();
    const list = [];
    let left = 0;
    for (let number = page.state.timeline.tiles - 1; number >= 0; number--) {
      // Older tiles are read once they are asked for.
      if (list.length >= shown) {
        left += EVENTS;
        continue;
      }
      for (const event of [...(await tile(number))].reverse()) {
        kinds.set(event.kind, (kinds.get(event.kind) || 0) + 1);
        if (hidden.has(event.kind)) continue;
        if (list.length < shown) list.push(event);
        else left += 1;
      }
    }
    filters(kinds);
    page.at("timeline-list").replaceChildren(...list.map(item));
    page.at("timeline-more").hidden = !left;
    page.at("timeline-none").hidden = list.length > 0;
  };

  function filters(kinds) {
    const box = page.at("timeline-kinds");
    const had = document.activeElement && document.activeElement.id;
    box.replaceChildren(...[...kinds].sort().map(([kind, count]) => {
      const input = el("input", {
        type: "checkbox", id: `kind-${kind}`,
        change: (event) => {
          if (event.target.checked) hidden.delete(kind);
          else hidden.add(kind);
          page.showTimeline();
        },
      });
      input.checked = !hidden.has(kind);
      return el("span", { class: "choice" }, input, el("label", { for: input.id }, `${page.harmless(kind)} ${page.count(count)}`));
    }));
    if (had && had.startsWith("kind-") && page.at(had)) page.at(had).focus();
  }

  function item(event) {
    const about = [
      event.who ? `by ${event.who}` : null,
      event.time ? page.moment(event.time) : null,
      el("span", null, `record ${event.seq} `, page.hash(event.hash)),
    ].filter(Boolean).flatMap((part, n) => (n ? [" · ", part] : [part]));
    const note = event.kind === "note";
    return el("li", { id: `event-${event.seq}`, tabindex: -1, class: event.kind },
      el("div", { class: "when" }, el("span", { class: "step" }, `step ${page.count(event.step)}`), el("span", { class: "kind" }, page.harmless(event.kind))),
      el("div", { class: "what" },
        note ? page.markdown(event.said) : el("p", null, page.harmless(event.said)),
        event.more ? el("details", null, el("summary", null, page.harmless(`All ${event.more[0]}`)), el("p", { class: "by" }, page.harmless(event.more[1]))) : null,
        event.why && !["plan", "control"].includes(event.why) ? el("p", { class: "why" }, page.harmless(event.why)) : null,
        page.said(about, { class: "by" })));
  }
})((globalThis.page = globalThis.page || {}));
