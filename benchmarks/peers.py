"""Other libraries' streams over the same tokens, each by the fastest way that its documentation shows.

Only numpy is imported with this module; a peer's own packages are imported where it is used.
"""

import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

NAMES = ("web", "code", "math", "wiki")
WEIGHTS = (0.5, 0.3, 0.15, 0.05)
SEQ_LEN, BATCH, SEED = 4096, 8, 1234
SEQUENCES = 400_000_000 // SEQ_LEN


def flat(root: Path, name: str) -> Any:
    return np.memmap(root / "flat" / f"{name}.bin", np.uint32, mode="r")


def rows(root: Path, name: str) -> Any:
    tokens = flat(root, name)
    return tokens[: len(tokens) // SEQ_LEN * SEQ_LEN].reshape(-1, SEQ_LEN)


# --- megatron-core: an indexed dataset a domain, blended ---


def make_megatron(root: Path) -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder, get_bin_path, get_idx_path

    for name in NAMES:
        prefix = str(root / "megatron" / name)
        builder = IndexedDatasetBuilder(get_bin_path(prefix), dtype=np.int32)
        tokens, at = flat(root, name).astype(np.int32), 0
        for length in np.load(root / "flat" / f"{name}.len.npy").tolist():
            builder.add_document(torch.from_numpy(tokens[at : at + length]), [length])
            at += length
        builder.finalize(get_idx_path(prefix))


class _Tokenizer:
    unique_identifiers: ClassVar = {"class": "none"}
    eod, vocab_size, pad, bos = 0, 128_000, -1, 1


def megatron(root: Path, workers: int) -> Iterator[Any]:
    """GPTDataset under BlendedMegatronDatasetBuilder, in a DataLoader with a batch sampler."""
    import torch.distributed
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from torch.utils.data import DataLoader

    store = tempfile.mkdtemp()
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}/store", rank=0, world_size=1)
    config = GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=SEQ_LEN,
        blend_per_split=[([str(root / "megatron" / name) for name in NAMES], list(WEIGHTS)), None, None],
        path_to_cache=str(root / "megatron" / "cache"),
        tokenizer=_Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        mid_level_dataset_surplus=0.005,
        allow_ambiguous_pad_tokens=True,
    )
    builder = BlendedMegatronDatasetBuilder(GPTDataset, [SEQUENCES, None, None], lambda: True, config)
    dataset = builder.build()[0]
    sampler = [list(range(at, at + BATCH)) for at in range(0, len(dataset) - BATCH, BATCH)]
    while True:
        for batch in DataLoader(dataset, batch_sampler=sampler, **_workers(workers)):
            yield batch["tokens"]


# --- mosaicml-streaming: MDS shards, one stream a domain ---


def _mosaic() -> Any:
    try:
        import torchvision  # noqa: F401
    except Exception:
        # Only its vision datasets need it, and its wheel has to fit torch's to the build.
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in (
            "torchvision",
            "torchvision.datasets",
            "torchvision.transforms",
            "torchvision.transforms.functional",
        ):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__spec__ = ModuleSpec(name, None)
        for name in ("VisionDataset", "CIFAR10", "ImageFolder"):
            setattr(sys.modules["torchvision.datasets"], name, type(name, (), {}))
        sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
    import streaming

    return streaming


def make_mosaic(root: Path) -> None:
    streaming = _mosaic()
    for name in NAMES:
        columns = {"tokens": f"ndarray:uint32:{SEQ_LEN}"}
        with streaming.MDSWriter(out=str(root / "mosaic" / name), columns=columns, size_limit="64mb") as writer:
            for row in rows(root, name):
                writer.write({"tokens": np.asarray(row)})


def mosaic(root: Path, workers: int) -> Iterator[Any]:
    """StreamingDataset over local shards with py1e, in a StreamingDataLoader."""
    streaming = _mosaic()
    streaming.base.util.clean_stale_shared_memory()
    streams = [
        streaming.Stream(local=str(root / "mosaic" / name), proportion=weight)
        for name, weight in zip(NAMES, WEIGHTS, strict=True)
    ]
    dataset = streaming.StreamingDataset(
        streams=streams,
        epoch_size=SEQUENCES,
        shuffle=True,
        shuffle_algo="py1e",
        batch_size=BATCH,
        num_canonical_nodes=2,
        shuffle_seed=SEED,
    )
    loader = streaming.StreamingDataLoader(dataset, batch_size=BATCH, **_workers(workers))
    while True:
        for batch in loader:
            yield batch["tokens"]


# --- litdata: chunks of tokens, combined ---


def make_litdata(root: Path) -> None:
    import torch
    from litdata.streaming.cache import Cache
    from litdata.streaming.item_loader import TokensLoader

    for name in NAMES:
        folder = root / "litdata" / name
        folder.mkdir(parents=True)
        cache = Cache(input_dir=str(folder), chunk_bytes="64MB", item_loader=TokensLoader(SEQ_LEN))
        tokens, at = flat(root, name).view(np.int32), 0
        for number, length in enumerate(np.load(root / "flat" / f"{name}.len.npy").tolist()):
            cache[number] = torch.from_numpy(np.array(tokens[at : at + length]))
            at += length
        cache.done()
        cache.merge()


def litdata(root: Path, workers: int) -> Iterator[Any]:
    """StreamingDataset with TokensLoader under CombinedStreamingDataset, in a StreamingDataLoader."""
    from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, TokensLoader

    parts = [
        StreamingDataset(
            str(root / "litdata" / name),
            item_loader=TokensLoader(SEQ_LEN),
            shuffle=True,
            drop_last=True,
            seed=SEED,
            max_cache_size="50GB",
        )
        for name in NAMES
    ]
    combined = CombinedStreamingDataset(parts, weights=list(WEIGHTS), iterate_over_all=False, seed=SEED)
    loader = StreamingDataLoader(combined, batch_size=BATCH, drop_last=True, **_workers(workers))
    while True:
        yield from loader


# --- grain: a random-access source over a memory-mapped file ---


class _Rows:
    """A source of rows, opened anew in each worker."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name, self.rows = root, name, None

    def __len__(self) -> int:
        return len(rows(self.root, self.name))

    def __getitem__(self, index: int) -> Any:
        if self.rows is None:
            self.rows = rows(self.root, self.name)
        return self.rows[index]

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "name": self.name, "rows": None}

    def __repr__(self) -> str:
        return f"Rows({self.name})"


def _grain(root: Path, workers: int) -> Any:
    import grain

    parts = [
        grain.MapDataset.source(_Rows(root, name)).seed(SEED + n).shuffle().repeat() for n, name in enumerate(NAMES)
    ]
    mixed = grain.MapDataset.mix(parts, weights=list(WEIGHTS)).batch(BATCH)
    if not workers:
        return iter(mixed.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))
    ahead = mixed.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=16))
    return iter(ahead.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=8)))


def grain(root: Path, workers: int) -> Iterator[Any]:
    """MapDataset.mix of shuffled sources; mp_prefetch for workers."""
    return _grain(root, workers)  # type: ignore[no-any-return]


# --- webdataset: tars of one sequence a sample, mixed at random ---


def make_webdataset(root: Path) -> None:
    import webdataset

    for name in NAMES:
        (root / "webdataset" / name).mkdir(parents=True)
        pattern = str(root / "webdataset" / name / "%05d.tar")
        with webdataset.ShardWriter(pattern, maxcount=4096, verbose=0) as writer:
            for number, row in enumerate(rows(root, name)):
                writer.write({"__key__": f"{number:09d}", "bin": row.tobytes()})


def webdataset(root: Path, workers: int) -> Iterator[Any]:
    """ResampledShards, a shuffle buffer of 1,000 and RandomMix; a DataLoader for workers."""
    import torch
    import webdataset as wds
    from torch.utils.data import DataLoader, IterableDataset
    from webdataset.mix import RandomMix

    def part(name: str) -> Any:
        shards = sorted(str(path) for path in (root / "webdataset" / name).glob("*.tar"))
        return wds.DataPipeline(
            wds.ResampledShards(shards, seed=SEED, deterministic=True),
            wds.tarfile_to_samples(),
            wds.shuffle(1000, initial=250),
            wds.map(lambda sample: np.frombuffer(sample["bin"], np.uint32)),
        )

    mixed = RandomMix([part(name) for name in NAMES], probs=list(WEIGHTS))

    class Batches(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            held: list[Any] = []
            for row in mixed:
                held.append(row)
                if len(held) == BATCH:
                    yield torch.from_numpy(np.stack(held).view(np.int32))
                    held = []

    if not workers:
        yield from Batches()
    yield from DataLoader(Batches(), batch_size=None, **_workers(workers))


def _workers(workers: int) -> dict[str, Any]:
    return {"num_workers": workers, "prefetch_factor": 8} if workers else {"num_workers": 0}


PEERS: dict[str, Callable[[Path, int], Iterator[Any]]] = {
    "megatron": megatron,
    "mosaic": mosaic,
    "litdata": litdata,
    "grain": grain,
    "webdataset": webdataset,
}
_MAKE: dict[str, Callable[[Path], None]] = {
    "megatron": make_megatron,
    "mosaic": make_mosaic,
    "litdata": make_litdata,
    "webdataset": make_webdataset,
}


def make_peer(peer: str, root: Path) -> None:
    """Write a peer's own format, where it has one."""
    if peer in _MAKE:
        (root / peer).mkdir(parents=True, exist_ok=True)
        _MAKE[peer](root)


def peer_batches(peer: str, root: Path, workers: int) -> Iterator[Any]:
    """Batches of 8 x 4,096 tokens."""
    return PEERS[peer](root, workers)


def peer_resume_at_scale(peer: str, root: Path, sequences: int) -> float:
    """Milliseconds to the first batch at 90% of a long run, imports excluded.

    Raises:
        SystemExit: the peer cannot do it here; says why.
    """
    if peer != "grain":
        reasons = {
            "megatron": "builds 22 to 30 bytes of index a sequence first",
            "mosaic": "builds arrays of 41 bytes a sequence first",
            "litdata": "has no state for a mixture that was not run up to there",
            "webdataset": "has no position to go to, and would have to skip",
        }
        raise SystemExit(f"not measured: {reasons[peer]}")
    import grain

    grain.MapDataset.range(8)
    began = time.perf_counter()
    stream = _grain(root, 0)
    stream.set_state({"next_index": sequences * 9 // 10 // BATCH})
    next(stream)
    return (time.perf_counter() - began) * 1e3
