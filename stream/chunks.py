"""Where a shard's tokens lie in its tar: the chunk index beside it."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from millstream.errors import InputError
from millstream.stream.roots import Root, whole_file
from millstream.tokenize.manifest import Shard


@dataclass(frozen=True, slots=True)
class Chunks:
    """A shard's chunks, in order: parallel arrays (n,)."""

    starts: NDArray[np.int64]
    """First token of each chunk, in the domain."""
    counts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    """Byte of the tar at which each chunk's tokens begin."""


def read_chunks(root: Root, shard: Shard, itemsize: int) -> Chunks:
    """Read a shard's chunk index.

    Raises:
        InputError: it is missing or damaged, or its chunks are not the shard's tokens.
    """
    where = f"{root}/{shard.chunks.path}"
    try:
        # Not with Polars: its threads do not survive a fork, and data loaders fork their workers. Not with read_table:
        # it imports all of Arrow's dataset and compute modules, which takes longer than a restart.
        columns = ["token_start", "n_tokens", "data_offset"]
        with pq.ParquetFile(whole_file(root, shard.chunks)) as file:
            index = file.read(columns=columns, use_threads=False)
    except (pa.ArrowException, KeyError) as error:
        raise InputError(f"{where}: damaged: {str(error).splitlines()[0]}") from error
    starts, counts, offsets = (index[name].to_numpy() for name in columns)
    ends = starts + counts
    if (
        not len(starts)
        or starts[0] != shard.token_start
        or (starts[1:] != ends[:-1]).any()
        or ends[-1] != shard.token_start + shard.tokens
        or (offsets % itemsize).any()
        or (offsets + counts * itemsize > shard.tar.bytes).any()
    ):
        raise InputError(f"{where}: its chunks do not cover the shard's {shard.tokens} tokens; rebuild the corpus")
    return Chunks(starts, counts, offsets)
