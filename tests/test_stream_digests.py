"""A step's digest depends on no machine: one root whatever the ranks, the workers, the place, a restart, a rebuild."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import build, recipe_dict, write_domain, write_recipe
from stores import options, s3_server, upload
from torch.utils.data import DataLoader

from millstream.audit.feed import leaf_hashes, step_root
from millstream.stream.freeze import freeze_plan
from millstream.stream.plan import Plan
from millstream.stream.reader import Stream, open_stream
from millstream.stream.remote import StoreSettings
from millstream.stream.torch_data import StepIterator
from millstream.tokenize.manifest import read_manifest

STEPS = 4


def built(folder: Path, tasks: int) -> Path:
    """The same corpus in any folder."""
    for name in ("law", "news"):
        write_domain(folder / "in", name, 80)
    recipe = recipe_dict(folder / "in", ["law", "news"])
    recipe["corpus"] |= {"shard_bytes": 4096, "chunk_bytes": 512}
    build(folder, recipe, tasks=tasks)
    return folder / "corpus"


def planned(corpus: Path) -> Plan:
    mixture: dict[str, Any] = {
        "seq_len": 24,
        "batch": 24,
        "steps": 12,
        "phases": [{"name": "a", "weights": {"law": 2, "news": 1}}, {"name": "b", "weights": {"law": 1, "news": 5}}],
    }
    recipe = write_recipe(
        corpus.parent / "recipe.yaml", recipe_dict(corpus.parent / "in", ["law", "news"], mixture=mixture)
    )
    assert recipe.mixture is not None
    return freeze_plan(recipe.mixture, read_manifest(corpus), corpus)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Roots of the first steps, read in one piece from where the corpus was built first."""
    corpus = built(tmp_path_factory.mktemp("first"), 1)
    stream = open_stream(planned(corpus), corpus)
    batches = [stream.batch(step) for step in range(1, STEPS + 1)]
    return [step_root(leaf_hashes(batch.indices, batch.tokens)) for batch in batches]


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Stream]]:
    """The corpus built again by several tasks, on disk and in a store."""
    corpus = built(tmp_path_factory.mktemp("elsewhere"), 3)
    plan = planned(corpus)
    with s3_server() as endpoint:
        url = upload(endpoint, corpus, "elsewhere")
        settings = StoreSettings(options=options(endpoint))
        yield {"disk": open_stream(plan, corpus), "s3": open_stream(plan, url, settings)}


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("place", ["disk", "s3"])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_digests_depend_on_no_machine(
    expected: list[str], streams: dict[str, Stream], place: str, world: int, workers: int
) -> None:
    leaves: dict[int, list[Any]] = {step: [] for step in range(1, STEPS + 1)}
    for rank in range(world):
        for first, last in ((1, 2), (3, STEPS)):
            dataset = StepIterator(streams[place], rank, world, next_step=first)
            context = "fork" if workers else None
            loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)
            items = iter(loader)
            for step in range(first, last + 1):
                item = next(items)
                assert item["step"] == step
                begin = item["first_index"] + item["first_row"]
                indices = np.arange(begin, begin + 24 // world, dtype=np.uint64)
                leaves[step].append(leaf_hashes(indices, item["tokens"].numpy()))
            del items
    assert [step_root(np.concatenate(leaves[step])) for step in leaves] == expected
