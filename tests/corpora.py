"""Small corpora for tests: files made of real words in a fixed order, recipes over them, builds."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from millstream.mixture.load import load_recipe
from millstream.mixture.recipe import Recipe
from millstream.tokenize.build import BuildResult, build_corpus

TEXT = """the river carries stones to the sea and every stone was once a mountain while mills along the stream turn
grain into flour bread feeds towns towns keep records of who came which year the water rose how high it stood naïve
café straße привет мир 世界 the end"""
WORDS = TEXT.split()


def words(seed: str, count: int) -> str:
    """A text of some words, chosen by a hash of the seed."""
    chosen = []
    for n in range(count):
        digest = hashlib.sha256(f"{seed}/{n}".encode()).digest()
        chosen.append(WORDS[int.from_bytes(digest[:4], "big") % len(WORDS)])
    return " ".join(chosen)


def write_jsonl(path: Path, records: Sequence[Any]) -> None:
    """Write records as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")


def write_domain(root: Path, name: str, documents: int, length: int = 60) -> None:
    """A folder of two JSONL files with ids, URLs and a licence for some."""
    for part in range(2):
        records = [
            {
                "id": f"{name}-{part}-{n}",
                "text": f"{name} {part} {n}. " + words(f"{name}{part}{n}", 5 + (n * 37) % length),
                "url": f"https://example.org/{name}/{part}/{n}",
                **({"licence": "CC0-1.0"} if n % 3 == 0 else {}),
            }
            for n in range(documents // 2)
        ]
        write_jsonl(root / name / f"part-{part}.jsonl", records)


def recipe_dict(root: Path, domains: Sequence[str], **sections: Any) -> dict[str, Any]:
    """A recipe over such folders."""
    corpus: dict[str, Any] = {
        "seed": 1,
        "sources": [{"name": f"{d}-files", "root": str(root / d), "licence": "MIT"} for d in domains],
        "domains": [{"name": d, "sources": [f"{d}-files"]} for d in domains],
        "tokenizer": {"kind": "bpe", "vocab_size": 400, "sample_bytes": 20_000},
    }
    corpus |= sections.pop("corpus", {})
    return {"format": "millstream-recipe/1", "name": "test", "corpus": corpus, **sections}


def write_recipe(path: Path, recipe: dict[str, Any]) -> Recipe:
    """Write a recipe file and load it."""
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    return load_recipe(path)


def build(folder: Path, recipe: dict[str, Any], *, tasks: int = 1, corpus: str = "corpus") -> BuildResult:
    """Build a recipe in a folder."""
    loaded = write_recipe(folder / "recipe.yaml", recipe)
    return build_corpus(loaded, folder, folder / corpus, tasks=tasks, progress=lambda *_: None)


def digests(root: Path) -> dict[str, str]:
    """SHA-256 of every file of a corpus but the manifest, which holds the time, and what is derived from the others."""
    return {
        p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(root.rglob("*"))
        if p.is_file()
        and not p.relative_to(root).parts[0].startswith((".", "proofs", "lookup", "search"))
        and p.name not in ("corpus.json", "recipe.lock")
    }


def exclusions(root: Path) -> pl.DataFrame:
    """All exclusions of a corpus."""
    return pl.concat([pl.read_parquet(p) for p in sorted((root / "exclusions").glob("*.parquet"))])


def documents(root: Path, domain: str) -> pl.DataFrame:
    """A domain's kept documents, held-out ones too."""
    tables = sorted((root / domain).glob("*documents-*.parquet"))
    return pl.concat([pl.read_parquet(p) for p in tables])


def texts(root: Path, domain: str) -> dict[str, str]:
    """Text of every training document of a domain by ``doc_id``, decoded from its tokens."""
    from millstream.stream.shards import open_domain
    from millstream.tokenize.decode import decoder
    from millstream.tokenize.manifest import read_manifest

    manifest = read_manifest(root)
    described = manifest.domain(domain)
    reader = open_domain(root, described, manifest.tokenizer.dtype, described.tokens)
    decode = decoder(root, manifest)
    table = pl.concat([pl.read_parquet(root / s.documents.path) for s in described.shards])
    spans = table.select("doc_id", "token_start", "n_tokens").iter_rows()
    # The last token of a document is its EOS.
    return {doc_id: decode(reader.span(start, start + n - 1).tolist()) for doc_id, start, n in spans}
