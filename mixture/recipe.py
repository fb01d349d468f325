"""The recipe: what a corpus, a mixture, a model and a run are made of.

A recipe is one YAML file with five sections. Each has a digest of its own (canonical JSON,
RFC 8785), so that a new learning rate is not a new corpus:

    corpus    sources, domains, filters, deduplication, holdout, tokenizer    -> corpus_id
    mixture   sequence length, batches, phases and weights                    -> plan_id
    model     the network
    train     optimizer, schedule, precision, checkpoints
    public    what outsiders are told

``build`` and ``cluster`` say where a corpus is built and what machines a run is planned for; nothing's identity
depends on them.

Unknown keys and wrong types are errors. ``millstream.mixture.load`` reads the file.
"""

from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from millstream.canonical import digest
from millstream.mixture.cluster import Cluster
from millstream.mixture.rules import Filter, Section
from millstream.mixture.training import Model, Train
from millstream.mixture.units import Count, Exact, Size

FORMAT: Literal["millstream-recipe/1"] = "millstream-recipe/1"

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
"""Names become folder names, shard keys and parts of ``doc_id``: no dots, slashes or colons."""


class Source(Section):
    """Where raw documents come from: files below a root, or files of an installed package."""

    name: Name
    root: str | None = None
    """Folder or fsspec URL; a relative path starts at the recipe's folder."""
    package: str | None = None
    """Installed distribution instead of a root; its files are read, nothing is imported."""
    version: str | None = None
    """Version that the distribution must have."""
    files: tuple[str, ...] = ("**/*",)
    """Globs below the root; ``!`` in front leaves out."""
    format: Literal["auto", "jsonl", "parquet", "text"] = "auto"
    """``auto`` goes by the suffix: .jsonl .ndjson .json.gz .jsonl.zst .parquet, all else text."""
    extract: Literal["whole", "sections", "docstrings", "json-values"] = "whole"
    """Documents of a text file: the whole file, pieces that each begin where ``section`` matches,
    Python docstrings, or the values of one JSON object."""
    section: str | None = None
    """Regular expression for ``sections``."""
    text: str = "text"
    """Field with the text; for ``json-values`` a template such as ``{title}`` may join fields."""
    url: str | None = "url"
    """Field of JSON records or Parquet column with the document's address."""
    licence: str | None = None
    """Licence of every document, as an SPDX expression where one exists."""
    licence_field: str | None = "licence"
    """Field or column with a document's own licence; it goes before the source's."""
    min_chars: int = Field(1, ge=1)
    """Shorter pieces are no documents (``sections``, ``docstrings``); a count is kept."""
    on_bad_file: Literal["stop", "skip"] = "stop"

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.root is None) == (self.package is None):
            raise ValueError("needs either 'root' or 'package'")
        if self.version is not None and self.package is None:
            raise ValueError("'version' belongs to 'package'")
        if (self.extract == "sections") != (self.section is not None):
            raise ValueError("'extract: sections' and 'section' go together")
        return self


class Scorer(Section):
    """Gives each document a number, such as its quality."""

    name: Name
    field: str | None = None
    """Field of the record, or column, that holds the number."""
    function: str | None = Field(None, pattern=r"^[\w.]+:\w+$")
    """``module:function`` from a list of texts to as many numbers; the module lies beside the recipe or is installed.
    Runs code: a build wants ``--allow-code``."""
    model: str | None = None
    """Path of a classifier in fastText's format, from the recipe's folder."""
    label: str | None = None
    """Its label, without ``__label__``, whose score counts."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum(way is not None for way in (self.field, self.function, self.model)) != 1:
            raise ValueError("needs one of 'field', 'function' and 'model'")
        if (self.model is None) != (self.label is None):
            raise ValueError("'model' and 'label' go together")
        return self


class Domain(Section):
    """Documents that are mixed with one weight; or several such domains, where ``split`` cuts it by score."""

    name: Name
    sources: tuple[Name, ...] = Field(min_length=1)
    filters: tuple[Filter, ...] = ()
    """Applied after the corpus-wide filters."""
    score: Name | None = None
    """Scorer whose number every document gets."""
    split: tuple[Exact, ...] = ()
    """Rising borders of the score: ``[0.3, 0.6]`` makes the domains ``NAME-q0`` (below 0.3, or without a score),
    ``NAME-q1`` (from 0.3) and ``NAME-q2`` (from 0.6)."""
    holdout: Exact = Decimal(0)
    """Share of the documents kept out of every plan, chosen by keyed hash of ``doc_key``."""


Keep = Literal["first", "longest", "best"]
"""Which of several duplicates stays."""


class NearDedup(Section):
    """Near duplicates by MinHash, with datatrove's shingles and signatures; verified before anything is dropped."""

    n_grams: int = Field(5, ge=1, le=64)
    """Words in a shingle of the normalised text; shorter texts are compared exactly only."""
    bands: int = Field(14, ge=1, le=256)
    rows: int = Field(8, ge=1, le=256)
    """Hashes a band; two texts are compared where a whole band agrees."""
    seed: int = Field(1, ge=0, lt=2**32)
    min_jaccard: Exact = Decimal("0.7")
    """Similarity of shingles, each as often as it occurs, from which a document is dropped for one that stays."""
    min_containment: Exact | None = None
    """Share of a document's own shingles in one that stays from which it is dropped too; for excerpts, as far as bands
    find them."""
    max_removed: Exact = Decimal("0.5")
    """Share of a source's documents that near duplicates may remove; more stops the build."""


class SentenceDedup(Section):
    """Sentences that stand elsewhere already are cut out of the text (C4's rule, over the whole recipe)."""

    sentences: int = Field(3, ge=1, le=64)
    """Sentences in a row that are looked for together."""
    min_words: int = Field(0, ge=0)
    """Words that a span must have to be cut."""
    min_doc_words: int = Field(50, ge=0)
    """Documents with fewer words left are dropped."""


class Dedup(Section):
    """Which duplicates are dropped."""

    scope: Literal["recipe", "domain"] = "recipe"
    """Documents are compared over all domains, or each domain for itself."""
    keep: Keep = "first"
    """Which of several stays: ``first`` by order of domains, the ``longest``, or the ``best`` by score; then the first
    by order of domains, then the lowest in the keyed order."""
    exact: bool = True
    """By ``doc_key``, then by ``text_key``."""
    near: NearDedup | None = None
    sentences: SentenceDedup | None = None
    against: tuple[str, ...] = ()
    """Folders of corpora built before, relative to the recipe's folder; their documents stay, what equals or nearly
    equals them is dropped here."""


class EvaluationFile(Section):
    """An evaluation set whose items must not be trained on: JSON lines."""

    name: Name
    file: str
    """Path, relative to the recipe's folder; a missing file stops the build."""
    fields: tuple[str, ...] = Field(min_length=1)
    """Fields with an item's texts."""


class Decontaminate(Section):
    """Documents that hold items of evaluation sets are dropped, and the item is recorded."""

    sets: tuple[EvaluationFile, ...] = Field(min_length=1)
    n_grams: int = Field(13, ge=3, le=64)
    """Words in a row that count as a match."""
    max_overlap: Exact = Decimal(0)
    """Largest share of a paragraph's n-grams that may be an item's."""


class TrainedTokenizer(Section):
    """A byte-level BPE trained on the corpus's own kept, not held-out text."""

    kind: Literal["bpe"]
    vocab_size: int = Field(8192, ge=264, le=1_000_000)
    domains: tuple[Name, ...] = ()
    """Domains whose text is used; all of them when empty."""
    sample_bytes: Size = 8_000_000
    """UTF-8 bytes of text taken from each domain, in stream order."""


class TokenizerFile(Section):
    """A tokenizer in the format of Hugging Face ``tokenizers``."""

    kind: Literal["file"]
    path: str
    eos: str
    """Token that ends every document."""
    bos: str | None = None
    sha256: str | None = None


Tokenizer = Annotated[TrainedTokenizer | TokenizerFile, Field(discriminator="kind")]


class Corpus(Section):
    """Which documents, how they are chosen and how they become tokens."""

    seed: int = Field(0, ge=0)
    sources: tuple[Source, ...] = Field(min_length=1)
    domains: tuple[Domain, ...] = Field(min_length=1)
    scorers: tuple[Scorer, ...] = ()
    filters: tuple[Filter, ...] = ()
    decontaminate: Decontaminate | None = None
    """After the filters, before deduplication."""
    dedup: Dedup = Dedup()
    tokenizer: Tokenizer = TrainedTokenizer(kind="bpe")
    shard_bytes: Size = Field(256 * 2**20, ge=2**12)
    chunk_bytes: Size = Field(2**20, ge=2**8)

    @model_validator(mode="after")
    def _names(self) -> Self:
        sources = _unique("sources", [s.name for s in self.sources])
        domains = _unique("domains", [d.name for d in self.split_domains])
        scorers = _unique("scorers", [s.name for s in self.scorers])
        for domain in self.domains:
            _unique(f"domain '{domain.name}': sources", list(domain.sources))
            for source in domain.sources:
                if source not in sources:
                    raise ValueError(f"domain '{domain.name}' names the source '{source}', which is not defined")
            if domain.score is not None and domain.score not in scorers:
                raise ValueError(f"domain '{domain.name}' names the scorer '{domain.score}', which is not defined")
            if domain.split and domain.score is None:
                raise ValueError(f"domain '{domain.name}': 'split' needs a 'score'")
            if list(domain.split) != sorted(set(domain.split)):
                raise ValueError(f"domain '{domain.name}': the borders of 'split' must rise")
            if not 0 <= domain.holdout < 1:
                raise ValueError(f"domain '{domain.name}': holdout must be at least 0 and below 1")
        if isinstance(self.tokenizer, TrainedTokenizer):
            for name in self.tokenizer.domains:
                if name not in domains:
                    raise ValueError(f"tokenizer names the domain '{name}', which is not defined")
        return self

    @property
    def split_domains(self) -> tuple[Domain, ...]:
        """The domains that there will be: those that are split by score, in their parts, lowest first."""
        return tuple(part for domain in self.domains for part in parts_of(domain))


class BatchChange(Section):
    """From ``step`` on, a batch holds ``batch`` sequences."""

    step: int = Field(ge=1)
    batch: int = Field(ge=1)


class ExactSequences(Section):
    """A domain that gets exactly this many sequences in the phase, whatever the weights."""

    sequences: Count = Field(ge=1)


class Phase(Section):
    """A stretch of the run with one set of weights."""

    name: Name
    share: Exact | None = None
    """Share of the sequences; phases without one divide the rest equally. Two phases that
    both have none are split 80/20."""
    weights: dict[Name, Exact | ExactSequences] = Field(min_length=1)
    window: int | None = Field(None, ge=1)
    """Sequences shuffled together; the batch by default, so that every step has the exact mix."""

    @model_validator(mode="after")
    def _weights(self) -> Self:
        shares = [w for w in self.weights.values() if isinstance(w, Decimal)]
        if any(w < 0 for w in shares):
            raise ValueError(f"phase '{self.name}': weights must not be negative")
        if not sum(shares) and not any(isinstance(w, ExactSequences) for w in self.weights.values()):
            raise ValueError(f"phase '{self.name}': at least one weight must be positive")
        return self


class Mixture(Section):
    """How much of which domain is seen when."""

    seed: int = Field(0, ge=0)
    seq_len: int = Field(ge=2)
    """Tokens a sequence trains on (it carries one more, the last target)."""
    batch: Annotated[int, Field(ge=1)] | tuple[BatchChange, ...]
    """Sequences a step, or a schedule of them that begins at step 1."""
    tokens: Count | None = None
    """Budget, rounded down to whole steps."""
    steps: Count | None = None
    """Length of the run, instead of a token budget."""
    phases: tuple[Phase, ...] = Field(min_length=1)
    limits: dict[Name, Count] = Field({})
    """Domains cut to the longest prefix of whole documents with at most this many tokens."""
    max_epochs: Exact = Decimal(4)
    """Most often that any domain may be repeated."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.tokens is None) == (self.steps is None):
            raise ValueError("needs either 'tokens' or 'steps'")
        _unique("phases", [p.name for p in self.phases])
        schedule = self.schedule
        if schedule[0][0] != 1 or [s for s, _ in schedule] != sorted({s for s, _ in schedule}):
            raise ValueError("'batch' must begin at step 1 and its steps must rise")
        given = [p.share for p in self.phases if p.share is not None]
        if any(not 0 < share < 1 for share in given) and len(self.phases) > 1:
            raise ValueError("a phase's share must lie between 0 and 1")
        if len(given) == len(self.phases) and sum(given) != 1:
            raise ValueError(f"the shares of the phases sum to {sum(given)}, not to 1")
        if len(given) < len(self.phases) and sum(given) >= 1:
            raise ValueError("the given shares leave nothing for the other phases")
        return self

    @property
    def schedule(self) -> tuple[tuple[int, int], ...]:
        """The batch schedule as ``(first step, sequences)`` pairs."""
        if isinstance(self.batch, int):
            return ((1, self.batch),)
        return tuple((change.step, change.batch) for change in self.batch)


class LocalExecutor(Section):
    """Processes on this machine, as many at once as ``--tasks`` says."""

    kind: Literal["local"] = "local"


class RayExecutor(Section):
    """A Ray cluster that shares the corpus folder's file system."""

    kind: Literal["ray"]
    address: str = "auto"
    tasks: int | None = Field(None, ge=1)
    """Tasks at once; ``--tasks`` by default."""
    cpus_per_task: int = Field(1, ge=1)
    mem_per_cpu_gb: float = Field(2, gt=0)


class SlurmExecutor(Section):
    """Slurm jobs, one array a stage; the build waits for each."""

    kind: Literal["slurm"]
    time: str
    """Limit of a task, such as ``12:00:00``."""
    partition: str
    tasks: int | None = Field(None, ge=1)
    """Tasks at once; ``--tasks`` by default."""
    cpus_per_task: int = Field(1, ge=1)
    mem_per_cpu_gb: int = Field(2, ge=1)
    qos: str | None = None
    job_name: str = "millstream"
    env_command: str | None = None
    """Shell line that makes the Python environment ready."""
    venv_path: str | None = None
    """Script that activates it, instead."""
    max_array_size: int = Field(1001, ge=1)
    sbatch: dict[str, str] = Field({})
    """More options of ``sbatch``, by their long names."""


Executor = LocalExecutor | RayExecutor | SlurmExecutor


class Build(Section):
    """Where a corpus is built; no part of what it is."""

    executor: Annotated[Executor, Field(discriminator="kind")] = LocalExecutor()


class Public(Section):
    """What outsiders are told about the run."""

    title: str | None = None
    description: str | None = None
    contact: str | None = None
    licences: tuple[str, ...] = ()
    """Licences, beyond those that let anybody pass texts on, whose texts the run's page may show."""
    papers: dict[Name, str] = Field({})
    """Markdown files by name (``plan``, ``risks``, ``failed-designs``), relative to the recipe's folder; each
    version stands in the run's ledger and on its page."""


class Recipe(Section):
    """A whole recipe; only ``corpus`` is needed to build."""

    format: Literal["millstream-recipe/1"] = FORMAT
    name: Name
    corpus: Corpus
    mixture: Mixture | None = None
    model: Model | None = None
    train: Train = Train()
    build: Build = Build()
    cluster: Cluster | None = None
    public: Public = Public()

    @model_validator(mode="after")
    def _mixture_domains(self) -> Self:
        if self.mixture is None:
            return self
        known = {d.name for d in self.corpus.split_domains}
        named = {n for p in self.mixture.phases for n in p.weights} | set(self.mixture.limits)
        if unknown := sorted(named - known):
            raise ValueError(f"mixture names the domain '{unknown[0]}', which the corpus does not define")
        return self

    def section_digests(self) -> dict[str, str]:
        """SHA-256 of the canonical form of each section that is present, by name."""
        return {name: digest(value) for name, value in self.canonical().items() if isinstance(value, dict)}

    def canonical(self) -> dict[str, Any]:
        """The recipe as plain JSON values, every default filled in, decimals as strings."""
        return self.model_dump(mode="json", exclude_none=True)


def parts_of(domain: Domain) -> list[Domain]:
    """The domain itself, or the parts that its score cuts it into, lowest first."""
    if not domain.split:
        return [domain]
    return [domain.model_copy(update={"name": f"{domain.name}-q{n}"}) for n in range(len(domain.split) + 1)]


def _unique(what: str, names: list[str]) -> set[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what}: the name '{name}' is used twice")
        seen.add(name)
    return seen
