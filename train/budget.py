"""What a run costs on its machines: time, traffic, checkpoints, and whether it fits. No torch."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from millstream.mixture.cluster import Cluster
from millstream.mixture.training import Model, Train
from millstream.train.footprint import Footprint, footprint, optimizer_bytes
from millstream.train.size import flops_formula, model_size, token_flops


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is trained: the recipe's sections that decide cost. ``batch`` is in sequences."""

    model: Model
    train: Train
    vocab_size: int
    seq_len: int
    batch: int
    ranks: int

    def footprint(self) -> Footprint:
        """Bytes a rank needs."""
        return footprint(self.model, self.vocab_size, self.train, self.ranks, self.seq_len, self.micro_batches)

    @property
    def micro_batches(self) -> int:
        """Of a rank in a step."""
        return self.batch // (self.ranks * self.train.micro_batch)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """Expert-parallel all-to-alls of one rank.

    A layer's tokens are sent to their experts and back, in the forward and in the backward pass, and forward once more
    where activations are recomputed.
    """

    bytes_per_layer: int
    """Sent in one exchange of a micro-batch, to other ranks."""
    exchanges: int
    """Of a micro-batch and layer."""
    bytes_per_step: int
    seconds_per_step: float | None
    """At the fast link's full rate, none of it hidden behind computation."""


def step_seconds(job: Job, flops: float, mfu: float) -> float:
    """Seconds a step at a share of the accelerators' peak."""
    tokens = job.batch * job.seq_len
    return tokens * token_flops(job.model, job.vocab_size, job.seq_len).total / (job.ranks * flops * mfu)


def exchange(job: Job, cluster: Cluster | None) -> Exchange:
    """All-to-all bytes, with an even load of experts."""
    ep, model = job.train.expert_parallel, job.model
    tokens = job.train.micro_batch * job.seq_len
    width = 2 if job.train.precision == "bf16" else 4
    sent = tokens * model.num_experts_per_tok * model.hidden_size * width * (ep - 1) // ep
    exchanges = 6 if job.train.activation_checkpointing else 4
    layers = model.num_hidden_layers - model.first_k_dense_replace
    total = sent * exchanges * layers * job.micro_batches
    # A group that spans domains is as slow as its slowest link.
    link = None if cluster is None else cluster.link if cluster.domain % ep == 0 else cluster.network
    return Exchange(
        bytes_per_layer=sent,
        exchanges=exchanges,
        bytes_per_step=total,
        seconds_per_step=total / link if link else None,
    )


def reduced_bytes(job: Job) -> int:
    """Gradients that a rank sends a step to the ranks that hold the same parameters.

    ZeRO 1 sums them once a step, ZeRO 2 and 3 once a micro-batch.
    """
    size = model_size(job.model, job.vocab_size)
    experts, rest = size.experts // job.train.expert_parallel, size.total - size.experts
    replicas = job.ranks // job.train.expert_parallel
    width = 2 if job.train.precision == "bf16" else 4
    times = 1 if job.train.zero_stage == 1 else job.micro_batches
    return times * width * (experts * (replicas - 1) // replicas + rest * (job.ranks - 1) // job.ranks)


def checkpoint_bytes(job: Job) -> int:
    """Master weights, moments and routers' biases, over all ranks."""
    sparse = job.model.num_hidden_layers - job.model.first_k_dense_replace
    whole = optimizer_bytes(job.model, job.vocab_size, job.train, 1)
    return whole + 4 * sparse * job.model.n_routed_experts


def layout_problems(job: Job, cluster: Cluster | None) -> list[str]:
    """Why the ranks cannot share the work, each with what would help."""
    ep, experts, ranks = job.train.expert_parallel, job.model.n_routed_experts, job.ranks
    found = []
    if ranks % ep or experts % ep:
        fitting = [n for n in range(1, experts + 1) if experts % n == 0 and ranks % n == 0]
        what = (
            f"{ranks} ranks do not divide into groups of expert_parallel {ep} ({ranks % ep} would be left over)"
            if ranks % ep
            else f"{experts} experts do not divide among expert_parallel {ep} ranks"
        )
        near = [n for n in (ranks // ep * ep, -(-ranks // ep) * ep) if n]
        ranks_hint = f"ranks {' or '.join(str(n) for n in dict.fromkeys(near))}" if ranks % ep else ""
        ep_hint = f"expert_parallel {' or '.join(str(n) for n in fitting[-3:])}"
        found.append(f"{what}; possible: {', '.join(hint for hint in (ranks_hint, ep_hint) if hint)}")
    share = ranks * job.train.micro_batch
    if job.batch % share:
        most = max((n for n in range(1, job.batch // ranks + 1) if job.batch % (ranks * n) == 0), default=None)
        helps = f"micro_batch {most}" if most else f"a batch of {job.batch // share * share or share}"
        found.append(
            f"a batch of {job.batch:,} sequences is not a multiple of {ranks} ranks x micro_batch "
            f"{job.train.micro_batch}; possible: {helps}"
        )
    if cluster is not None and ranks % cluster.ranks_per_host:
        found.append(f"{ranks} ranks are not a multiple of {cluster.ranks_per_host} a host")
    return found


def layout_warnings(job: Job, cluster: Cluster | None) -> list[str]:
    """What works, but slowly."""
    if cluster is None or cluster.domain % job.train.expert_parallel == 0:
        return []
    return [
        f"groups of expert_parallel {job.train.expert_parallel} do not fit whole into the {cluster.domain} ranks that "
        "the fast link joins: their all-to-alls cross the network"
    ]


def memory_problem(job: Job, cluster: Cluster) -> str | None:
    """Why a rank's memory does not suffice, with the changes that would make it, or what comes nearest."""
    room = cluster.memory - cluster.reserve
    needed = job.footprint()
    claimed = cluster.peak_memory
    if needed.total <= room:
        if claimed is not None and needed.total > claimed:
            return (
                f"cluster.peak_memory claims at most {_gb(claimed)} a rank, but it needs {_gb(needed.total)}: "
                f"{_kinds(needed)}"
            )
        return None
    reserve = f" less {_gb(cluster.reserve)} reserved" if cluster.reserve else ""
    what = (
        f"a rank needs {_gb(needed.total)} ({_kinds(needed)}) of the {_gb(cluster.memory)} it has{reserve} "
        f"with {job.ranks} ranks and zero_stage {job.train.zero_stage}"
    )
    changed = [(name, changed.footprint().total) for name, changed in _knobs(job, cluster)]
    fitting = [f"{name} ({_gb(total)})" for name, total in changed if total <= room]
    if fitting:
        return f"{what}; any of these makes it fit: {', '.join(fitting)}"
    smaller = sorted((total, name) for name, total in changed if total < needed.total)[:3]
    if not smaller:
        return f"{what}; nothing in the recipe makes it smaller: take more ranks or a smaller model"
    return f"{what}; no single change makes it fit; most helps {', '.join(f'{n} ({_gb(t)})' for t, n in smaller)}"


def _knobs(job: Job, cluster: Cluster) -> list[tuple[str, Job]]:
    """Single changes that take memory off a rank, each possible as far as the layout goes."""
    train, model = job.train, job.model
    knobs: list[tuple[str, Job]] = []

    def change(
        name: str, allowed: Callable[[Train], bool] = lambda _: True, ranks: int = job.ranks, **to: object
    ) -> None:
        changed = train.model_copy(update=to)
        knob = Job(
            model=model, train=changed, vocab_size=job.vocab_size, seq_len=job.seq_len, batch=job.batch, ranks=ranks
        )
        if allowed(changed) and not layout_problems(knob, cluster):
            knobs.append((name, knob))

    for stage in range(train.zero_stage + 1, 4):
        if stage < 3 or train.optimizer.kind == "adamw":
            change(f"zero_stage {stage}", zero_stage=stage)
    if not train.activation_checkpointing:
        change("activation_checkpointing true", activation_checkpointing=True)
    for micro in (n for n in range(train.micro_batch - 1, 0, -1) if train.micro_batch % n == 0):
        change(f"micro_batch {micro}", micro_batch=micro)
    wider = [n for n in range(train.expert_parallel + 1, job.ranks + 1) if model.n_routed_experts % n == 0]
    for ep in wider[:8]:
        change(f"expert_parallel {ep}", expert_parallel=ep)
    for times in (2, 4, 8, 11, 16):
        change(f"ranks {job.ranks * times}", ranks=job.ranks * times)
    return knobs


def _kinds(needed: Footprint) -> str:
    names = ("weights", "gradients", "optimizer", "activations", "buffers")
    return ", ".join(f"{name} {_gb(getattr(needed, name))}" for name in names)


def _gb(amount: int) -> str:
    return f"{amount / 1e9:,.1f} GB" if amount >= 10**8 else f"{amount / 1e6:,.1f} MB"


def costs(job: Job, cluster: Cluster | None, mfu: float | None, steps: int, tokens: int) -> dict[str, Any]:
    """All figures of a run, as JSON values: parameters, FLOPs, memory, time, traffic, checkpoints.

    Args:
        job: what is trained.
        cluster: on what; without it there are no times.
        mfu: share of the peak in place of the cluster's.
        steps: of the run.
        tokens: of the run.
    """
    size, needed = model_size(job.model, job.vocab_size), job.footprint()
    flops = token_flops(job.model, job.vocab_size, job.seq_len)
    share = mfu or (cluster.mfu if cluster else None)
    time = None
    if cluster is not None and cluster.flops is not None and share is not None:
        seconds = step_seconds(job, cluster.flops, share)
        time = {
            "step_s": seconds,
            "mfu": share,
            "peak_flops": cluster.flops,
            "tokens_per_s": job.batch * job.seq_len / seconds,
            "days": steps * seconds / 86_400,
        }
    sent, reduced, saved = exchange(job, cluster), reduced_bytes(job), checkpoint_bytes(job)
    return {
        "ranks": job.ranks,
        "parameters": {
            "total": size.total,
            "active": size.active,
            "experts": size.experts,
            "embeddings": size.embeddings,
        },
        "flops": {
            "per_token": flops.total,
            # Larger than the integers of most JSON readers.
            "total": float(flops.total * tokens),
            "formula": flops_formula(job.model, job.vocab_size, job.seq_len, tokens),
        },
        "memory": {
            "kinds": asdict(needed),
            "total": needed.total,
            "available": cluster.memory - cluster.reserve if cluster else None,
        },
        "time": time,
        "traffic": {
            "all_to_all_bytes_per_layer": sent.bytes_per_layer,
            "exchanges": sent.exchanges,
            "all_to_all_bytes_per_step": sent.bytes_per_step,
            "all_to_all_s_per_step": sent.seconds_per_step,
            "gradient_bytes_per_step": reduced,
            "gradient_s_per_step": reduced / cluster.network if cluster and cluster.network else None,
        },
        "checkpoint": {
            "bytes": saved,
            "bytes_per_rank": saved // job.ranks,
            "write_s": saved / cluster.storage if cluster and cluster.storage else None,
        },
    }
