"""A domain as a ring of tokens, cut into sequences anew each epoch.

Epoch ``e`` has ``tokens // seq_len`` sequences and starts at a keyed offset, so chunk borders and the
fewer than ``seq_len`` tokens that an epoch leaves out differ between epochs. Their order within the
epoch is a keyed permutation. The running index ``R`` counts the sequences of a domain consumed since
the start of the run: ``R = epoch * sequences + place in the epoch``.

Data that is added in mid-run makes a further ring of the same domain, which follows the one before at
the end of an epoch, so that nothing is repeated before the domain is used up.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millstream.stream.keys import plan_key
from millstream.stream.permutation import U64, invert


@dataclass(frozen=True, kw_only=True, slots=True)
class Ring:
    """A domain of a plan, or a piece of one: its tokens (after a limit), and the corpus they lie in."""

    name: str
    tokens: int
    documents: int
    corpus_id: str
    limited: bool
    """True where a limit cut the domain to its first ``documents`` documents."""
    running: int = 0
    """Running index of the domain at which the ring begins."""
    epoch: int = 0
    """Epoch of the domain that begins there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reads:
    """Sequences in which a document is a target: parallel arrays, one entry a sequence.

    ``running`` is the domain's running index, ``tokens`` the document's targets in the sequence.
    """

    running: U64
    epoch: NDArray[np.int64]
    tokens: NDArray[np.int64]


def epoch_offset(seed: int, ring: Ring, epoch: int) -> int:
    """Token at which an epoch's first sequence begins; 0 for epoch 0."""
    if epoch == 0:
        return 0
    word = int.from_bytes(plan_key(seed, "offset", ring.name, epoch)[:8], "little")
    return word * ring.tokens >> 64


def order_key(seed: int, ring: Ring, epoch: int) -> bytes:
    """Key of the permutation of an epoch's sequences."""
    return plan_key(seed, "order", ring.name, epoch)


def document_reads(seed: int, seq_len: int, ring: Ring, start: int, end: int, until: int) -> Reads:
    """Where the tokens ``[start, end)`` of a ring are targets in its sequences before running index ``until``.

    A sequence trains on its targets, which lie one after its inputs, so the span moves back by one
    before it is cut; a span that wraps round an epoch's start is two pieces.
    """
    sequences = ring.tokens // seq_len
    epochs = -(-(until - ring.running) // sequences) if until > ring.running else 0
    found: list[tuple[int, int, int]] = []
    for number in range(epochs):
        epoch = ring.epoch + number
        first = (start - 1 - epoch_offset(seed, ring, epoch)) % ring.tokens
        length = end - start
        seen: dict[int, int] = {}
        pieces = ((first, min(first + length, ring.tokens)), (0, first + length - ring.tokens))
        for low, high in pieces:
            high = min(high, sequences * seq_len)
            if low >= high:
                continue
            for j in range(low // seq_len, (high - 1) // seq_len + 1):
                inside = min(high, (j + 1) * seq_len) - max(low, j * seq_len)
                seen[j] = seen.get(j, 0) + inside
        if seen:
            places = invert(order_key(seed, ring, epoch), sequences, np.fromiter(seen, np.uint64, len(seen)))
            running = (ring.running + number * sequences + places.astype(np.int64)).tolist()
            found += [(r, epoch, n) for r, n in zip(running, seen.values(), strict=True) if r < until]
    table = np.array(sorted(found), np.int64).reshape(len(found), 3)
    return Reads(running=table[:, 0].astype(np.uint64), epoch=table[:, 1], tokens=table[:, 2])
