"""Memory of a build: the same recipe over a corpus and over one twenty times as large, and over awkward inputs.

Each build runs in a process of its own with one task; reported is the most memory that it ever held, less what it holds
once everything is imported. Prints a table, then one JSON object as its last line.
"""

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

WORDS = [hashlib.sha256(str(n).encode()).hexdigest()[: 3 + n % 8] for n in range(20_000)]
DEDUP = {"near": {"max_removed": "1"}, "sentences": {"min_doc_words": 5}}
FILTERS = [{"rule": "gopher-repetition"}, {"rule": "gopher-quality", "min_stop_words": 0}]


def texts(megabytes: float, seed: int) -> Iterator[str]:
    """Documents of a few kilobytes; every tenth repeats an earlier one with a word changed."""
    chance = np.random.Generator(np.random.PCG64(seed))
    size, last = 0.0, ""
    while size < megabytes * 1e6:
        chosen = chance.integers(0, len(WORDS), int(chance.integers(100, 1500)))
        text = " ".join(WORDS[n] for n in chosen) + "."
        if last and chance.integers(0, 10) == 0:
            text = last.replace(WORDS[0], WORDS[1]) + " More."
        yield text
        last = text
        size += len(text)


def one_line(_: int) -> Iterator[str]:
    """A document of 5 MB in a single line among small ones."""
    yield " ".join(texts(5, 3))
    yield from texts(0.2, 4)


def many_lines(_: int) -> Iterator[str]:
    """A document of 70,000 lines among small ones."""
    yield "\n".join(" ".join(WORDS[(n * 7 + k) % len(WORDS)] for k in range(6)) + "." for n in range(70_000))
    yield from texts(0.2, 5)


def tiny(count: int) -> Iterator[str]:
    """Very many documents of a few words."""
    for n in range(count):
        yield f"{WORDS[n % len(WORDS)]} {WORDS[n * 7 % len(WORDS)]} {n}"


def write(folder: Path, documents: Iterator[str], a_file: int) -> float:
    """Write JSON lines in files of about ``a_file`` bytes; returns megabytes."""
    folder.mkdir(parents=True)
    total, part, size = 0, 0, 0
    file = (folder / "00000.jsonl").open("w")
    for text in documents:
        line = json.dumps({"text": text}) + "\n"
        if size > a_file:
            file.close()
            part, size = part + 1, 0
            file = (folder / f"{part:05}.jsonl").open("w")
        file.write(line)
        size += len(line)
        total += len(line)
    file.close()
    return total / 1e6


def recipe(folder: Path, filters: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "format": "millstream-recipe/1",
        "name": "memory",
        "corpus": {
            "sources": [{"name": "s", "root": str(folder), "licence": "CC0-1.0"}],
            "domains": [{"name": "d", "sources": ["s"]}],
            "filters": filters,
            "dedup": DEDUP,
            "tokenizer": {"kind": "bpe", "vocab_size": 1000, "sample_bytes": 1_000_000},
            "shard_bytes": "64MiB",
        },
    }


def measured(folder: Path, given: dict[str, Any]) -> dict[str, float]:
    """Build in a process of its own; megabytes that it held at most and after its imports, documents kept."""
    (folder / "recipe.json").write_text(json.dumps(given))
    done = subprocess.run(
        [sys.executable, __file__, "--build", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{folder}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def build(folder: Path) -> None:
    """The measured process."""
    from millstream.mixture import minhash, sentences  # noqa: F401  counted as imports, kernels too
    from millstream.mixture.recipe import Recipe
    from millstream.mixture.words import spacy_rules
    from millstream.tokenize.build import build_corpus

    spacy_rules()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    made = Recipe.model_validate(json.loads((folder / "recipe.json").read_text()))
    result = build_corpus(made, folder, folder / "corpus", tasks=1, progress=lambda *_: None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    kept = sum(d.documents for d in result.manifest.domains)
    print(json.dumps({"peak_mb": peak, "imports_mb": before, "kept": kept}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path)
    parser.add_argument("--megabytes", type=float, default=25)
    parser.add_argument("--tiny", type=int, default=1_000_000)
    asked = parser.parse_args()
    if asked.build:
        build(asked.build)
        return
    cases: list[tuple[str, Callable[[], Iterator[str]], list[dict[str, Any]]]] = [
        ("once", lambda: texts(asked.megabytes, 1), FILTERS),
        ("twenty", lambda: texts(20 * asked.megabytes, 1), FILTERS),
        ("one_line", lambda: one_line(0), FILTERS),
        ("many_lines", lambda: many_lines(0), FILTERS),
        ("tiny", lambda: tiny(asked.tiny), []),
    ]
    figures: dict[str, float] = {}
    for name, documents, filters in cases:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            size = write(folder / "in", documents(), 24 << 20)
            found = measured(folder, recipe(folder / "in", filters))
        used = found["peak_mb"] - found["imports_mb"]
        figures[f"{name}_mb"] = round(used, 1)
        line = (
            f"{name:<12} {size:>8.1f} MB in, {found['kept']:>9,.0f} documents kept: {used:>8.0f} MB over the imports'"
        )
        line += f" {found['imports_mb']:.0f}"
        print(line, file=sys.stderr)
    figures["twenty_over_once"] = round(figures["twenty_mb"] / figures["once_mb"], 2)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
