"""Batches from memory-mapped shards: the same for any ranks and workers, with a state of one number."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import build, recipe_dict, write_domain, write_recipe

from millstream.errors import InputError, UsageError
from millstream.stream.amend import Amendment, Span, amend
from millstream.stream.freeze import freeze_plan
from millstream.stream.reader import Stream, check_batches, open_stream
from millstream.stream.shards import open_domain
from millstream.stream.tombstones import masked_targets
from millstream.tokenize.manifest import read_manifest

MIXTURE: dict[str, Any] = {
    "seq_len": 24,
    "batch": 8,
    "steps": 30,
    "phases": [{"name": "a", "weights": {"law": 2, "news": 1}}, {"name": "b", "weights": {"law": 1, "news": 5}}],
    "limits": {"news": 800},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    for name in ("law", "news"):
        write_domain(folder / "in", name, 80)
    recipe = recipe_dict(folder / "in", ["law", "news"], mixture=MIXTURE)
    recipe["corpus"] |= {"shard_bytes": 4096, "chunk_bytes": 512}
    build(folder, recipe)
    return folder


@pytest.fixture
def stream(home: Path) -> Stream:
    recipe = write_recipe(home / "again.yaml", recipe_dict(home / "in", ["law", "news"], mixture=MIXTURE))
    assert recipe.mixture is not None
    root = home / "corpus"
    return open_stream(freeze_plan(recipe.mixture, read_manifest(root), root), root)


def test_rows_are_the_rings_tokens_round_every_border(stream: Stream, home: Path) -> None:
    rings = {}
    for ring in stream.plan.rings:
        domain = stream.manifest.domain(ring.name)
        assert len(domain.shards) > 1
        rings[ring.name] = open_domain(home / "corpus", domain, "uint16", domain.tokens).span(0, ring.tokens)
    assert stream.plan.pieces("news")[0].limited
    assert 700 < stream.plan.pieces("news")[0].tokens <= 800
    wrapped = 0
    for step in range(1, 31):
        batch = stream.batch(step)
        located = stream.plan.locate(batch.indices)
        for row, (domain, start) in enumerate(zip(located.domain.tolist(), located.start.tolist(), strict=True)):
            ring = rings[stream.plan.domains[domain]]
            wrapped += start + 25 > len(ring)
            assert np.array_equal(batch.tokens[row], np.take(ring, np.arange(start, start + 25), mode="wrap"))
    assert wrapped


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_any_number_of_ranks_makes_up_the_same_batch(stream: Stream, world: int) -> None:
    for step in (1, 17, 30):
        whole = stream.batch(step)
        parts = [stream.batch(step, rank, world) for rank in range(world)]
        assert np.array_equal(np.concatenate([p.tokens for p in parts]), whole.tokens)
        assert np.concatenate([p.indices for p in parts]).tolist() == whole.indices.tolist()
        assert [p.first_row for p in parts] == [rank * 8 // world for rank in range(world)]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_any_number_of_workers_gives_the_same_order(stream: Stream, workers: int) -> None:
    from torch.utils.data import DataLoader

    from millstream.stream.torch_data import StepIterator

    dataset = StepIterator(stream, rank=1, world=2, next_step=5)
    context = "fork" if workers else None
    items = list(DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context))
    assert [item["step"] for item in items] == list(range(5, 31))
    for item in items:
        expected = stream.batch(item["step"], 1, 2)
        assert np.array_equal(item["tokens"].numpy(), expected.tokens)
        assert item["domains"].tolist() == expected.domains.tolist()


def test_the_state_is_the_next_step_and_belongs_to_its_plan(stream: Stream) -> None:
    from millstream.stream.torch_data import StepDataset, StepIterator

    first = iter(StepIterator(stream))
    taken = [next(first)["step"] for _ in range(3)]
    assert taken == [1, 2, 3]
    dataset = StepIterator(stream)
    one = iter(dataset)
    next(one), next(one)
    state = dataset.state_dict()
    again = StepIterator(stream)
    again.load_state_dict(state)
    assert next(iter(again))["step"] == 3
    with pytest.raises(InputError, match="the state belongs to plan"):
        again.load_state_dict({**state, "plan_id": "0" * 64})
    by_number = StepDataset(stream)
    assert len(by_number) == 30
    assert by_number[6]["step"] == 7


@pytest.mark.parametrize("workers", [0, 3])
def test_a_stateful_loader_goes_on_where_its_state_was_taken(stream: Stream, workers: int) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    from millstream.stream.torch_data import StepIterator

    def loader() -> Any:
        context = "fork" if workers else None
        dataset = StepIterator(stream, next_step=4)
        return StatefulDataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)

    whole = [(item["step"], item["tokens"].tolist()) for item in loader()]
    assert [step for step, _ in whole] == list(range(4, 31))
    first = loader()
    items = iter(first)
    taken = [next(items)["step"] for _ in range(7)]
    assert taken == list(range(4, 11))
    again = loader()
    again.load_state_dict(first.state_dict())
    assert [(item["step"], item["tokens"].tolist()) for item in again] == whole[7:]


def test_webdataset_pipelines_take_the_stream_as_a_source(changed: Stream) -> None:
    import webdataset

    from millstream.stream.torch_data import StepIterator, as_samples

    pipeline = webdataset.DataPipeline(StepIterator(changed, rank=1, world=2), as_samples)
    samples = iter(pipeline)
    masked = 0
    for step in range(1, changed.plan.total_steps + 1):
        batch = changed.batch(step, 1, 2)
        for row, index in enumerate(batch.indices.tolist()):
            sample = next(samples)
            assert (int(sample["__key__"]), sample["step"]) == (index, step)
            assert sample["domain"] == batch.domains[row]
            assert np.array_equal(sample["tokens"].numpy(), batch.tokens[row])
            masked += int(sample["masked"].sum()) if "masked" in sample else 0
    assert next(samples, None) is None
    assert masked > 0
    together = webdataset.DataPipeline(StepIterator(changed), as_samples, webdataset.batched(16))
    assert next(iter(together))["tokens"].shape == (16, changed.plan.seq_len + 1)


def test_batches_lie_in_memory_of_the_callers_making(stream: Stream) -> None:
    made: list[Any] = []

    def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
        made.append(np.empty(shape, dtype))
        return made[-1]

    for batch in stream.iterate(1, 9, allocate=allocate, dtype=np.int64):
        assert any(batch.tokens is array for array in made)
        assert np.array_equal(batch.tokens, stream.batch(batch.step).tokens)


def test_what_does_not_divide_is_refused_with_what_would(stream: Stream) -> None:
    with pytest.raises(UsageError, match="does not divide among 3 ranks"):
        stream.batch(1, 0, 3)
    with pytest.raises(UsageError, match="no multiple of 2 ranks x micro_batch 3; use 6 or 12"):
        check_batches(stream.plan, 2, 3)
    check_batches(stream.plan, 2, 4)


def test_another_corpus_than_the_plans_is_refused(stream: Stream, tmp_path: Path) -> None:
    write_domain(tmp_path / "in", "law", 40)
    build(tmp_path, recipe_dict(tmp_path / "in", ["law"]))
    with pytest.raises(InputError, match=r"holds corpus .*; the plan was made for"):
        open_stream(stream.plan, tmp_path / "corpus")


@pytest.fixture
def changed(stream: Stream, home: Path) -> Stream:
    """The stream after a swap, another batch, a skip and a takedown."""
    law, news = stream.plan.pieces("law")[0], stream.plan.pieces("news")[0]
    gone = (
        Span(domain="law", corpus_id=law.corpus_id, start=100, end=900),
        Span(domain="news", corpus_id=news.corpus_id, start=0, end=60),
        Span(domain="news", corpus_id=news.corpus_id, start=60, end=61),
        Span(domain="news", corpus_id=news.corpus_id, start=700, end=739),
    )
    plan = amend(stream.plan, Amendment(from_step=4, weights={"law": "1", "news": "1"}))
    plan = amend(plan, Amendment(from_step=7, batch=12))
    plan = amend(plan, Amendment(from_step=9, skip=2, takedowns=gone))
    return open_stream(plan, home / "corpus")


@pytest.mark.parametrize("ahead", [0, 1, 6])
@pytest.mark.parametrize("dtype", [None, np.int64])
def test_iterating_gives_each_steps_batch_over_all_changes(changed: Stream, ahead: int, dtype: Any) -> None:
    total = changed.plan.total_steps
    assert {changed.plan.batch_of(step) for step in range(1, total + 1)} == {8, 12}
    for first, stride in ((1, 1), (1, 2), (2, 3), (5, 1), (total, 1)):
        found = list(changed.iterate(first, None, 1, 2, stride=stride, ahead=ahead, dtype=dtype))
        assert [batch.step for batch in found] == list(range(first, total + 1, stride))
        for batch in found:
            expected = changed.batch(batch.step, 1, 2)
            assert batch.tokens.dtype == (dtype or np.uint16)
            for name in ("indices", "domains", "tokens", "buried"):
                assert np.array_equal(getattr(batch, name), getattr(expected, name)), (name, batch.step)
            assert (batch.first_index, batch.first_row) == (expected.first_index, expected.first_row)


def test_a_batch_that_is_held_is_not_written_over(stream: Stream) -> None:
    expected = [stream.batch(step).tokens.copy() for step in range(1, 31)]
    views = [batch.tokens[3:, 5] for batch in stream.iterate()]
    assert all(np.array_equal(view, tokens[3:, 5]) for view, tokens in zip(views, expected, strict=True))
    addresses = {batch.tokens.ctypes.data for batch in stream.iterate()}
    assert len(addresses) <= 3


def test_what_was_taken_down_is_fed_as_eos_and_counts_for_no_loss(changed: Stream, stream: Stream) -> None:
    eos = stream.manifest.tokenizer.eos_id
    seen = 0
    for step in range(1, changed.plan.total_steps + 1):
        batch = changed.batch(step)
        located = changed.plan.locate(batch.indices)
        whole = changed.read(located)
        stones = [s for s in changed.plan.tombstones if s.from_step <= step]
        gone = np.zeros(whole.shape, bool)
        for row, (number, start) in enumerate(zip(located.ring.tolist(), located.start.tolist(), strict=True)):
            ring = changed.plan.rings[number]
            at = (start + np.arange(whole.shape[1])) % ring.tokens
            for stone in stones:
                gone[row] |= (stone.domain == ring.name) & (at >= stone.start) & (at < stone.end)
        assert np.array_equal(batch.tokens, np.where(gone, eos, whole))
        masked = masked_targets(batch.buried, *np.subtract(whole.shape, (0, 1)))
        assert np.array_equal(gone[:, 1:], np.zeros_like(gone[:, 1:]) if masked is None else masked)
        assert len({(row, first) for row, first, _ in batch.buried.tolist()}) == len(batch.buried)
        seen += len(batch.buried)
    assert seen > 20
