"""Freezing a plan: a recipe's mixture and a corpus's token counts become phases by absolute index.

Everything that would make the mixture impossible is found here, before anything is spent, and the
message says which numbers would make it possible.
"""

import math
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import polars as pl

from millstream.canonical import digest
from millstream.errors import RecipeError, UsageError
from millstream.mixture.recipe import ExactSequences, Mixture
from millstream.mixture.recipe import Phase as RecipePhase
from millstream.stream import quota
from millstream.stream.plan import Phase, Plan
from millstream.stream.ring import Ring
from millstream.stream.roots import Root, whole_file
from millstream.stream.steps import BatchSchedule, unbroken
from millstream.tokenize.manifest import DomainManifest, Manifest

DEFAULT_SHARES = (Fraction(4, 5), Fraction(1, 5))


def freeze_plan(mixture: Mixture, manifest: Manifest, corpus_root: Root) -> Plan:
    """Turn a mixture over a built corpus into a plan.

    Raises:
        RecipeError: the mixture is impossible over this corpus, or a phase would begin inside a
            window; the message names the domain or step and the nearest possible values.
    """
    corpus_id = manifest.corpus_id
    used = {name for phase in mixture.phases for name, weight in phase.weights.items() if weight != 0}
    # Domains without weight have a ring too, so that an amendment can bring them in.
    rings = tuple(_ring(domain, corpus_id, mixture.limits.get(domain.name), corpus_root) for domain in manifest.domains)
    for ring in rings:
        if ring.name in used and ring.tokens < mixture.seq_len:
            limited = f" (limit of {mixture.limits[ring.name]})" if ring.limited else ""
            raise RecipeError(
                f"domain '{ring.name}' has {ring.tokens} tokens{limited}, fewer than one sequence of "
                f"{mixture.seq_len}; add documents, shorten seq_len or give it no weight"
            )
    schedule = unbroken(mixture.schedule)
    steps = mixture.steps or schedule.steps_within((mixture.tokens or 0) // mixture.seq_len)
    if steps < len(mixture.phases):
        raise RecipeError(
            f"mixture: {steps} steps are too few for {len(mixture.phases)} phases; "
            f"one step is {schedule.batch(1) * mixture.seq_len} tokens"
        )
    borders = phase_borders(mixture, schedule, steps)
    plan = Plan(
        mixture_digest=digest(mixture.model_dump(mode="json", exclude_none=True)),
        seed=mixture.seed,
        seq_len=mixture.seq_len,
        rings=rings,
        phases=_phases(mixture, schedule, borders, tuple(ring.name for ring in rings)),
    )
    check_epochs(plan, mixture.max_epochs)
    return plan


def phase_borders(mixture: Mixture, schedule: BatchSchedule, steps: int) -> list[int]:
    """Global indices at which the recipe's phases end, each a step border and a window border.

    A border lies as near as possible to the phases' cumulative share of all sequences (ties go
    down), at least one step after the border before it and one step before the end.
    """
    total = schedule.span(steps)[1]
    borders: list[int] = []
    reached = Fraction(0)
    for number, share in enumerate(_shares(mixture.phases)[:-1]):
        reached += share
        first = borders[-1] if borders else 0
        later = len(mixture.phases) - number - 1
        allowed = _allowed_borders(mixture.phases[number], schedule, first, total, reached * total)
        allowed = [at for at in allowed if at > first and schedule.steps_within(at) <= steps - later]
        if not allowed:
            raise RecipeError(
                f"mixture.phases[{number}] '{mixture.phases[number].name}': no step border is a border of its "
                f"window of {mixture.phases[number].window} sequences; choose a window that divides the batch or is a "
                "multiple of it"
            )
        borders.append(min(allowed, key=lambda at: (abs(at - reached * total), at)))
    return [*borders, total]


def next_border(phase: Phase, step: int, schedule: BatchSchedule) -> int:
    """The first step, from ``step`` on, at which a new phase may follow ``phase``."""
    stride = math.lcm(phase.window, phase.batch)
    into = max(schedule.span(step)[0] - phase.first, 0)
    return schedule.steps_within(phase.first + -(-into // stride) * stride) + 1


def _ring(domain: DomainManifest, corpus_id: str, limit: int | None, root: Root) -> Ring:
    tokens, documents = domain.tokens, domain.documents
    limited = limit is not None and limit < tokens
    if limited and limit is not None:
        tokens, documents = _longest_prefix(domain, limit, root)
    return Ring(name=domain.name, tokens=tokens, documents=documents, corpus_id=corpus_id, limited=limited)


def _longest_prefix(domain: DomainManifest, limit: int, root: Root) -> tuple[int, int]:
    """Tokens and number of the first whole documents that hold at most ``limit`` tokens."""
    tokens, documents = 0, 0
    for shard in domain.shards:
        if shard.token_start + shard.tokens <= limit:
            tokens, documents = shard.token_start + shard.tokens, documents + shard.document_count
            continue
        ends = pl.scan_parquet(whole_file(root, shard.documents)).select(end=pl.col("token_start") + pl.col("n_tokens"))
        inside = ends.filter(pl.col("end") <= limit).select(pl.col("end").max(), pl.len().alias("n")).collect()
        end, count = inside.row(0)
        return (end, documents + count) if count else (tokens, documents)
    return tokens, documents


def _shares(phases: tuple[RecipePhase, ...]) -> list[Fraction]:
    given = [Fraction(p.share) if p.share is not None else None for p in phases]
    if given == [None, None]:
        return list(DEFAULT_SHARES)
    free = given.count(None)
    rest = 1 - sum((share for share in given if share is not None), Fraction(0))
    return [share if share is not None else rest / free for share in given]


def _allowed_borders(
    phase: RecipePhase, schedule: BatchSchedule, first: int, total: int, target: Fraction
) -> list[int]:
    """Step borders on a window border, of each stretch of one batch, next to the target."""
    found: list[int] = []
    ends = [*(entry[2] for entry in schedule.entries[1:]), total]
    for (_, batch, start), end in zip(schedule.entries, ends, strict=True):
        start, end = max(start, first), min(end, total)
        if start >= end:
            continue
        stride = math.lcm(phase.window or batch, batch)
        below = min(max(int(target) - start, 0), end - start) // stride
        found += [start + n * stride for n in range(below - 1, below + 3) if n >= 0 and start + n * stride <= end]
    return found


def _phases(
    mixture: Mixture, schedule: BatchSchedule, borders: list[int], domains: tuple[str, ...]
) -> tuple[Phase, ...]:
    """Recipe phases, cut again wherever the batch changes; cursors carried from each to the next."""
    built: list[Phase] = []
    cursors = dict.fromkeys(domains, 0)
    changes = [entry[2] for entry in schedule.entries[1:]]
    for number, (recipe, end) in enumerate(zip(mixture.phases, borders, strict=True)):
        first = borders[number - 1] if number else 0
        cuts = [first, *(at for at in changes if first < at < end), end]
        for piece_first, piece_end in pairwise(cuts):
            step = schedule.steps_within(piece_first) + 1
            batch = schedule.batch(step)
            window = recipe.window or batch
            where = f"mixture.phases[{number}] '{recipe.name}'"
            if piece_end != borders[-1] and (piece_end - piece_first) % window:
                stride = math.lcm(window, batch)
                after = step + -(-(piece_end - piece_first) // stride) * stride // batch
                raise RecipeError(
                    f"{where}: the batch changes at step {schedule.steps_within(piece_end) + 1}, inside a window of "
                    f"{window} sequences; the next allowed step is {after}"
                )
            phase = _phase(len(built), recipe, where, piece_first, piece_end, window, batch, cursors)
            cursors = {name: cursors[name] + phase.taken(name) for name in domains}
            built.append(phase)
    return tuple(built)


def _phase(
    number: int,
    recipe: RecipePhase,
    where: str,
    first: int,
    end: int,
    window: int,
    batch: int,
    cursors: dict[str, int],
) -> Phase:
    weights = {name: w for name, w in recipe.weights.items() if isinstance(w, Decimal)}
    exact = {name: w.sequences for name, w in recipe.weights.items() if isinstance(w, ExactSequences)}
    try:
        phase = Phase(
            number=number,
            name=recipe.name,
            first=first,
            end=end,
            window=window,
            batch=batch,
            weights={
                n: f"={w.sequences}" if isinstance(w, ExactSequences) else f"{w:f}" for n, w in recipe.weights.items()
            },
            quotas=quota.quotas(weights),
            exact=exact,
            cursors=dict(cursors),
        )
        empty = [name for name in phase.quotas if phase.taken(name) == 0]
    except UsageError as error:
        raise RecipeError(f"{where}: {error}") from error
    if empty:
        share = Fraction(phase.quotas[empty[0]], quota.TOTAL)
        raise RecipeError(
            f"{where}: domain '{empty[0]}' gets no sequence: its share {float(share):.3g} of {phase.length} sequences "
            f"is below a half; use a share of at least {float(Fraction(1, phase.length)):.2g} or 'sequences: 1'"
        )
    return phase


def check_epochs(plan: Plan, max_epochs: Decimal) -> None:
    """Refuse a plan that repeats a domain too often.

    Raises:
        RecipeError: names the domain, and the weights, tokens or limit that would do.
    """
    for ring in plan.rings:
        later = plan.pieces(ring.name)[plan.pieces(ring.name).index(ring) + 1 :]
        end = min([plan.consumed(ring.name), *(r.running for r in later)])
        consumed, per_epoch = end - ring.running, ring.tokens // plan.seq_len
        if not consumed or consumed <= max_epochs * per_epoch:
            continue
        most = int(max_epochs * per_epoch)
        hints = []
        for phase in plan.phases:
            if ring.name in phase.quotas and len(phase.quotas) > 1:
                share = Fraction(phase.quotas[ring.name], quota.TOTAL) * most / consumed
                others = 1 - Fraction(phase.quotas[ring.name], quota.TOTAL)
                written = Fraction(phase.weights[ring.name]) / Fraction(phase.quotas[ring.name], quota.TOTAL)
                hints.append(f"{float(share * others / (1 - share) * written):.3g} in '{phase.name}'")
        lower = f"lower its weight to at most {', '.join(hints)}; or " if hints else ""
        raise RecipeError(
            f"domain '{ring.name}' would be repeated {consumed / per_epoch:.2f} times ({consumed} sequences of "
            f"{per_epoch} an epoch), more than max_epochs {max_epochs}: {lower}train on at most "
            f"{plan.total_sequences * most // consumed * plan.seq_len} tokens; or set max_epochs to "
            f"{math.ceil(100 * consumed / per_epoch) / 100}"
        )
