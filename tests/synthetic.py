"""Small hand-made plans, so that plan and stream are tested without a build."""

from decimal import Decimal
from fractions import Fraction

from millstream.stream.plan import Phase, Plan
from millstream.stream.quota import quotas
from millstream.stream.ring import Ring


def make_plan(
    tokens: dict[str, int],
    phases: list[tuple[int, dict[str, str], int]],
    *,
    seq_len: int,
    batch: int,
    seed: int = 0,
    exact: dict[str, int] | None = None,
) -> Plan:
    """A plan from (end, weights, window) phases with one batch size."""
    built: list[Phase] = []
    cursors = dict.fromkeys(tokens, 0)
    for number, (end, weights, window) in enumerate(phases):
        phase = Phase(
            number=number,
            name=f"phase{number}",
            first=built[-1].end if built else 0,
            end=end,
            window=window,
            batch=batch,
            weights=weights,
            quotas=quotas({name: Decimal(text) for name, text in weights.items()}),
            exact=exact or {},
            cursors=dict(cursors),
        )
        cursors = {name: cursors[name] + phase.taken(name) for name in tokens}
        built.append(phase)
    return Plan(
        mixture_digest="0" * 64,
        seed=seed,
        seq_len=seq_len,
        rings=tuple(Ring(name=n, tokens=t, documents=1, corpus_id="1" * 64, limited=False) for n, t in tokens.items()),
        phases=tuple(built),
    )


def share(phase: Phase, domain: str) -> Fraction:
    """A weighted domain's exact share of a phase."""
    return Fraction(phase.quotas[domain], 1 << 28)
