// The run's numbers over a range of steps, at a width of bin that fits: loads only the tiles that are looked at.
(function (page) {
  "use strict";

  const CHUNK = 4096;
  const TILE = 4096;
  const DOMAIN_TILE = 256;

  /** The series of that slug as the state lists it, or undefined. */
  page.seriesOf = (slug) => page.state.series.list.find((series) => series.slug === slug);

  const width = (level) => 4 ** level;

  /** A tile changes whenever one of its chunks of steps does. */
  function version(level, tile, size) {
    const chunks = page.state.series.revisions;
    const steps = size * width(level);
    const [from, to] = [Math.floor((tile * steps) / CHUNK), Math.ceil(((tile + 1) * steps) / CHUNK)];
    return chunks.slice(from, to).reduce((sum, revision) => sum + revision, 0);
  }

  /**
   * A series over steps first to last, in at most about ``most`` bins.
   *
   * Resolves to {level, width, first, mean, min, max}: bin i holds steps from first + i * width on; of domains
   * ``mean`` is a list of such lists, and there is no min and max. Bins without a number are NaN.
   */
  page.window = async function (slug, first, last, most) {
    const series = page.seriesOf(slug);
    if (!series) return null;
    let level = series.base;
    while (level < series.top && (last - first + 1) / width(level) > most) level++;
    const size = series.domains ? DOMAIN_TILE : TILE;
    const steps = width(level);
    const reached = page.state.status.step;
    const [low, high] = [Math.floor((first - 1) / steps), Math.floor((Math.min(last, reached) - 1) / steps)];
    const count = Math.max(0, high - low + 1);
    const lines = series.domains ? page.state.domains.length : 1;
    const make = () => Array.from({ length: lines }, () => new Float64Array(count).fill(NaN));
    const out = { mean: make(), min: make(), max: make() };
    const tiles = [];
    for (let tile = Math.floor(low / size); tile <= Math.floor(high / size) && count; tile++) tiles.push(tile);
    await Promise.all(tiles.map(async (tile) => {
      // A tile without any number was not written.
      const found = await page.data(`series/${slug}/${level}-${tile}`, version(level, tile, size)).catch(() => null);
      if (found) copy(series, found, tile * size - low, out);
    }));
    const start = { level, width: steps, first: low * steps + 1, count };
    if (series.domains) return { ...start, mean: out.mean };
    const [mean] = out.mean;
    return { ...start, mean, min: level ? out.min[0] : mean, max: level ? out.max[0] : mean };
  };

  function copy(series, tile, offset, out) {
    for (const name of ["mean", "min", "max"]) {
      if (!tile[name]) continue;
      const lines = series.domains ? tile[name] : [tile[name]];
      lines.forEach((values, line) => {
        const target = out[name][line];
        values.forEach((value, n) => {
          const at = offset + (tile.at ? tile.at[n] : n);
          if (target && value !== null && at >= 0 && at < target.length) target[at] = value;
        });
      });
    }
  }

  // --- the range of steps that all charts show ---

  const listeners = [];
  const EARLY = 0.4;
  const ROOM = 1.15;

  page.range = {
    first: 1,
    last: 1,
    /** True while the whole run is shown, however long it becomes. */
    whole: true,
    /** True until somebody chooses: a run that has just begun is shown as far as it is, with some room. */
    open: true,
    set(first, last) {
      this.open = false;
      const total = page.state.status.steps;
      const span = Math.max(8, Math.round(last - first));
      this.first = Math.max(1, Math.min(Math.round(first), total - span));
      this.last = Math.min(total, Math.max(this.first + span, Math.min(8, total)));
      this.whole = this.first === 1 && this.last === total;
      listeners.forEach((listener) => listener());
    },
    reset() {
      this.set(1, page.state.status.steps);
    },
    /** Follow a run that became longer, where all of it is shown; who draws anyway needs no call. */
    fit() {
      const { step, steps } = page.state.status;
      const early = this.open && step < steps * EARLY && !page.state.forecast;
      if (this.open || this.whole) [this.first, this.last] = [1, early ? Math.min(steps, Math.max(50, Math.ceil(step * ROOM))) : steps];
      if (this.open) this.whole = !early;
    },
    on: (listener) => listeners.push(listener),
  };
})((globalThis.page = globalThis.page || {}));
