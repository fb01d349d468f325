"""A plan for a corpus that is not there yet: what can be said of a mixture from the recipe alone."""

from pathlib import Path

from millstream.mixture.recipe import Corpus, Mixture
from millstream.stream.freeze import freeze_plan
from millstream.stream.plan import Plan
from millstream.tokenize.manifest import DomainManifest, FileEntry, Manifest, TokenizerIdentity

MOST_SEQUENCES = 1 << 34
"""Of a phase, by the plan's contract; no domain is asked for more."""


def preview_plan(mixture: Mixture, corpus: Corpus) -> Plan:
    """The plan over domains that never run out.

    Steps, phases and sequences are those that the real plan will have. Epochs and limits are not known, and the plan's
    id means nothing.

    Raises:
        RecipeError: the mixture is impossible over any corpus.
    """
    tokens = MOST_SEQUENCES * mixture.seq_len
    domains = tuple(
        DomainManifest(
            name=domain.name, tokens=tokens, documents=1, bytes=0, shards=(), holdout=None, read=1, exclusions={}
        )
        for domain in corpus.split_domains
    )
    nothing = FileEntry(path="", bytes=0, sha256="")
    tokenizer = TokenizerIdentity(file=nothing, vocab_size=1, eos_id=0, bos_id=None, dtype="", probe="")
    manifest = Manifest(corpus_digest="", corpus={}, tokenizer=tokenizer, domains=domains, exclusions=(), build={})
    return freeze_plan(mixture.model_copy(update={"limits": {}}), manifest, Path())
