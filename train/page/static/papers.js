// Plans, risks, procedures, designs that failed: the Markdown that was frozen with the run, every version of it.
(function (page) {
  "use strict";

  const { el } = page;
  const opened = new Set();

  page.showPapers = function () {
    const papers = page.state.papers || [];
    page.at("papers").hidden = !papers.length;
    page.at("papers-list").replaceChildren(...papers.map(paper));
  };

  function paper({ title, name, versions }) {
    const newest = versions[versions.length - 1];
    const body = el("div", { class: "paper" });
    const choose = versions.length < 2 ? null : el("label", null, "Version ", el("select", { change: (event) => read(Number(event.target.value)) },
      versions.map((version) => el("option", { value: version.number, selected: version === newest }, `${version.number}, record ${version.seq}`))));
    const box = el("details", { id: `paper-${name}`, toggle: () => {
      if (!box.open) return void opened.delete(name);
      opened.add(name);
      if (!body.firstChild) read(newest.number);
    } }, el("summary", null, page.harmless(title)), choose, body);
    async function read(number) {
      const version = versions.find((one) => one.number === number);
      const by = [version.who ? `by ${version.who} \u00b7 ` : "", "SHA-256 ", page.hash(version.sha256), ` \u00b7 record ${version.seq}`];
      try {
        const text = await page.text(`papers/${name}/${number}`, version.sha256);
        const same = page.hex(page.sha256(page.utf8(text))) === version.sha256;
        body.replaceChildren(
          same ? page.said(by, { class: "by" }) : el("p", { class: "wrong" }, "This is not the text that the ledger names."),
          page.markdown(text));
      } catch (error) {
        body.replaceChildren(page.failed(error));
      }
    }
    if (opened.has(name)) box.open = true;
    return box;
  }
})((globalThis.page = globalThis.page || {}));
