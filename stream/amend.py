"""Changing a plan in mid-run: other weights, another batch, skipped steps, new data, takedowns.

Whatever is changed, all that lies before the step from which it holds stays as it was, and the cursors of
all domains are carried on, so that no document is repeated before its domain is used up. Phases end at the
global indices at which they would have ended, so the budget of tokens stays; what changes is the number of
steps: fewer after a skip, others with another batch.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from millstream.errors import UsageError
from millstream.mixture.units import decimal_text, parse_count, parse_decimal
from millstream.stream import quota
from millstream.stream.plan import Phase, Plan, Tombstone
from millstream.stream.quota import build_tree
from millstream.stream.quota import quotas as to_quotas
from millstream.stream.ring import Ring


@dataclass(frozen=True, kw_only=True, slots=True)
class NewData:
    """A domain as it lies in another corpus: a new domain, or what an old one goes on with after its epoch."""

    domain: str
    corpus_id: str
    tokens: int
    documents: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Tokens ``[start, end)`` of a domain in a corpus."""

    domain: str
    corpus_id: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Amendment:
    """What changes from ``from_step`` on: the first step that is affected.

    ``weights``, written as in ``Phase.weights`` (decimals, or ``=N`` for exactly N sequences), hold to the end of
    the phase; ``batch`` to the end of the run. ``skip`` steps' worth of sequences are passed over before
    ``from_step`` is fed: consumed, but no exposures. ``takedowns`` are not fed any more.
    """

    from_step: int
    weights: Mapping[str, str] | None = None
    batch: int | None = None
    skip: int = 0
    data: tuple[NewData, ...] = ()
    takedowns: tuple[Span, ...] = ()


def amendment_to_json(amendment: Amendment) -> dict[str, Any]:
    """The amendment as JSON values; what it leaves alone is left out."""
    values = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(amendment).items()}
    return {name: value for name, value in values.items() if value}


def amendment_from_json(raw: Mapping[str, Any]) -> Amendment:
    """The amendment that ``amendment_to_json`` wrote."""
    data = tuple(NewData(**entry) for entry in raw.get("data", ()))
    takedowns = tuple(Span(**entry) for entry in raw.get("takedowns", ()))
    return Amendment(**{**raw, "data": data, "takedowns": takedowns})


def amend(plan: Plan, amendment: Amendment) -> Plan:
    """The plan as it is after an amendment.

    Raises:
        UsageError: a change cannot begin at this step (the next allowed one is named), comes before an earlier
            amendment's step, names what the plan does not have, or leaves nothing to train on.
    """
    step = amendment.from_step
    plan.span(step)
    if plan.amendments and step < (newest := int(plan.amendments[-1]["from_step"])):
        raise UsageError(f"the plan was amended from step {newest} on; a further amendment cannot begin at step {step}")
    if not amendment_to_json(amendment).keys() - {"from_step"}:
        raise UsageError("the amendment changes nothing")
    amended = _skipped(plan, step, amendment.skip)
    if amendment.weights is not None or amendment.batch is not None or amendment.data:
        start = _allowed_start(plan, step, amendment.skip)
        for new in amendment.data:
            amended = _with_data(amended, new, start)
        if amendment.weights is not None or amendment.batch is not None:
            amended = _with_phases(amended, start, amendment.weights, amendment.batch)
    amended = _with_tombstones(amended, amendment)
    return replace(amended, amendments=(*plan.amendments, amendment_to_json(amendment)))


def _skipped(plan: Plan, step: int, count: int) -> Plan:
    if count == 0:
        return plan
    first, end = plan.span(step)
    phase = plan.phase_of_step(step)
    left = (phase.end - first) // (end - first)
    if not 0 < count < left:
        raise UsageError(
            f"{count} steps cannot be skipped from step {step} on: phase '{phase.name}' has {left} left, "
            "and one must stay"
        )
    skipped = (first, first + count * (end - first))
    if plan.skips and plan.skips[-1][1] == first:
        return replace(plan, skips=(*plan.skips[:-1], (plan.skips[-1][0], skipped[1])))
    return replace(plan, skips=(*plan.skips, skipped))


def _allowed_start(plan: Plan, step: int, skip: int) -> int:
    """Global index at which a change that begins at ``step`` finds the plan.

    Raises:
        UsageError: it lies inside a window; a cut there would change what was already consumed.
    """
    phase = plan.phase_of_step(step)
    first, end = plan.span(step)
    batch = end - first
    start = first + skip * batch
    stride = math.lcm(phase.window, batch)
    if into := (start - phase.first) % phase.window:
        ahead = next(n for n in range(1, stride // batch + 1) if (into + n * batch) % phase.window == 0)
        if start + ahead * batch >= phase.end:
            after = f"'{phase.name}' ends before the next one, at step {plan.batches.steps_within(phase.end)}"
        else:
            after = f"the next allowed step is {step + ahead}"
        raise UsageError(f"a change cannot begin at step {step}, inside a window of {phase.window} sequences; {after}")
    return start


def _with_data(plan: Plan, new: NewData, start: int) -> Plan:
    """The plan with a further ring: a new domain, or a piece that follows at the next end of an epoch."""
    begins, epoch = 0, 0
    rings = list(plan.rings)
    place = len(rings)
    if new.domain in plan.domains:
        old = plan.pieces(new.domain)[-1]
        place = rings.index(old) + 1
        per_epoch = old.tokens // plan.seq_len
        consumed = _cursor(plan, new.domain, start)
        whole = -(-(consumed - old.running) // per_epoch) if consumed > old.running else 0
        begins, epoch = old.running + whole * per_epoch, old.epoch + whole
        if whole == 0:
            # Nothing of it was used, so nothing of it will be.
            place -= 1
            del rings[place]
    if new.tokens < plan.seq_len:
        raise UsageError(
            f"domain '{new.domain}' of corpus {new.corpus_id[:16]} has {new.tokens} tokens, fewer than one sequence of "
            f"{plan.seq_len}"
        )
    ring = Ring(
        name=new.domain,
        tokens=new.tokens,
        documents=new.documents,
        corpus_id=new.corpus_id,
        limited=False,
        running=begins,
        epoch=epoch,
    )
    return replace(plan, rings=(*rings[:place], ring, *rings[place:]))


def _cursor(plan: Plan, domain: str, start: int) -> int:
    """Sequences of a domain consumed before a window border."""
    phase = next(p for p in plan.phases if p.first <= start < p.end)
    return phase.cursors.get(domain, 0) + quota.count(phase.tree, domain, start - phase.first)


def _with_phases(plan: Plan, start: int, weights: Mapping[str, str] | None, batch: int | None) -> Plan:
    """The plan whose phase at ``start`` is cut there and goes on otherwise; later ones keep their lengths."""
    if weights is not None and (unknown := sorted(set(weights) - set(plan.domains))):
        raise UsageError(f"the plan has no domain '{unknown[0]}'; it has {', '.join(plan.domains)}")
    current = next(p for p in plan.phases if p.first <= start < p.end)
    kept = [p for p in plan.phases if p.end <= start]
    if start > current.first:
        # The cut phase keeps its shuffle and tree; exact numbers would not come out, so they bar the cut.
        if current.exact:
            raise UsageError(f"phase '{current.name}' has domains with exact sequences and cannot be cut short")
        kept.append(replace(current, end=start))
    first = start
    cursors = {name: _cursor(plan, name, start) for name in plan.domains}
    goes_on = True
    for old in [p for p in plan.phases if p.end > start]:
        # A recipe's phase may be several, one a batch size; the weights hold for all that are left of it.
        goes_on = goes_on and old.name == current.name
        phase = _phase(old, len(kept), first, old.end - max(old.first, start), cursors, batch)
        phase = _weighted(phase, weights) if goes_on and weights is not None else phase
        _check_domains(plan, phase)
        kept.append(phase)
        first = phase.end
        cursors = {name: cursors[name] + phase.taken(name) for name in plan.domains}
    return replace(plan, phases=tuple(kept))


def _phase(old: Phase, number: int, first: int, length: int, cursors: dict[str, int], batch: int | None) -> Phase:
    """A phase from ``first`` on, as long as it was; with another batch, as many whole windows as go into that."""
    window = old.window
    if batch is not None:
        if batch < 1:
            raise UsageError(f"a batch holds at least one sequence, not {batch}")
        # A window of its own choice stays; one that was the batch goes with it.
        window = batch if old.window == old.batch else old.window
        stride = math.lcm(window, batch)
        length = length // stride * stride
        if not length:
            raise UsageError(
                f"phase '{old.name}' has too few sequences left for a step of {batch} in windows of {window}"
            )
    return replace(
        old,
        number=number,
        first=first,
        end=first + length,
        window=window,
        batch=batch or old.batch,
        cursors=dict(cursors),
    )


def _weighted(phase: Phase, weights: Mapping[str, str]) -> Phase:
    exact = {name: parse_count(text[1:]) for name, text in weights.items() if text.startswith("=")}
    shares = {name: parse_decimal(text) for name, text in weights.items() if name not in exact}
    written = {n: f"={exact[n]}" if n in exact else decimal_text(shares[n]) for n in weights}
    return replace(phase, weights=written, quotas=to_quotas(shares), exact=exact)


def _check_domains(plan: Plan, phase: Phase) -> None:
    """Refuse a phase in which a domain with weight would get nothing, or has no whole sequence."""
    tree = build_tree(phase.quotas, phase.exact, phase.length)
    for name in tree.domains:
        if not quota.count(tree, name, phase.length):
            raise UsageError(f"domain '{name}' gets none of the phase's {phase.length} sequences; raise its weight")
        if (tokens := plan.pieces(name)[-1].tokens) < plan.seq_len:
            raise UsageError(f"domain '{name}' has {tokens} tokens, fewer than one sequence of {plan.seq_len}")


def _with_tombstones(plan: Plan, amendment: Amendment) -> Plan:
    """The plan with spans taken down; what was taken down before keeps its earlier step."""
    stones = list(plan.tombstones)
    for span in amendment.takedowns:
        rings = [r for r in plan.rings if (r.name, r.corpus_id) == (span.domain, span.corpus_id)]
        if not rings:
            raise UsageError(f"the plan has no domain '{span.domain}' of corpus {span.corpus_id[:16]}")
        if not 0 <= span.start < span.end:
            raise UsageError(f"tokens {span.start} to {span.end} of domain '{span.domain}' are no span")
        start = span.start
        gone = [s for s in stones if (s.domain, s.corpus_id) == (span.domain, span.corpus_id)]
        for old in sorted(gone, key=lambda stone: stone.start):
            if old.end <= start or old.start >= span.end:
                continue
            if start < old.start:
                stones.append(_stone(span, start, old.start, amendment.from_step))
            start = max(start, old.end)
        if start < span.end:
            stones.append(_stone(span, start, span.end, amendment.from_step))
    return replace(plan, tombstones=tuple(stones))


def _stone(span: Span, start: int, end: int, from_step: int) -> Tombstone:
    return Tombstone(domain=span.domain, corpus_id=span.corpus_id, start=start, end=end, from_step=from_step)
