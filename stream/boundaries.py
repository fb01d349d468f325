"""Where documents begin inside sequences: for attention that does not look from one into another.

Every document ends with EOS and no EOS stands inside one (a build checks it), so the borders follow from the tokens
alone: exact at borders of chunks, shards, the ring and epochs, where a table would have to be read.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millstream.stream.ranges import Tokens


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Stretches of documents in the inputs of a batch of ``rows`` sequences of ``seq_len`` tokens.

    ``cu_seqlens`` int32 (stretches + 1,): where stretches begin in the inputs laid end to end, row after row, and the
    end, as variable-length attention wants it. ``longest``: tokens of the longest stretch.
    """

    cu_seqlens: NDArray[np.int32]
    longest: int
    rows: int
    seq_len: int

    def document_ids(self) -> NDArray[np.int32]:
        """Number of each input's stretch in its row, from 0: (rows, seq_len). Inputs may look at equal numbers only."""
        return (self._numbers() - self._numbers()[:, :1]).astype(np.int32)

    def position_ids(self) -> NDArray[np.int32]:
        """Place of each input in its stretch, from 0: (rows, seq_len)."""
        starts = np.repeat(self.cu_seqlens[:-1], np.diff(self.cu_seqlens)).reshape(self.rows, self.seq_len)
        places = np.arange(self.rows * self.seq_len).reshape(self.rows, self.seq_len)
        return (places - starts).astype(np.int32)

    def mask(self) -> NDArray[np.bool_]:
        """Which inputs (last axis) each input looks at, itself and those before it: (rows, seq_len, seq_len)."""
        ids = self.document_ids()
        same: NDArray[np.bool_] = ids[:, :, None] == ids[:, None, :]
        return same & np.tri(self.seq_len, dtype=np.bool_)

    def _numbers(self) -> NDArray[np.int64]:
        counts = np.diff(self.cu_seqlens)
        return np.repeat(np.arange(len(counts)), counts).reshape(self.rows, self.seq_len)


def boundaries(tokens: Tokens, eos: int) -> Boundaries:
    """Find the borders of documents in a batch.

    Args:
        tokens: (rows, seq_len + 1), as in ``Batch``; the last column is a target only.
        eos: id that ends every document.
    """
    rows, seq_len = tokens.shape[0], tokens.shape[1] - 1
    begins = np.ones((rows, seq_len), np.bool_)
    np.equal(tokens[:, : seq_len - 1], eos, out=begins[:, 1:])
    starts = np.flatnonzero(begins)
    cu_seqlens = np.append(starts, rows * seq_len).astype(np.int32)
    return Boundaries(cu_seqlens, int(np.diff(cu_seqlens).max(initial=0)), rows, seq_len)
