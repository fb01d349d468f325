"""The facts of a plan in words and units that people read."""

from collections.abc import Iterator
from typing import Any

Row = tuple[str, str]


def cost_rows(facts: dict[str, Any]) -> Iterator[Row]:
    """Rows of the table; ``facts`` is what ``plan --json`` prints under that name."""
    for name in ("steps", "sequences", "tokens"):
        yield name, f"{facts[name]:,}"
    if "parameters" not in facts:
        return
    parameters, memory = facts["parameters"], facts["memory"]
    yield "parameters", f"{parameters['total']:,}"
    yield "active parameters", f"{parameters['active']:,} without embedding and head ({parameters['embeddings']:,})"
    yield "training FLOPs", f"{facts['flops']['total']:.3e}"
    for number, term in enumerate(facts["flops"]["formula"]):
        yield "", f"{'+' if number else '='} {term}"
    yield "ranks", f"{facts['ranks']:,}"
    for kind, amount in memory["kinds"].items():
        yield f"memory per rank: {kind}", size_text(amount)
    room = f" of {size_text(memory['available'])}" if memory["available"] else ""
    yield "memory per rank: total", size_text(memory["total"]) + room
    if (time := facts["time"]) is not None:
        yield "step", f"{time['step_s']:,.2f} s at {time['mfu']:.1%} of {time['peak_flops']:.3e} FLOP/s a rank"
        yield "throughput", f"{time['tokens_per_s']:,.0f} tokens/s, {time['tokens_per_s'] / facts['ranks']:,.0f} a rank"
        length = f"{time['days']:,.1f} days" if time["days"] >= 2 else f"{24 * time['days']:,.1f} hours"
        yield "run", f"{length} without stops"
    traffic = facts["traffic"]
    if traffic["all_to_all_bytes_per_layer"]:
        yield (
            "all-to-all",
            f"{size_text(traffic['all_to_all_bytes_per_layer'])} a rank, layer and exchange of a micro-batch; "
            f"{traffic['exchanges']} exchanges, {size_text(traffic['all_to_all_bytes_per_step'])} a step"
            + _share(traffic["all_to_all_s_per_step"], facts["time"], "the link"),
        )
    if traffic["gradient_bytes_per_step"]:
        yield (
            "gradients sent",
            f"{size_text(traffic['gradient_bytes_per_step'])} a rank and step"
            + _share(traffic["gradient_s_per_step"], facts["time"], "the network"),
        )
    checkpoint = facts["checkpoint"]
    seconds = checkpoint["write_s"]
    written = "" if seconds is None else f", written in {seconds:,.0f} s"
    yield "checkpoint", f"{size_text(checkpoint['bytes'])}, {size_text(checkpoint['bytes_per_rank'])} a rank{written}"


def size_text(amount: float) -> str:
    """Bytes in powers of 1,000."""
    for unit, power in (("TB", 12), ("GB", 9), ("MB", 6), ("kB", 3)):
        if amount >= 10**power:
            return f"{amount / 10**power:,.2f} {unit}"
    return f"{amount:,.0f} bytes"


def _share(seconds: float | None, time: dict[str, Any] | None, of: str) -> str:
    if seconds is None:
        return ""
    share = f", {seconds / time['step_s']:.0%} of the step where nothing hides it" if time else ""
    return f": {seconds:,.2f} s of {of} at its full rate{share}"
