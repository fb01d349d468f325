"""Steps that the page shows from the inside: rows with their documents, their text where licences allow, and proofs.

A row's proof is its tokens, as they were fed, and the hashes beside its way up the step's Merkle tree: the
browser hashes the tokens and arrives at the root that the ledger has.
"""

import base64
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl

from millstream.audit.feed import leaf_hashes
from millstream.audit.merkle import inclusion_path, levels_of
from millstream.audit.replay import stored_leaves, with_stored
from millstream.canonical import digest
from millstream.stream.corpora import Corpora
from millstream.stream.documents import documents_of
from millstream.stream.plan import Tombstone
from millstream.stream.reader import Batch, Stream, open_stream
from millstream.stream.roots import whole_file
from millstream.tokenize.decode import Decode, decoder_of
from millstream.train.page.history import History
from millstream.train.page.licences import may_be_shown
from millstream.train.page.write import publish, write_changed

VERSION = 1
STEPS = 200
"""Steps that are shown of a run, about."""
ROWS = 8
"""Rows that are shown of a step."""
CHARS = 600
"""Characters that are shown of a document's stretch."""
PROVED_TOKENS = 1 << 15
"""Tokens of a step's rows that are published with their proofs."""


def sampled_steps(history: History, steps: int = STEPS) -> list[int]:
    """The learned steps that are shown: evenly over the plan, and the first after each change of course; of 0 none."""
    if not steps:
        return []
    total = history.run.plan.total_steps
    stride = max(1, -(-total // steps))
    wanted = set(range(1, total + 1, stride)) | {total}
    wanted |= {segment.first_step for segment in history.run.segments}
    return [int(step) for step in history.learned["step"] if int(step) in wanted]


class Samples:
    """Publishes sampled steps, each once; again where the step was trained again or something was taken down."""

    def __init__(self, run_dir: Path, out: Path) -> None:
        self.out = out
        self._cache = run_dir / ".page" / "samples.json"
        self._streams: dict[str, Stream] = {}
        held = orjson.loads(self._cache.read_bytes()) if self._cache.is_file() else {}
        self._marks: dict[str, str] = held if held.get("out") == str(out.resolve()) else {"out": str(out.resolve())}

    def update(self, history: History, corpora: Corpora, allowed: Collection[str], steps: int = STEPS) -> list[int]:
        """Publish what is new among the sampled steps; returns all that are there."""
        wanted = sampled_steps(history, steps) if corpora else []
        stones = [[s.domain, s.corpus_id, s.start, s.end] for s in history.run.plan.tombstones]
        common = digest([VERSION, stones, sorted(allowed)])
        changed = False
        for step in wanted:
            mark = f"{common}/{history.record_of(step)}"
            if self._marks.get(str(step)) != mark:
                publish(self.out, f"samples/{step}", self.sample(history, corpora, step, allowed))
                self._marks[str(step)] = mark
                changed = True
        for gone in self._marks.keys() - {str(step) for step in wanted} - {"out"}:
            (self.out / "data" / "samples" / f"{gone}.js").unlink(missing_ok=True)
            del self._marks[gone]
            changed = True
        if changed:
            write_changed(self._cache, orjson.dumps(self._marks))
        return wanted

    def sample(self, history: History, corpora: Corpora, step: int, allowed: Collection[str]) -> dict[str, Any]:
        """One learned step, from the inside."""
        run, seq = history.run, history.record_of(step)
        plan = run.plans[int(history.run.records.rows["segment"][seq])]
        if plan.plan_id not in self._streams:
            self._streams[plan.plan_id] = open_stream(plan, corpora.values())
        stream = self._streams[plan.plan_id]
        batch = stream.batch(step)
        stored = stored_leaves(run)
        derived = leaf_hashes(batch.indices, batch.tokens, batch.buried)
        leaves = [bytes(leaf) for leaf in with_stored(derived, stored, seq)]
        levels = levels_of(leaves)
        shown = min(ROWS, len(leaves))
        located = plan.locate(batch.indices[:shown])
        documents = documents_of(corpora, plan, located, step).with_columns(hidden=_hidden(run.plan.tombstones))
        decode = _decoder(stream)
        identity = stream.manifest.tokenizer
        special = [token for token in (identity.eos_id, identity.bos_id) if token is not None]
        rows = []
        for row in range(shown):
            own = documents.filter(pl.col("row") == row)
            stretches = [_stretch(entry, batch, decode, special, allowed) for entry in own.iter_rows(named=True)]
            buried = batch.buried[batch.buried[:, 0] == row][:, 1:].tolist()
            whole = all(s["text"] is not None for s in stretches) and not buried and (seq, row) not in stored
            proved = whole and (row + 1) * (plan.seq_len + 1) <= PROVED_TOKENS
            rows.append(
                {
                    "domain": plan.domains[int(located.domain[row])],
                    "index": str(batch.indices[row]),
                    "stretches": stretches,
                    "leaf": leaves[row].hex(),
                    "path": [node.hex() for node in inclusion_path(levels, row)],
                    "tokens": base64.b64encode(batch.tokens[row].astype("<u4").tobytes()).decode() if proved else None,
                    "buried": buried,
                }
            )
        record = history.line(seq)
        return {"step": step, "sequences": len(leaves), "root": levels[-1][0].hex(), "record": record, "rows": rows}


def _decoder(stream: Stream) -> Decode:
    corpus = next(iter(stream.corpora.values()))
    file = whole_file(corpus.root, corpus.manifest.tokenizer.file)
    return decoder_of(file.read_bytes() if isinstance(file, Path) else file.getvalue())


def _hidden(stones: Sequence[Tombstone]) -> pl.Expr:
    """Whether a stretch is of a document that was taken down, from whatever step on."""
    start, end = pl.col("token_start"), pl.col("token_start") + pl.col("n_tokens")
    gone = [(pl.col("domain") == s.domain) & (start < s.end) & (end > s.start) for s in stones]
    return pl.any_horizontal(pl.lit(False), *gone)


def _stretch(
    entry: dict[str, Any], batch: Batch, decode: Decode, special: Sequence[int], allowed: Collection[str]
) -> dict[str, Any]:
    """A document's part of a row as the page shows it."""
    hidden = bool(entry["hidden"])
    text = None
    if not hidden and may_be_shown(entry["licence"], allowed):
        # Target i of a sequence is its token i + 1.
        tokens = batch.tokens[entry["row"], entry["first"] + 1 : entry["last"] + 2]
        text = decode(tokens[~np.isin(tokens, special)].tolist())
    return {
        "key": entry["doc_key"].hex(),
        "id": None if hidden else entry["doc_id"],
        "url": None if hidden else entry["url"],
        "licence": None if hidden else entry["licence"],
        "first": entry["first"],
        "tokens": entry["tokens"],
        "from": entry["from_token"],
        "of": entry["n_tokens"],
        "text": None if text is None else text[:CHARS] + ("\u2026" if len(text) > CHARS else ""),
        "taken_down": hidden,
    }
