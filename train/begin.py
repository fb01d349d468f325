"""Beginning a run: freezing recipe and plan in its folder, with what the recipe's values came to."""

from pathlib import Path

from millstream.audit.runs import create_run
from millstream.audit.signing import own_key
from millstream.mixture.recipe import Recipe
from millstream.stream.corpora import Corpus
from millstream.stream.plan import Plan
from millstream.train.groups import resolved_groups
from millstream.train.schedule import resolved_schedule


def begin_run(run_dir: Path, recipe: Recipe, plan: Plan, corpus: Corpus) -> None:
    """Create a run that nothing was trained in yet; its heads will be signed by this user's key.

    Raises:
        UsageError: there is a run here already, or what is left of one.
    """
    assert recipe.model is not None
    optimizer, vocab_size = recipe.train.optimizer, corpus.manifest.tokenizer.vocab_size
    resolved = {
        "groups": resolved_groups(recipe.model, vocab_size, optimizer),
        "schedule": resolved_schedule(plan, optimizer, recipe.train.schedule),
    }
    create_run(run_dir, recipe, plan, corpus, signer=own_key().verifier_key, resolved=resolved)
