#!/usr/bin/env python3
"""Check a proof of Millstream without Millstream and without the data.

    python verifier.py PROOF [--file TEXT] [--key VERIFIER_KEY] [--head HEAD]

This one file needs Python 3.11 and the package ``cryptography``; read it before you trust it. It says line by line
what the proof shows, and ends with 0, or with 1 where the proof fails. A proof is JSON, ``millstream-proof/1``, of a
kind:

    record       a record stands in the ledger that a signed head covers
    include      a document of that key lies in the run's corpus, and the plan put its tokens into rows of a step that
                 was fed
    absent       no document of that key lies in any corpus of the run
    consistent   nothing that an older head covers was changed before a newer one

Sources: RFC 6962 and RFC 9162 (trees and their proofs), C2SP signed-note and tlog-checkpoint (heads), RFC 8032
(Ed25519).
"""

import argparse
import base64
import binascii
import hashlib
import json
import math
import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

FORMAT = "millstream-proof/1"
ED25519 = b"\x01"
EMPTY = bytes(32)
"""Hash of a part of the key trie that holds no key."""


class Refused(Exception):
    """A proof does not show what it claims."""


def refuse(why: str) -> NoReturn:
    """End the check."""
    raise Refused(why)


# --- trees ---


def sha256(data: bytes) -> bytes:
    """SHA-256, 32 bytes."""
    return hashlib.sha256(data).digest()


def leaf_hash(data: bytes) -> bytes:
    """Hash of one entry of a tree, 32 bytes."""
    return sha256(b"\x00" + data)


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash of an inner node, 32 bytes."""
    return sha256(b"\x01" + left + right)


def root_of_path(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """The root that a leaf and its path lead to (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        refuse(f"entry {index} of a tree of {size}")
    at, last, found = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            refuse("a path is too long for its tree")
        if at & 1 or at == last:
            found = node_hash(sibling, found)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        at, last = at >> 1, last >> 1
    if last:
        refuse("a path is too short for its tree")
    return found


def roots_of_consistency(old: int, new: int, old_root: bytes, path: list[bytes]) -> tuple[bytes, bytes]:
    """The two roots that a consistency path leads to (RFC 9162, 2.1.4.2); ``0 < old <= new``."""
    if not 0 < old <= new:
        refuse(f"no tree of {old} entries grows into one of {new}")
    if old == new:
        return (old_root, old_root) if not path else refuse("a path between trees of one size")
    path = path if old & (old - 1) else [old_root, *path]
    if not path:
        refuse("an empty path between two trees")
    at, last = old - 1, new - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    before = after = path[0]
    for sibling in path[1:]:
        if last == 0:
            refuse("a path is too long for its trees")
        if at & 1 or at == last:
            before, after = node_hash(sibling, before), node_hash(sibling, after)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            after = node_hash(after, sibling)
        at, last = at >> 1, last >> 1
    if last:
        refuse("a path is too short for its trees")
    return before, after


def key_leaf(key: bytes) -> bytes:
    """Hash of a part of the key trie that holds one key alone."""
    return leaf_hash(b"key/v1\0" + key)


def bit(key: bytes, place: int) -> int:
    """A bit of a key, from its first byte's highest on."""
    return key[place >> 3] >> (7 - (place & 7)) & 1


def root_of_trie(key: bytes, bottom: bytes, siblings: list[bytes]) -> bytes:
    """The root of a key trie with ``bottom`` at the end of the way to a key; siblings from the top."""
    if len(siblings) > 256:
        refuse("a path is longer than a key")
    found = bottom
    for place in reversed(range(len(siblings))):
        pair = (siblings[place], found) if bit(key, place) else (found, siblings[place])
        found = node_hash(*pair)
    return found


# --- signed heads ---


@dataclass(frozen=True)
class Head:
    """A signed statement: a log's size and root, and of each corpus that the run reads the roots, None if unknown."""

    origin: str
    size: int
    root: bytes
    corpora: dict[str, tuple[bytes, bytes] | None]


def key_of(verifier_key: str) -> tuple[str, bytes, bytes]:
    """Name, four bytes of key hash and public key of ``NAME+HASH+BASE64``."""
    try:
        name, number, encoded = verifier_key.strip().split("+", 2)
        raw = base64.b64decode(encoded, validate=True)
        short = bytes.fromhex(number)
    except (ValueError, binascii.Error):
        refuse("not a verifier key (NAME+HASH+KEY)")
    if len(raw) != 33 or raw[:1] != ED25519:
        refuse("not an Ed25519 verifier key")
    if short != sha256(name.encode() + b"\n" + raw)[:4]:
        refuse("a verifier key's hash is not that of its name and key")
    return name, short, raw[1:]


def open_head(note: str, verifier_key: str) -> Head:
    """The head that a signed note holds, its signature checked."""
    text, found, signatures = note.rpartition("\n\n")
    if not found or not signatures.endswith("\n"):
        refuse("not a signed note")
    name, short, public = key_of(verifier_key)
    for line in signatures.splitlines():
        dash, signer, encoded = (*line.split(" "), "", "")[:3]
        if dash != "—" or signer != name:
            continue
        try:
            raw = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            refuse("a signature is not base64")
        if raw[:4] != short:
            continue
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(raw[4:], (text + "\n").encode())
        except InvalidSignature:
            refuse(f"the head's signature is not {name}'s")
        return _head(text)
    refuse(f"the head is not signed by {name}")


def _head(text: str) -> Head:
    lines = text.split("\n")
    if len(lines) < 3:
        refuse("not a head")
    origin, size, root, *more = lines
    corpora: dict[str, tuple[bytes, bytes] | None] = {}
    for line in more:
        word, corpus, keys, documents = (*line.split(" "), "", "", "")[:4]
        if word == "corpus":
            corpora[corpus] = None if keys == "-" else (bytes.fromhex(keys), bytes.fromhex(documents))
    if not size.isdecimal() or (len(size) > 1 and size[0] == "0"):
        refuse("a head's size is no number")
    return Head(origin, int(size), base64.b64decode(root, validate=True), corpora)


# --- the plan: index -> domain, tokens ---


def plan_key(*fields: str | int) -> bytes:
    """A key of the plan: SHA-256 over its fields, each with its length."""
    texts = [str(field).encode() for field in fields]
    return sha256(b"plan/v1\0" + b"".join(len(t).to_bytes(4, "little") + t for t in texts))


def mix32(v: int) -> int:
    """murmur3's 32-bit finaliser."""
    v = (v ^ v >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    v = (v ^ v >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return v ^ v >> 16


def mix64(v: int) -> int:
    """murmur3's 64-bit finaliser."""
    v = (v ^ v >> 33) * 0xFF51AFD7ED558CCD & 0xFFFFFFFFFFFFFFFF
    v = (v ^ v >> 33) * 0xC4CEB9FE1A85EC53 & 0xFFFFFFFFFFFFFFFF
    return v ^ v >> 33


def permute(key: bytes, size: int, index: int) -> int:
    """Where a keyed permutation of ``range(size)`` takes an index: a table up to 4,096, above it a Feistel network."""
    if size <= 4096:
        first, second = (int.from_bytes(key[n : n + 8], "little") for n in (0, 8))
        return sorted(range(size), key=lambda i: (mix64(mix64(i + first & 0xFFFFFFFFFFFFFFFF) ^ second), i))[index]
    words = [int.from_bytes(key[n : n + 4], "little") for n in range(0, 32, 4)]
    a = math.isqrt(size - 1) + 1
    b = (size + a - 1) // a
    while True:
        left, right = divmod(index, b)
        for r in range(0, 8, 2):
            left = (left + (mix32(right + words[r] & 0xFFFFFFFF) * a >> 32)) % a
            right = (right + (mix32(left + words[r + 1] & 0xFFFFFFFF) * b >> 32)) % b
        index = left * b + right
        if index < size:
            return index


def split(names: list[str], quotas: dict[str, int]) -> tuple[list[str], list[str]]:
    """Where a node of the quota tree divides its domains: where the halves' sums are closest."""
    total, running, best = sum(quotas[n] for n in names), 0, (math.inf, 0)
    for place in range(1, len(names)):
        running += quotas[names[place - 1]]
        best = min(best, (abs(2 * running - total), place))
    return names[: best[1]], names[best[1] :]


def drawn(phase: dict[str, Any], item: int) -> tuple[str, int]:
    """Domain and rank in the domain of an item of a phase."""
    quotas, exact = phase["quotas"], phase["exact"]
    length = phase["end"] - phase["first"]
    remaining = length
    for name in sorted(exact, key=lambda n: (exact[n], n), reverse=True):
        if remaining == exact[name]:
            return name, item
        before, after = ((2 * exact[name] * n + remaining) // (2 * remaining) for n in (item, item + 1))
        if after > before:
            return name, before
        item, remaining = item - before, remaining - exact[name]
    names = sorted(quotas, key=lambda n: (-quotas[n], n))
    while len(names) > 1:
        lower, upper = split(names, quotas)
        left, total = sum(quotas[n] for n in lower), sum(quotas[n] for n in names)
        before, after = ((2 * left * n + total) // (2 * total) for n in (item, item + 1))
        names, item = (lower, before) if after > before else (upper, item - before)
    return names[0], item


@dataclass(frozen=True)
class Place:
    """Where a sequence lies: a domain's tokens from ``start`` on, round a ring of ``tokens``."""

    domain: str
    corpus: str
    epoch: int
    start: int
    tokens: int


def place_of(plan: dict[str, Any], index: int) -> Place:
    """The sequence that a plan has at a global index."""
    phase = next((p for p in plan["phases"] if p["first"] <= index < p["end"]), None) or refuse(
        "index outside the plan"
    )
    seed, seq_len, window = plan["seed"], plan["seq_len"], phase["window"]
    number, inside = divmod(index - phase["first"], window)
    size = min(window, phase["end"] - phase["first"] - number * window)
    item = number * window + permute(plan_key(seed, "window", phase["number"], number), size, inside)
    domain, rank = drawn(phase, item)
    running = phase["cursors"][domain] + rank
    pieces = next(d["pieces"] for d in plan["domains"] if d["name"] == domain)
    piece = [p for p in pieces if p["running"] <= running][-1]
    tokens, per_epoch = piece["tokens"], piece["tokens"] // seq_len
    into, place = divmod(running - piece["running"], per_epoch)
    epoch = piece["epoch"] + into
    word = int.from_bytes(plan_key(seed, "offset", domain, epoch)[:8], "little")
    offset = word * tokens >> 64 if epoch else 0
    j = permute(plan_key(seed, "order", domain, epoch), per_epoch, place)
    return Place(domain, piece["corpus_id"], epoch, (offset + j * seq_len) % tokens, tokens)


# --- proofs ---


def document_key(text: str) -> bytes:
    """Key of a text: SHA-256 over ``doc/v1``, a zero byte and the text in NFC with CRLF as LF."""
    return sha256(b"doc/v1\0" + unicodedata.normalize("NFC", text).replace("\r\n", "\n").encode())


def record_of(given: dict[str, Any], head: Head) -> dict[str, Any]:
    """A ledger record that a head covers: its line's hash, canonical form and path checked."""
    line = given["line"]
    record: dict[str, Any] = json.loads(line)
    if canonical(record) != line:
        refuse("a record is not in canonical form")
    rest = {name: value for name, value in record.items() if name != "hash"}
    if sha256(canonical(rest).encode()).hex() != record["hash"]:
        refuse(f"record {record['seq']} does not match its hash")
    path = [bytes.fromhex(h) for h in given["path"]]
    if root_of_path(leaf_hash(bytes.fromhex(record["hash"])), record["seq"], head.size, path) != head.root:
        refuse(f"record {record['seq']} is not in the log that the head covers")
    return record


def canonical(value: Any) -> str:
    """RFC 8785 of a value without floats, whose keys are ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def document_leaf(document: dict[str, Any]) -> bytes:
    """Leaf of a document in its shard's tree."""
    numbers = (document["token_start"], document["n_tokens"])
    digests = (document["doc_key"], document["text_key"], document["tokens_sha256"])
    packed = b"".join(n.to_bytes(8, "little") for n in numbers) + b"".join(bytes.fromhex(d) for d in digests)
    return leaf_hash(b"document/v1\0" + packed)


def shard_leaf(domain: str, number: int, documents: int, root: bytes) -> bytes:
    """Leaf of a shard in its corpus's tree."""
    name = domain.encode()
    packed = b"".join(n.to_bytes(8, "little") for n in (number, documents)) + root
    return leaf_hash(b"shard/v1\0" + len(name).to_bytes(4, "little") + name + packed)


def sequence_leaf(index: int, tokens: bytes, buried: list[tuple[int, int]]) -> bytes:
    """Leaf of a sequence in its step's tree; tokens are u32, little-endian."""
    stones = b"".join(n.to_bytes(4, "little") for stretch in buried for n in stretch)
    return leaf_hash(b"seq/v1\0" + index.to_bytes(8, "little") + tokens + stones)


def check_include(proof: dict[str, Any], head: Head) -> list[str]:
    """What a proof of inclusion shows."""
    records = [record_of(given, head) for given in proof["records"]]
    step = next(r["body"] for r in records if r["kind"] == "step")
    plan = plan_of(proof, records, step["segment"])
    document, shard = proof["document"], proof["shard"]
    path = [bytes.fromhex(h) for h in document["path"]]
    root = root_of_path(document_leaf(document), document["index"], shard["documents"], path)
    leaf = shard_leaf(shard["domain"], shard["number"], shard["documents"], root)
    path = [bytes.fromhex(h) for h in shard["path"]]
    roots = head.corpora.get(shard["corpus_id"]) or refuse("the head names no roots of the document's corpus")
    if root_of_path(leaf, shard["index"], shard["shards"], path) != roots[1]:
        refuse("the document is not in the corpus that the head names")
    if proof["key"] not in (document["doc_key"], document["text_key"]):
        refuse("the document in the proof has another key")
    begin, end = document["token_start"], document["token_start"] + document["n_tokens"]
    shown = [
        f"document {proof['key'][:16]} is number {document['index'] + 1:,} of shard "
        f"{shard['domain']}-{shard['number']:05d} "
        f"of corpus {shard['corpus_id'][:16]}: tokens {begin:,} to {end - 1:,} of domain {shard['domain']}"
    ]
    own = _tokens(proof.get("document_tokens"))
    if own is not None and sha256(_u32(own)).hex() != document["tokens_sha256"]:
        refuse("the document's tokens are not those of its leaf")
    for row in proof["rows"]:
        shown.append(_check_row(row, step, plan, shard, (begin, end), own))
    if not proof["rows"]:
        refuse("the proof names no row")
    applied = "the update was applied" if step["update_applied"] else "the update was not applied"
    shown.append(f"step {step['step']} was recorded as fed by attempt {step['attempt']}; {applied}")
    return shown


def _check_row(
    row: dict[str, Any],
    step: dict[str, Any],
    plan: dict[str, Any],
    shard: dict[str, Any],
    span: tuple[int, int],
    own: list[int] | None,
) -> str:
    index = step["first_index"] + row["row"]
    place = place_of(plan, index)
    if (place.domain, place.corpus) != (shard["domain"], shard["corpus_id"]):
        refuse(f"the plan has another domain at row {row['row']}")
    at = [(place.start + i) % place.tokens for i in range(plan["seq_len"] + 1)]
    stones = [
        (s["start"], s["end"])
        for s in plan.get("tombstones", [])
        if (s["domain"], s["corpus_id"]) == (place.domain, place.corpus) and s["from_step"] <= step["step"]
    ]
    gone = [any(first <= token < end for first, end in stones) for token in at]
    targets = [i for i in range(1, len(at)) if span[0] <= at[i] < span[1] and not gone[i]]
    if not targets:
        refuse(f"the plan has none of the document at row {row['row']}")
    leaf = bytes.fromhex(row["leaf"])
    tokens = _tokens(row.get("tokens"))
    fed = "its bytes are not shown"
    if tokens is not None and own is not None:
        if sequence_leaf(index, _u32(tokens), stretches(gone)) != leaf:
            refuse(f"row {row['row']}: the tokens are not those that were fed")
        if any(tokens[i] != own[at[i] - span[0]] for i in targets):
            refuse(f"row {row['row']}: other tokens were fed where the document lies")
        fed = "and those very tokens were fed"
    path = [bytes.fromhex(h) for h in row["path"]]
    if root_of_path(leaf, row["row"], step["sequences"], path).hex() != step["root"]:
        refuse(f"row {row['row']} is not in the step's root")
    return f"row {row['row']}, epoch {place.epoch}: the plan puts {len(targets):,} of its tokens there, {fed}"


def stretches(gone: list[bool]) -> list[tuple[int, int]]:
    """Half-open ranges of the places that are true."""
    begins = [i for i, dead in enumerate(gone) if dead and (i == 0 or not gone[i - 1])]
    ends = [i + 1 for i, dead in enumerate(gone) if dead and (i + 1 == len(gone) or not gone[i + 1])]
    return list(zip(begins, ends, strict=True))


def plan_of(proof: dict[str, Any], records: list[dict[str, Any]], segment: int) -> dict[str, Any]:
    """The plan that a segment's steps were fed by: an amendment's, or the first one, from ``run.json``."""
    for record in records:
        own = [record["body"]["segment"], *record["body"].get("later", [])] if record["kind"] == "segment" else []
        if any(s["id"] == segment for s in own):
            if "plan" in record["body"]:
                return dict(record["body"]["plan"])
            run = next(r["body"] for r in records if r["seq"] == 0)
            if sha256(proof["run_json"].encode()).hex() != run["run_json"]:
                refuse("run.json is not the one of the run's first record")
            return dict(json.loads(proof["run_json"])["plan"])
    refuse(f"the proof has no record of segment {segment}")


def check_absent(proof: dict[str, Any], head: Head) -> list[str]:
    """What a proof of absence shows."""
    key, shown = bytes.fromhex(proof["key"]), []
    if len(key) != 32 or not head.corpora:
        refuse("the head names no corpus" if len(key) == 32 else "not a key")
    for corpus, roots in head.corpora.items():
        if roots is None:
            refuse(f"the head has no roots of corpus {corpus[:16]}")
        given = next((c for c in proof["corpora"] if c["corpus_id"] == corpus), None) or refuse(
            f"the proof says nothing of corpus {corpus[:16]}"
        )
        siblings = [bytes.fromhex(h) if h else EMPTY for h in given["siblings"]]
        other = bytes.fromhex(given["other"]) if given["other"] else None
        if other is not None and (
            other == key or len(other) != 32 or any(bit(other, n) != bit(key, n) for n in range(len(siblings)))
        ):
            refuse("the key that stands there is not another of the same beginning")
        if root_of_trie(key, EMPTY if other is None else key_leaf(other), siblings) != roots[0]:
            refuse(f"the path does not lead to the root of corpus {corpus[:16]}")
        shown.append(f"no document of key {proof['key'][:16]} is in corpus {corpus[:16]}")
    return shown


def check_consistent(proof: dict[str, Any], head: Head, verifier_key: str) -> list[str]:
    """What a proof of consistency shows."""
    old = open_head(proof["old_head"], verifier_key)
    if old.origin != head.origin:
        refuse("the two heads are of different runs")
    path = [bytes.fromhex(h) for h in proof["path"]]
    if roots_of_consistency(old.size, head.size, old.root, path) != (old.root, head.root):
        refuse(f"the log of {head.size} records is no continuation of the one of {old.size}")
    return [f"the first {old.size} records are the same in both heads; {head.size - old.size} came after them"]


def _tokens(encoded: str | None) -> list[int] | None:
    if encoded is None:
        return None
    raw = base64.b64decode(encoded, validate=True)
    return [int.from_bytes(raw[n : n + 4], "little") for n in range(0, len(raw), 4)]


def _u32(tokens: list[int]) -> bytes:
    return b"".join(t.to_bytes(4, "little") for t in tokens)


def check(
    proof: Any, *, text: str | None = None, verifier_key: str | None = None, head: str | None = None
) -> list[str]:
    """What a proof shows, a sentence each.

    Args:
        proof: the proof, as read from JSON.
        text: the document's text; without it the proof is of a key alone.
        verifier_key: the signer's; by default the one in the proof, which proves nothing of who signed.
        head: a signed head that was got elsewhere; the proof's must then be the same.

    Raises:
        Refused: it does not show what it claims.
    """
    try:
        if proof["format"] != FORMAT:
            refuse(f"expected format {FORMAT}")
        if head is not None and head != proof["head"]:
            refuse("the proof was made against another head than the one given")
        signer = verifier_key or proof["signer"]
        covered = open_head(proof["head"], signer)
        trusted = "" if verifier_key else " (a key that the proof brought along: compare it with the one published)"
        shown = [f"head of {covered.size} records of {covered.origin}, signed by {signer}{trusted}"]
        if text is not None:
            if document_key(text).hex() != proof.get("key"):
                refuse(
                    f"the text has the key {document_key(text).hex()[:16]}, the proof is of "
                    f"{str(proof.get('key'))[:16]}"
                )
            shown.append("the text given is the one that the proof is of")
        match proof["kind"]:
            case "record":
                records = [record_of(given, covered) for given in proof["records"]]
                return shown + [f"record {r['seq']}, {r['kind']}: {canonical(r['body'])}" for r in records]
            case "include":
                return shown + check_include(proof, covered)
            case "absent":
                return shown + check_absent(proof, covered)
            case "consistent":
                return shown + check_consistent(proof, covered, signer)
            case other:
                refuse(f"unknown kind of proof: {other}")
    except (
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
        StopIteration,
        OverflowError,
        ArithmeticError,
    ) as error:
        raise Refused(f"not a whole proof: {type(error).__name__}: {error}") from error


def main() -> int:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description="Check a proof of Millstream.")
    parser.add_argument("proof", type=Path)
    parser.add_argument("--file", type=Path, help="the document's text, UTF-8")
    parser.add_argument("--key", help="the signer's verifier key, as published")
    parser.add_argument("--head", type=Path, help="a signed head that you got elsewhere")
    given = parser.parse_args()
    try:
        proof = json.loads(given.proof.read_bytes())
        text = given.file.read_bytes().decode() if given.file else None
        head = given.head.read_bytes().decode() if given.head else None
        print("\n".join(check(proof, text=text, verifier_key=given.key, head=head)))
    except (Refused, OSError, ValueError) as error:
        print(f"FAILED: {error}")
        return 1
    print("the proof holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
