// What all parts of the page stand on: loading data, making elements, writing numbers.
//
// Every text that comes from a run is hostile until proven otherwise: it reaches the page as a text node and in no
// other way. The content security policy forbids inline scripts, and trusted types forbid markup from strings.
(function (page) {
  "use strict";

  // --- data ---

  const MOST_HELD = 300;
  const NAME = /^[A-Za-z0-9_][A-Za-z0-9_./-]*$/;
  const held = new Map();
  const waiting = new Map();
  const policy = globalThis.trustedTypes
    ? trustedTypes.createPolicy("page", { createScriptURL: (url) => url })
    : { createScriptURL: (url) => url };

  /** Called by each data file. */
  page.loaded = function (name, text) {
    const wait = waiting.get(name);
    if (wait) wait.resolve(text);
  };

  /** The text of data/NAME.js; ``version`` changes where the file does. */
  page.text = function (name, version) {
    const key = `${name}?${version ?? ""}`;
    const known = held.get(key);
    if (known) {
      // The least recently used one is the first to go.
      held.delete(key);
      held.set(key, known);
      return known;
    }
    const promise = load(name, version);
    held.set(key, promise);
    promise.catch(() => held.delete(key));
    while (held.size > MOST_HELD) held.delete(held.keys().next().value);
    return promise;
  };

  async function load(name, version) {
    if (!NAME.test(name) || name.includes("..")) throw new Error(`not a name of a data file: ${name}`);
    while (waiting.has(name)) await waiting.get(name).promise.catch(() => null);
    const wait = {};
    wait.promise = new Promise((resolve, reject) => Object.assign(wait, { resolve, reject }));
    waiting.set(name, wait);
    const element = document.createElement("script");
    element.src = policy.createScriptURL(`data/${name}.js${version === undefined ? "" : `?v=${version}`}`);
    const missing = () => wait.reject(new Error(`data/${name}.js is not there`));
    element.addEventListener("error", missing);
    element.addEventListener("load", missing);
    document.head.append(element);
    try {
      return await wait.promise;
    } finally {
      waiting.delete(name);
      element.remove();
    }
  }

  /** The value of data/NAME.js. */
  page.data = async (name, version) => JSON.parse(await page.text(name, version));

  // --- elements ---

  /** An element; children that are no elements become text. Attributes that are null, undefined or false are left out. */
  page.el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

  /** An SVG element. */
  page.svg = (tag, attributes, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (typeof value === "function") element.addEventListener(name, value);
      else element.setAttribute(name, value === true ? "" : String(value));
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return element;
  }

  /** The element with an id. */
  page.at = (id) => document.getElementById(id);

  /** Text in which control, format and unassigned characters are written out: it cannot turn the line or hide. */
  page.harmless = (text) =>
    String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}]/gu, (c) =>
      c === "\n" || c === "\t" ? c : `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);

  /** A hash as people read it, whole for who points at it. */
  page.hash = (text) => page.el("code", { class: "hash", title: text }, String(text).slice(0, 16));

  /** A table: columns are [heading, is it a number]; cells are texts or elements. */
  page.table = function (caption, columns, rows) {
    const head = columns.map(([name, number]) => page.el("th", { scope: "col", class: number ? "number" : null }, name));
    const body = rows.map((cells) =>
      page.el("tr", null, cells.map((cell, n) =>
        page.el(n ? "td" : "th", { class: columns[n][1] ? "number" : null, scope: n ? null : "row" }, cell ?? ""))));
    const table = page.el("table", null,
      page.el("caption", { class: "unseen" }, caption), page.el("thead", null, page.el("tr", null, head)),
      page.el("tbody", null, body));
    return page.el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, table);
  };

  /** A paragraph of texts and elements, texts made harmless. */
  page.said = (parts, attributes) => page.el("p", attributes, parts.map((part) => (typeof part === "string" ? page.harmless(part) : part)));

  /** A link to elsewhere, where the address is one that a browser may open; else its text. */
  page.outside = (url, text) =>
    /^https?:\/\//i.test(url || "")
      ? page.el("a", { href: url, rel: "noopener noreferrer nofollow" }, page.harmless(text ?? url))
      : page.el("span", null, page.harmless(text ?? url ?? ""));

  // --- numbers ---

  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

  /** 12,345 */
  page.count = (value) => whole.format(value);

  /** One of a thing, or several. */
  page.some = (value, thing, things) => `${page.count(value)} ${value === 1 ? thing : things ?? `${thing}s`}`;

  /** 18.0T, 409.6k, 96 */
  page.short = function (value) {
    const units = ["", "k", "M", "B", "T", "Q"];
    let at = 0;
    while (Math.abs(value) >= 999.95 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
    return at ? `${value.toFixed(value < 99.95 ? 1 : 0)}${units[at]}` : `${Math.round(value * 100) / 100}`;
  };

  /** A number to the digits that a chart can show. */
  page.number = function (value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "\u2013";
    const size = Math.abs(value);
    if (size >= 1e5) return page.short(value);
    if (size >= 100) return value.toFixed(size >= 1000 ? 0 : 1);
    if (size >= 0.01 || value === 0) return String(Number(value.toFixed(size >= 10 ? 2 : size >= 1 ? 3 : 4)));
    if (size >= 1e-4) return String(Number(value.toPrecision(3)));
    return Number(value.toPrecision(3)).toExponential().replace("e-", "e\u2212");
  };

  /** About how long: 12 s, 5 min, 3 h 20 min, 12 days. */
  page.duration = function (seconds) {
    if (seconds < 90) return `${Math.round(seconds)} s`;
    const minutes = Math.round(seconds / 60);
    if (minutes < 90) return `${minutes} min`;
    if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
    return `${Math.round(minutes / 1440)} days`;
  };

  /** A moment as people read it. */
  page.moment = function (iso) {
    const when = new Date(iso);
    const text = Number.isNaN(when.getTime())
      ? page.harmless(iso)
      : when.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short", timeZone: "UTC" }) + " UTC";
    return page.el("time", { datetime: iso }, text);
  };

  /** Bytes as 1.2 MB. */
  page.bytes = (value) => (value < 1000 ? `${value} B` : `${page.short(value).replace(/([kMBTQ])$/, (u) => ` ${u === "B" ? "G" : u}B`)}`);

  /** Something that failed, said where it would have been. */
  page.failed = (error) => page.el("p", { class: "wrong", role: "alert" }, page.harmless(error.message || error));
})((globalThis.page = globalThis.page || {}));
