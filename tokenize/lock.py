"""The tokenizer of a build: trained once and locked, or taken from a file.

``recipe.lock`` names the tokenizer that was trained for a recipe. A later build with more or other
documents keeps it, since another vocabulary would be another corpus; only ``--retrain-tokenizer`` changes it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import orjson

from millstream.canonical import canonical_bytes, digest
from millstream.errors import InputError, RecipeError
from millstream.files import sha256_file, write_bytes
from millstream.mixture.recipe import Corpus, TokenizerFile, TrainedTokenizer
from millstream.tokenize.curate import ReadUnit
from millstream.tokenize.encode import sample_texts
from millstream.tokenize.tokenizer import train_bpe
from millstream.tokenize.work import Unit

LOCK = "recipe.lock"
FORMAT = "millstream-lock/1"

Run = Callable[[str, Sequence[Unit]], int]


def ready_tokenizer(
    corpus: Corpus,
    base: Path,
    root: Path,
    reads: Sequence[ReadUnit],
    gone: Sequence[Path],
    *,
    retrain: bool,
    run: Run,
) -> Path:
    """The file of the recipe's tokenizer, trained now if it has to be.

    Raises:
        RecipeError: the recipe asks for another tokenizer than the locked one, or there is no text.
        InputError: the tokenizer file is missing or altered.
    """
    settings = corpus.tokenizer
    if isinstance(settings, TokenizerFile):
        path = base / settings.path
        if not path.is_file():
            raise InputError(f"{path}: no such tokenizer file")
        return path
    wanted = digest(settings.model_dump(mode="json"))
    lock = root / LOCK
    if lock.exists() and not retrain:
        locked = orjson.loads(lock.read_bytes())
        if locked["settings"] != wanted:
            raise RecipeError(
                f"the recipe's tokenizer section differs from the one locked in {lock}; restore it, or train anew with "
                "--retrain-tokenizer (that makes another corpus)"
            )
        path = root / ".work" / "tokenizer" / locked["trained_on"] / "tokenizer.json"
        kept = path if path.exists() else root / "tokenizer.json"
        if kept.exists() and sha256_file(kept) == locked["sha256"]:
            return kept
    trained_on = digest(
        {"settings": wanted, "reads": [[r.domain, r.key] for r in reads], "gone": [p.parent.name for p in gone]}
    )
    unit = Unit(
        label="byte-level BPE",
        folder=root / ".work" / "tokenizer" / trained_on,
        work=partial(_train, corpus=corpus, settings=settings, reads=reads, gone=gone),
    )
    run("tokenizer", [unit])
    path = unit.folder / "tokenizer.json"
    content = {"format": FORMAT, "settings": wanted, "trained_on": trained_on, "sha256": sha256_file(path)}
    write_bytes(lock, canonical_bytes(content) + b"\n")
    return path


def _train(
    folder: Path, *, corpus: Corpus, settings: TrainedTokenizer, reads: Sequence[ReadUnit], gone: Sequence[Path]
) -> None:
    texts = sample_texts(corpus, reads, gone, settings)
    if not texts:
        raise RecipeError("there is no text to train the tokenizer on: every document was left out or is too long")
    train_bpe(settings, texts, folder / "tokenizer.json")
