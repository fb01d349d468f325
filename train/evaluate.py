"""Loss on held-out documents, per domain."""

from typing import Any

import numpy as np
import torch

from millstream.stream.reader import Stream
from millstream.stream.shards import open_holdout
from millstream.train.metrics import Value

MOST_SEQUENCES = 16


@torch.no_grad()
def held_out_losses(engine: Any, stream: Stream, micro_batch: int) -> list[Value]:
    """Mean loss of each domain's first held-out sequences, and the mean over domains.

    Every rank evaluates the same sequences, since expert-parallel ranks must run the same passes.
    """
    length = stream.plan.seq_len
    network = engine.module
    network.eval()
    values = []
    for name in stream.plan.domains:
        # The one that the run began with, so that losses stay comparable when data is added.
        corpus = stream.corpora[stream.plan.pieces(name)[0].corpus_id]
        held_out = open_holdout(corpus.root, corpus.manifest.domain(name), corpus.manifest.tokenizer.dtype)
        if held_out is None or held_out.tokens < length + 1:
            continue
        count = min(MOST_SEQUENCES, (held_out.tokens - 1) // length)
        tokens = np.empty((count, length + 1), held_out.dtype)
        held_out.gather(np.arange(count) * length, length + 1, tokens, np.arange(count))
        batch = torch.from_numpy(tokens.astype(np.int64)).to(engine.device)
        losses = [network(part).per_sequence for part in batch.split(micro_batch)]
        values.append(Value(name="loss_held_out", domain=name, value=float(torch.cat(losses).mean())))
    network.train()
    if values:
        values.append(Value(name="loss_held_out", value=sum(v.value for v in values) / len(values)))
    return values
