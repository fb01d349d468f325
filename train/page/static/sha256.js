// SHA-256 (FIPS 180-4) without the browser's own: that one is missing on plain http, and only answers later.
(function (page) {
  "use strict";

  // The first 32 bits of the fractions of the cube roots (K) and square roots (START) of the first primes.
  const K = new Uint32Array(64);
  const START = new Uint32Array(8);
  for (let prime = 2, n = 0; n < 64; prime++) {
    let isPrime = true;
    for (let d = 2; d * d <= prime; d++) if (prime % d === 0) isPrime = false;
    if (!isPrime) continue;
    if (n < 8) START[n] = fraction(Math.sqrt(prime));
    K[n++] = fraction(Math.cbrt(prime));
  }

  function fraction(root) {
    return Math.floor((root - Math.floor(root)) * 2 ** 32);
  }

  const W = new Uint32Array(64);

  function compress(state, bytes, at) {
    for (let i = 0; i < 16; i++, at += 4) {
      W[i] = (bytes[at] << 24) | (bytes[at + 1] << 16) | (bytes[at + 2] << 8) | bytes[at + 3];
    }
    for (let i = 16; i < 64; i++) {
      const x = W[i - 15];
      const y = W[i - 2];
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      W[i] = W[i - 16] + s0 + W[i - 7] + s1;
    }
    // Not as [a, b, ...] = state: that iterates, at three times the cost of all the rest.
    let a = state[0], b = state[1], c = state[2], d = state[3];
    let e = state[4], f = state[5], g = state[6], h = state[7];
    for (let i = 0; i < 64; i++) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + K[i] + W[i]) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g; g = f; f = e; e = (d + t1) | 0;
      d = c; c = b; b = a; a = (t1 + t2) | 0;
    }
    state[0] += a; state[1] += b; state[2] += c; state[3] += d;
    state[4] += e; state[5] += f; state[6] += g; state[7] += h;
  }

  /** SHA-256 of a Uint8Array, as a Uint8Array of 32. */
  page.sha256 = function (bytes) {
    const state = START.slice();
    const whole = bytes.length - (bytes.length % 64);
    for (let at = 0; at < whole; at += 64) compress(state, bytes, at);
    const rest = bytes.length - whole;
    const tail = new Uint8Array(rest < 56 ? 64 : 128);
    tail.set(bytes.subarray(whole));
    tail[rest] = 0x80;
    const view = new DataView(tail.buffer);
    view.setUint32(tail.length - 8, Math.floor(bytes.length / 2 ** 29));
    view.setUint32(tail.length - 4, (bytes.length * 8) >>> 0);
    for (let at = 0; at < tail.length; at += 64) compress(state, tail, at);
    const out = new DataView(new ArrayBuffer(32));
    state.forEach((word, i) => out.setUint32(4 * i, word));
    return new Uint8Array(out.buffer);
  };

  const encoder = new TextEncoder();

  /** A text as UTF-8 bytes. */
  page.utf8 = (text) => encoder.encode(text);

  /** Bytes as lower-case hex. */
  page.hex = (bytes) => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");

  /** Hex as bytes. */
  page.unhex = (text) => Uint8Array.from(text.match(/../g) || [], (pair) => parseInt(pair, 16));

  /** Several byte arrays as one. */
  page.joined = function (...parts) {
    const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
      out.set(part, at);
      at += part.length;
    }
    return out;
  };
})((globalThis.page = globalThis.page || {}));
