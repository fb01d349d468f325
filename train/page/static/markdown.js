// Markdown as elements: headings, paragraphs, lists, quotes, code, tables, emphasis, links. No markup passes through.
(function (page) {
  "use strict";

  const { el } = page;
  const MOST = 400_000;

  /** A text in Markdown as an element; headings begin at the level given. */
  page.markdown = function (text, level = 4) {
    const lines = String(text).slice(0, MOST).replace(/\r\n?/g, "\n").split("\n");
    return el("div", { class: "prose" }, blocks(lines, level));
  };

  const LIST = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
  const BREAKS = /^\s*$|^#{1,6}\s|^\s*(```|~~~)|^\s*>|^\s*([-*_]\s*){3,}$/;

  function blocks(lines, level) {
    const out = [];
    let at = 0;
    while (at < lines.length) {
      const line = lines[at];
      const heading = line.match(/^(#{1,6})\s+(.*?)\s*#*$/);
      const fence = line.match(/^\s*(```|~~~)/);
      if (/^\s*$/.test(line)) {
        at++;
      } else if (heading) {
        out.push(el(`h${Math.min(6, level + heading[1].length - 1)}`, null, spans(heading[2])));
        at++;
      } else if (fence) {
        const end = lines.findIndex((other, n) => n > at && other.trim().startsWith(fence[1]));
        const stop = end < 0 ? lines.length : end;
        out.push(el("pre", null, el("code", null, page.harmless(lines.slice(at + 1, stop).join("\n")))));
        at = stop + 1;
      } else if (/^\s*([-*_]\s*){3,}$/.test(line)) {
        out.push(el("hr"));
        at++;
      } else if (/^\s*>/.test(line)) {
        const own = take(lines, at, (other) => /^\s*>/.test(other));
        out.push(el("blockquote", null, blocks(own.map((other) => other.replace(/^\s*>\s?/, "")), level)));
        at += own.length;
      } else if (LIST.test(line)) {
        const own = take(lines, at, (other, n) => LIST.test(other) || /^\s{2,}\S/.test(other) || (/^\s*$/.test(other) && (LIST.test(lines[at + n + 1] || "") || /^\s{2,}\S/.test(lines[at + n + 1] || ""))));
        out.push(list(own, level));
        at += own.length;
      } else if (line.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[at + 1] || "")) {
        const own = take(lines, at, (other) => other.includes("|"));
        out.push(table(own));
        at += own.length;
      } else {
        const own = take(lines, at, (other, n) => n === 0 || (!BREAKS.test(other) && !LIST.test(other)));
        out.push(el("p", null, spans(own.join("\n"))));
        at += own.length;
      }
    }
    return out;
  }

  function take(lines, at, fits) {
    let end = at;
    while (end < lines.length && fits(lines[end], end - at)) end++;
    return lines.slice(at, Math.max(end, at + 1));
  }

  function list(lines, level) {
    const [, indent, mark] = lines[0].match(LIST);
    const items = [];
    for (const line of lines) {
      const found = line.match(LIST);
      if (found && found[1].length <= indent.length) items.push([found[3]]);
      else items[items.length - 1].push(line.slice(Math.min(line.length - line.trimStart().length, indent.length + 2)));
    }
    return el(/\d/.test(mark) ? "ol" : "ul", null, items.map((own) => {
      const inner = own.length > 1 ? blocks(own, level) : [el("p", null, spans(own[0]))];
      // A single paragraph needs no room of its own.
      return el("li", null, inner[0].tagName === "P" ? [...inner[0].childNodes, ...inner.slice(1)] : inner);
    }));
  }

  function table(lines) {
    const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());
    const [head, , ...rest] = lines;
    return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "table" }, el("table", null,
      el("thead", null, el("tr", null, cells(head).map((cell) => el("th", { scope: "col" }, spans(cell))))),
      el("tbody", null, rest.map((line) => el("tr", null, cells(line).map((cell) => el("td", null, spans(cell))))))));
  }

  const SPAN = /(`+)([^`]+)\1|\*\*([^*]+)\*\*|__([^_]+)__|\*([^*\s][^*]*)\*|(?<![\w])_([^_\s][^_]*)_(?![\w])|\[([^\]]+)\]\(((?:[^()\s]|\([^()\s]*\))+)\)|<(https?:[^>\s]+)>/;

  function spans(text) {
    const out = [];
    let rest = text;
    for (let found = rest.match(SPAN); found; found = rest.match(SPAN)) {
      if (found.index) out.push(page.harmless(rest.slice(0, found.index)));
      const [, , code, bold, bold2, soft, soft2, label, url, bare] = found;
      if (code !== undefined) out.push(el("code", null, page.harmless(code)));
      else if (bold ?? bold2) out.push(el("strong", null, spans(bold ?? bold2)));
      else if (soft ?? soft2) out.push(el("em", null, spans(soft ?? soft2)));
      else out.push(page.outside(url ?? bare, label ?? bare));
      rest = rest.slice(found.index + found[0].length);
    }
    if (rest) out.push(page.harmless(rest));
    return out;
  }
})((globalThis.page = globalThis.page || {}));
