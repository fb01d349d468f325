"""Memory that a rank needs, by kind, from the recipe alone: integers and formulas, no torch.

Every term is a tensor that the model's code or DeepSpeed allocates; ``tests/test_train_footprint.py`` holds the sums to
the bytes that real training took. What is kept for the backward pass, per token, with D hidden, A query and B
key-value widths, H query and K key-value heads, E experts, k chosen ones, W an expert's width, I a dense layer's, b
bytes an element:

    a norm              (4 + 2b) D + 4            its input in fp32, normed, scaled
    attention           2b A + 2b B + 4 H         queries, what they read, keys, values, their normalisers
    with QK-norm        + (4 + b)(A + B) + 4 (H + K)
    dense part          4b I                      gate, its SiLU, up, their product
    router              8 E + 32 k + 8, and 4 D where b is 2
    routed experts      2b k (D + W)              rows in and out, gate, up
    shared experts      4b W each

With activation checkpointing a layer keeps its input alone. The most is needed at one of few moments: in the head, at
the top or at the bottom of the backward pass, or in the update. Expert load is taken as even: a rank that gets more
than its share of rows needs that much more for them. Of attention's kernels the plain one keeps a mask besides, where
documents end inside a sequence. ZeRO 1 and 2 are held to 5%; for ZeRO 3, which fetches and drops weights by its own
judgement, the sum is an estimate.
"""

from dataclasses import asdict, dataclass

from millstream.mixture.training import Model, Train
from millstream.train.size import model_size

MOST_BUCKET = 500_000_000
CHUNK_LOGITS = 2**26
"""Logits that the head holds at once."""
MOST_GROUP = 2**28
"""Experts' parameters that are updated together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Bytes a rank, at the moment when it needs most."""

    weights: int
    gradients: int
    optimizer: int
    """fp32 master weights and moments."""
    activations: int
    """What the forward pass kept of a micro-batch."""
    buffers: int
    """Gradients on their way to other ranks, and what the operation at work takes besides."""

    @property
    def total(self) -> int:
        """All of them."""
        return sum(asdict(self).values())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shares:
    """Parameters of a rank: held, in the widest tensor, updated, updated at most at once; and bytes of each."""

    held: int
    widest: int
    cut: int
    group: int
    width: int


def bucket_elements(parameters: int) -> int:
    """Gradients that ranks sum at once; no more than a rank has parameters."""
    return min(MOST_BUCKET, parameters)


def footprint(model: Model, vocab_size: int, train: Train, world: int, seq_len: int, micro_batches: int) -> Footprint:
    """Bytes a rank needs to train.

    ZeRO 1 cuts the optimizer's state among the ranks that hold a parameter, ZeRO 2 the gradients too, ZeRO 3 the
    weights, of which it holds at least the head or the embedding whole when it uses them.

    Args:
        model: its shape.
        vocab_size: ids it knows.
        train: how it is laid out.
        world: ranks.
        seq_len: tokens of a sequence.
        micro_batches: of a rank in a step; gradients lie there from the first to the last.
    """
    size = model_size(model, vocab_size)
    experts, rest = size.experts // train.expert_parallel, size.total - size.experts
    replicas = world // train.expert_parallel
    shares = _Shares(
        held=experts + rest,
        widest=vocab_size * model.hidden_size,
        cut=experts // replicas + rest // world,
        group=max(min(experts, MOST_GROUP) // replicas, rest // world),
        width=2 if train.precision == "bf16" else 4,
    )
    moments = _moments(model, vocab_size, train, shares, seq_len, micro_batches)
    gradients, activations, buffers = max(moments, key=sum)
    return Footprint(
        weights=shares.width * (shares.cut + shares.widest if train.zero_stage == 3 else shares.held),
        gradients=gradients,
        optimizer=optimizer_bytes(model, vocab_size, train, world),
        activations=activations,
        buffers=buffers,
    )


def optimizer_bytes(model: Model, vocab_size: int, train: Train, world: int) -> int:
    """A rank's share of master weights and moments: 12 bytes a parameter, 8 where Muon moves it."""
    size = model_size(model, vocab_size)
    muon = train.optimizer.kind == "muon"
    experts = (8 if muon else 12) * size.experts // world
    routers = (model.num_hidden_layers - model.first_k_dense_replace) * model.n_routed_experts * model.hidden_size
    norms = 2 * model.num_hidden_layers * model.hidden_size + model.hidden_size
    norms += 2 * model.num_hidden_layers * model.head_dim if model.use_qk_norm else 0
    matrices = size.layers - routers - norms if muon else 0
    rest = 8 * matrices + 12 * (size.layers + size.embeddings - matrices)
    return experts + rest // world


def _moments(
    model: Model, vocab_size: int, train: Train, shares: _Shares, seq_len: int, micro_batches: int
) -> list[tuple[int, int, int]]:
    """Gradients, activations and buffers at each moment that can need most."""
    tokens, width = train.micro_batch * seq_len, shares.width
    hidden, head = tokens * model.hidden_size, vocab_size * model.hidden_size
    dense, sparse = (_layer_bytes(model, tokens, width, dense=kind) for kind in (True, False))
    layers = [dense] * model.first_k_dense_replace
    layers += [sparse] * (model.num_hidden_layers - model.first_k_dense_replace)
    again = train.activation_checkpointing
    ends = 8 * tokens + (4 + width) * hidden
    kept = (width * hidden * len(layers) if again else sum(layers)) + ends
    bottom, top = (layer if again else 0 for layer in (layers[0], layers[-1]))
    work = [_backward_bytes(model, tokens, width, dense=layer is dense) for layer in (layers[0], layers[-1])]

    gradients = _gradients(train, shares, micro_batches, head)
    waiting, bucket = gradients.waiting, gradients.bucket
    chunk = min(tokens, max(1, CHUNK_LOGITS // vocab_size)) * vocab_size
    narrow = width * head if width == 2 else 0
    # The head sums its gradient in fp32; a product in fewer bits is widened to be added.
    of_head = 4 * head + width * hidden
    forward = max(8 * chunk, (4 + width) * chunk + 3 * narrow)
    back = 4 * head + narrow + width * hidden
    return [
        (waiting, kept, gradients.staged + of_head + forward),
        (waiting, kept, gradients.staged + of_head + back),
        (waiting + gradients.top, kept, bucket + top + work[1]),
        (waiting + gradients.bottom, ends + (width * hidden if again else layers[0]), bucket + bottom + work[0]),
        (gradients.reduced, 0, gradients.update),
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gradients:
    """Bytes of gradients at the moments of a step, from its second micro-batch on where there are several."""

    waiting: int
    """From earlier micro-batches."""
    bucket: int
    staged: int
    """Of the bucket, before the backward pass."""
    top: int
    """Added when the head's are there."""
    bottom: int
    """Added when all are there."""
    reduced: int
    """Left for the update."""
    update: int
    """Copies that the update of one group of parameters takes."""


def _gradients(train: Train, shares: _Shares, micro_batches: int, head: int) -> _Gradients:
    width, several = shares.width, micro_batches > 1
    bucket = width * bucket_elements(shares.held)
    if train.zero_stage == 3:
        # Both lie there from the start.
        own = width * shares.cut
        return _Gradients(waiting=own, bucket=bucket, staged=bucket, top=0, bottom=0, reduced=own, update=bucket)
    if train.gradient_precision == "fp32" and width == 2:
        own = 4 * shares.cut
        return _Gradients(
            waiting=own if several else 0,
            bucket=bucket,
            staged=0,
            top=0 if several else own,
            bottom=0 if several else own,
            reduced=own,
            update=0,
        )
    # Parameters that a border cuts lie whole on either side.
    own = width * min(shares.held, shares.cut + (shares.widest if shares.held > shares.cut else 0))
    update = (width + 4) * shares.group if width == 2 else width * shares.group
    if train.zero_stage == 1:
        # They lie whole until the last micro-batch; the bucket stays from the first one on.
        whole = width * shares.held
        return _Gradients(
            waiting=whole if several else 0,
            bucket=bucket,
            staged=bucket if several else 0,
            top=0 if several else width * head,
            bottom=0 if several else whole,
            reduced=max(own + update, whole + own) - update,
            update=update,
        )
    return _Gradients(
        waiting=own if several else 0,
        bucket=bucket,
        staged=0,
        top=own if width * head > bucket else 0,
        bottom=own,
        reduced=own,
        update=update,
    )


def _layer_bytes(model: Model, tokens: int, width: int, *, dense: bool) -> int:
    """What the forward pass of one layer keeps; see the module's docstring."""
    heads, groups = model.num_attention_heads, model.num_key_value_heads
    query, key = heads * model.head_dim, groups * model.head_dim
    kept = 2 * ((4 + 2 * width) * model.hidden_size + 4)
    kept += 2 * width * (query + key) + 4 * heads
    if model.use_qk_norm:
        kept += (4 + width) * (query + key) + 4 * (heads + groups)
    if dense:
        return tokens * (kept + 4 * width * model.intermediate_size)
    choices, expert = model.num_experts_per_tok, model.moe_intermediate_size
    kept += 8 * model.n_routed_experts + 32 * choices + 8 + (4 * model.hidden_size if width == 2 else 0)
    kept += 2 * width * choices * (model.hidden_size + expert) + 4 * width * model.n_shared_experts * expert
    return tokens * kept


def _backward_bytes(model: Model, tokens: int, width: int, *, dense: bool) -> int:
    """What the backward pass of one layer's feed-forward part takes at most beside what the forward pass kept."""
    flowing = width * tokens * model.hidden_size
    if dense:
        return 2 * flowing + 3 * width * tokens * model.intermediate_size
    rows = tokens * model.num_experts_per_tok
    through = rows * model.hidden_size
    combine = 12 * through if width == 2 else 8 * through
    experts = width * (2 * through + 3 * rows * model.moe_intermediate_size)
    return 2 * flowing + max(combine, experts)
