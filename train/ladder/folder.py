"""A ladder on disk.

LADDER/ladder.json   the hero's digests, the corpus, the rules, and of every rung its digests and sizes
LADDER/hero.yaml     the hero's recipe, with every default
LADDER/NAME.yaml     a rung's
LADDER/runs/NAME/    its run
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml

from millstream.audit.runs import Run, is_run, open_run
from millstream.canonical import canonical_bytes, digest
from millstream.errors import InputError, UsageError
from millstream.files import write_bytes
from millstream.mixture.load import load_recipe
from millstream.mixture.recipe import Recipe
from millstream.stream.corpora import Corpus
from millstream.train.ladder.rungs import Rules, Rung, derive, differences, hero_rung

FORMAT = "millstream-ladder/1"
FILE = "ladder.json"
FROZEN = ("corpus", "mixture", "model", "train")
"""Sections that make a run what it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A rung, or the hero, as ``ladder.json`` has it; ``sections`` are digests of its recipe's sections."""

    name: str
    sections: dict[str, str]
    width: int
    total: int
    active: int
    tokens: int
    steps: int
    batch: int
    lr: str
    evaluate_every: int | None
    flops: str
    """Decimal digits: it passes what JSON's numbers hold."""


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """A ladder's folder; ``digest`` is that of ``ladder.json``."""

    path: Path
    hero: Entry
    rungs: tuple[Entry, ...]
    rules: Rules
    corpus: str
    corpus_id: str
    digest: str

    def recipe_file(self, rung: Entry) -> Path:
        """Where a rung's recipe lies."""
        return self.path / f"{rung.name}.yaml"

    def run_folder(self, rung: Entry) -> Path:
        """Where a rung's run lies."""
        return self.path / "runs" / rung.name

    def run_of(self, rung: Entry) -> Run | None:
        """A rung's run, None where it was not begun.

        Raises:
            UsageError: the run there was made by another recipe; names the section.
        """
        folder = self.run_folder(rung)
        if not is_run(folder):
            return None
        run = open_run(folder)
        for section in FROZEN:
            if run.info["sections"].get(section) != rung.sections[section]:
                raise UsageError(f"{folder}: was trained by another '{section}' section than the ladder's {rung.name}")
        return run

    @property
    def share(self) -> float:
        """FLOPs of all rungs over the hero's."""
        return sum(int(rung.flops) for rung in self.rungs) / int(self.hero.flops)


def ladder_folder(hero: Recipe, given: Path | None) -> Path:
    """Where a hero's ladder lies: ``ladders/NAME`` by default."""
    return given if given is not None else Path("ladders") / hero.name


def make_ladder(path: Path, hero: Recipe, corpus: Corpus, place: str, rules: Rules) -> Ladder:
    """Derive the rungs and write the ladder; the same ladder may be made again.

    Raises:
        RecipeError: a rung is impossible.
        UsageError: another ladder lies there already.
    """
    own, _ = hero_rung(hero, corpus.manifest, corpus.root)
    rungs = derive(hero, corpus.manifest, corpus.root, rules)
    content = {
        "format": FORMAT,
        "hero": asdict(_entry(own, "hero")),
        "rungs": [asdict(_entry(rung, rung.name)) for rung in rungs],
        "rules": asdict(rules) | {"widths": list(rules.widths)},
        "corpus": {"place": place, "id": corpus.manifest.corpus_id},
    }
    if (path / FILE).exists() and digest(content) != open_ladder(path).digest:
        raise UsageError(f"{path}: holds another ladder already; give the new one another folder with --ladder")
    write_bytes(path / "hero.yaml", _yaml(hero))
    for rung in rungs:
        write_bytes(path / f"{rung.name}.yaml", _yaml(rung.recipe))
    write_bytes(path / FILE, canonical_bytes(content) + b"\n")
    return open_ladder(path)


def open_ladder(path: Path, hero: Recipe | None = None) -> Ladder:
    """Read a ladder.

    Args:
        path: its folder.
        hero: the recipe that it must have been made from.

    Raises:
        UsageError: there is none, or it was made from another recipe; names the section.
        InputError: it is damaged.
    """
    try:
        content = orjson.loads((path / FILE).read_bytes())
    except OSError as error:
        raise UsageError(
            f"{path}: no ladder here (no {FILE}); make one with 'millstream ladder make RECIPE'"
        ) from error
    except orjson.JSONDecodeError as error:
        raise InputError(f"{path / FILE}: damaged: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path / FILE}: expected format {FORMAT}")
    rules: dict[str, Any] = content["rules"]
    ladder = Ladder(
        path=path,
        hero=Entry(**content["hero"]),
        rungs=tuple(Entry(**entry) for entry in content["rungs"]),
        rules=Rules(**rules | {"widths": tuple(rules["widths"])}),
        corpus=content["corpus"]["place"],
        corpus_id=content["corpus"]["id"],
        digest=digest(content),
    )
    if hero is not None:
        now = hero.section_digests()
        for section in FROZEN:
            if now.get(section) != ladder.hero.sections[section]:
                raise UsageError(
                    f"{path}: the ladder was made from another '{section}' section than {hero.name}'s; restore the "
                    "recipe, or make a new ladder with --ladder"
                )
    return ladder


def check_rungs(ladder: Ladder, corpus: Corpus) -> None:
    """Refuse rungs that are anything but what follows from the hero.

    Raises:
        UsageError: the corpus is another one, or a rung's recipe was changed; names the fields.
        RecipeError: a recipe cannot be read.
    """
    if corpus.manifest.corpus_id != ladder.corpus_id:
        raise UsageError(
            f"{ladder.path}: made over corpus {ladder.corpus_id[:16]}, found {corpus.manifest.corpus_id[:16]} at "
            f"{corpus.root}"
        )
    hero = load_recipe(ladder.path / "hero.yaml")
    for entry, rung in zip(ladder.rungs, derive(hero, corpus.manifest, corpus.root, ladder.rules), strict=True):
        file = ladder.recipe_file(entry)
        if changed := differences(rung.recipe, load_recipe(file)):
            raise UsageError(
                f"{file}: differs from what follows from the hero in {', '.join(changed[:5])}; a rung differs by the "
                "ladder's rules alone. 'millstream ladder make' writes it again"
            )


def _entry(rung: Rung, name: str) -> Entry:
    assert rung.recipe.model is not None
    return Entry(
        name=name,
        sections=rung.recipe.section_digests(),
        width=rung.recipe.model.hidden_size,
        total=rung.size.total,
        active=rung.size.active,
        tokens=rung.tokens,
        steps=rung.steps,
        batch=rung.batch,
        lr=str(rung.recipe.train.optimizer.lr),
        evaluate_every=rung.recipe.train.evaluate_every,
        flops=str(rung.flops),
    )


def _yaml(recipe: Recipe) -> bytes:
    return yaml.safe_dump(recipe.canonical(), sort_keys=False, allow_unicode=True, width=100).encode()
