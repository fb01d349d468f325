"""The build: recipe in, sealed corpus out. Composes the stages; each unit of work is cached by its inputs.

read and filter -> deduplication -> tokenizer -> encode (held-out marked) -> shards -> exclusions -> manifest
"""

import fcntl
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millstream.canonical import digest
from millstream.errors import RecipeError, SetupError, UsageError
from millstream.files import sha256_file
from millstream.mixture.contamination import build_index
from millstream.mixture.filters import check_rule
from millstream.mixture.native import require_packages
from millstream.mixture.recipe import Corpus, Recipe
from millstream.mixture.rule_files import located
from millstream.mixture.scores import scorer_digest
from millstream.tokenize.curate import Inputs, check_not_empty, find_inputs, read_units
from millstream.tokenize.deduplicate import Deduplicated, Run, deduplicate
from millstream.tokenize.encode import encode_units
from millstream.tokenize.lock import ready_tokenizer
from millstream.tokenize.manifest import MANIFEST, Manifest
from millstream.tokenize.publish import place_shards, read_mark, shard_units
from millstream.tokenize.redactions import REDACTIONS
from millstream.tokenize.report import write_report
from millstream.tokenize.seal import seal, sealed
from millstream.tokenize.tokenizer import Encoder, encoder_of
from millstream.tokenize.work import Progress, Unit, clean, run_units

DISK_FACTOR = 4
"""Free disk asked for, as a multiple of the input: texts and tokens between the stages, and the shards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildResult:
    """A sealed corpus, whether anything had to be done for it, and what the user should know."""

    manifest: Manifest
    did_work: bool
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """What the stages made: the documents, the tokenizer's file and encoder, and each domain's shards."""

    documents: Deduplicated
    tokenizer: Path
    encoder: Encoder
    shards: dict[str, list[Unit]]
    done: int


def build_corpus(
    recipe: Recipe,
    base: Path,
    root: Path,
    *,
    tasks: int,
    progress: Progress,
    retrain_tokenizer: bool = False,
    allow_code: bool = False,
) -> BuildResult:
    """Build a recipe's corpus, or finish or update the one that is there.

    Args:
        recipe: the recipe.
        base: folder that the recipe's relative paths start from.
        root: the corpus folder.
        tasks: processes at once; the result does not depend on it.
        progress: told about each stage's finished units.
        retrain_tokenizer: train the recipe's tokenizer anew, though one is locked.
        allow_code: let the recipe's scorers run functions of their own.

    Raises:
        MillstreamError: bad input, a full disk, a missing package; the corpus is as before or unfinished,
            never half new and sealed. Or documents were redacted from it.
    """
    if (root / REDACTIONS).exists():
        raise UsageError(
            f"{root}: documents were redacted from it, and a build would bring them back; leave them out of the "
            "sources and build into another folder (--corpus DIR)"
        )
    corpus = recipe.corpus
    inputs = find_inputs(corpus, base)
    warnings = check_before(corpus, inputs, base, root, allow_code=allow_code)
    with _only_builder(root):
        work = root / ".work"
        clean(work)

        def run(stage: str, units: Sequence[Unit]) -> int:
            if stage == "shards" and not all(unit.done for unit in units):
                # From here on the folder holds parts of two corpora until it is sealed again.
                (root / MANIFEST).unlink(missing_ok=True)
            executor = recipe.build.executor
            return run_units(stage, units, tasks=tasks, work_root=work, progress=progress, executor=executor)

        made = run_stages(corpus, inputs, base, root, retrain_tokenizer=retrain_tokenizer, run=run)
        written = [unit for domain in made.shards.values() for unit in domain]
        if made.done == 0 and (current := sealed(root, recipe, [read_mark(unit.folder) for unit in written])):
            return BuildResult(manifest=current, did_work=False, warnings=tuple(warnings))
        manifest = seal(recipe, inputs, base, root, made.encoder, made.tokenizer, made.documents, made.shards)
        write_report(root, recipe, inputs, manifest, made.documents)
        return BuildResult(manifest=manifest, did_work=True, warnings=tuple(warnings))


def run_stages(corpus: Corpus, inputs: Inputs, base: Path, root: Path, *, retrain_tokenizer: bool, run: Run) -> Made:
    """Go through the stages, each from what the ones before have made.

    Args:
        corpus: the recipe's corpus section.
        inputs: what it points at.
        base: folder that the recipe's relative paths start from.
        root: the corpus folder.
        retrain_tokenizer: train the recipe's tokenizer anew, though one is locked.
        run: runs a stage's units; returns how many were not done before.
    """
    work = root / ".work"
    reads = read_units(corpus, inputs, base, work)
    done = run("read", list({read.unit.folder: read.unit for read in reads}.values()))
    documents = deduplicate(corpus, base, work, reads, run)
    reads, gone = documents.reads, documents.gone
    done += documents.done
    check_not_empty(corpus, reads)
    tokenizer = ready_tokenizer(corpus, base, root, reads, gone, retrain=retrain_tokenizer, run=run)
    encoder = encoder_of(corpus.tokenizer, tokenizer)
    # The file and how this library encodes with it: either may change the ids.
    identity = digest([sha256_file(tokenizer), encoder.probe(), encoder.eos, encoder.bos])
    encoded = [encode_units(corpus, d, reads, gone, tokenizer, identity, work) for d in corpus.split_domains]
    done += run("encode", [unit for each in encoded for unit in each.units])
    placed = {each.domain: place_shards(each, encoder.dtype.itemsize, corpus) for each in encoded}
    shards = {each.domain: shard_units(root, each, placed[each.domain], corpus.chunk_bytes) for each in encoded}
    done += run("shards", [unit for domain in shards.values() for unit in domain])
    return Made(documents=documents, tokenizer=tokenizer, encoder=encoder, shards=shards, done=done)


def check_rules(corpus: Corpus, base: Path, *, allow_code: bool) -> None:
    """Make every filter and scorer once, to find wrong names and missing packages before work starts.

    Raises:
        RecipeError: a filter or function does not exist or does not take its parameters, or runs code without leave.
        SetupError: a package is missing.
    """
    if corpus.dedup.near is not None or corpus.dedup.sentences is not None:
        require_packages()
    for scorer in corpus.scorers:
        if scorer.function is not None and not allow_code:
            raise RecipeError(
                f"scorer '{scorer.name}' runs the function {scorer.function}; if you trust it, build with --allow-code"
            )
        scorer_digest(scorer, base)
    for rule in [*corpus.filters, *(rule for domain in corpus.domains for rule in domain.filters)]:
        check_rule(located(rule, base))


def check_before(corpus: Corpus, inputs: Inputs, base: Path, root: Path, *, allow_code: bool) -> list[str]:
    """Look at filters, files, disk and licences before any work.

    Returns:
        Warnings: sources without a licence, evaluation texts that are too short to be found.

    Raises:
        MillstreamError: a filter cannot be made, a source has no files, or the disk is too small.
    """
    check_rules(corpus, base, allow_code=allow_code)
    size = sum(file.size for files in inputs.files.values() for file in files)
    free = shutil.disk_usage(next(folder for folder in (root, *root.absolute().parents) if folder.is_dir())).free
    if free < DISK_FACTOR * size:
        raise SetupError(
            f"{root}: {free / 2**30:.1f} GiB free, but {size / 2**30:.1f} GiB of input need about "
            f"{DISK_FACTOR * size / 2**30:.1f} GiB; free some or put the corpus elsewhere with --corpus"
        )
    warnings = [
        f"source '{s.name}' states no licence; documents without one of their own will have none"
        for s in corpus.sources
        if s.licence is None
    ]
    if corpus.decontaminate is not None:
        short = build_index(corpus.decontaminate.n_grams, inputs.evaluation).short
        n = corpus.decontaminate.n_grams
        warnings += [
            f"evaluation set '{name}': {count} texts have fewer than {n} words and cannot be found"
            for name, count in short.items()
        ]
    return warnings


@contextmanager
def _only_builder(root: Path) -> Iterator[None]:
    """Hold the corpus folder's lock."""
    try:
        (root / ".work").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"{root}: cannot be made: {error.strerror}") from error
    with (root / ".work" / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"{root}: another build is at work here; wait for it or stop it") from error
        yield
