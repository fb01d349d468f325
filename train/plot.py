"""Pictures of a run: its loss, in all and per domain, and what was mixed."""

from pathlib import Path

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from millstream.files import replacing
from millstream.stream.plan import Plan
from millstream.train.metrics import current, read_metrics


def plot_run(run_dir: Path, plan: Plan, title: str) -> Path:
    """Draw ``loss.png`` into the run's folder: loss by step above, realised mixture below, phases marked."""
    metrics = current(read_metrics(run_dir))
    figure = Figure(figsize=(10, 7.5), dpi=120, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    palette = [f"C{n}" for n in range(10)]
    colours = {name: palette[n % 10] for n, name in enumerate(plan.domains)}
    _losses(upper, metrics, colours)
    _mixture(lower, metrics, plan, colours)
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        for phase in plan.phases[1:]:
            axes.axvline(plan.batches.steps_within(phase.first) + 0.5, color="0.4", lw=1, ls="--")
    for phase in plan.phases:
        middle = (phase.first + phase.end) // 2
        at = plan.batches.steps_within(middle)
        upper.annotate(phase.name, (at, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", color="0.4")
    figure.suptitle(title, ha="left", x=0.01, fontweight="bold")
    path = run_dir / "loss.png"
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
    return path


def _losses(axes: Axes, metrics: pl.DataFrame, colours: dict[str, str]) -> None:
    losses = metrics.filter(pl.col("name") == "loss")
    for name, colour in colours.items():
        own = losses.filter(pl.col("domain") == name)
        if len(own):
            smooth = own["value"].ewm_mean(half_life=5)
            axes.plot(own["step"], smooth, color=colour, lw=1.1, label=name)
    whole = losses.filter(pl.col("domain").is_null())
    axes.plot(whole["step"], whole["value"], color="0.75", lw=0.8, zorder=1)
    axes.plot(whole["step"], whole["value"].ewm_mean(half_life=5), color="black", lw=1.8, label="all")
    held_out = metrics.filter((pl.col("name") == "loss_held_out") & pl.col("domain").is_null())
    if len(held_out):
        axes.plot(held_out["step"], held_out["value"], "o", color="black", mfc="white", ms=5, label="held out")
    axes.set_ylabel("loss (nats a token)")
    axes.grid(axis="y", color="0.9")
    axes.legend(frameon=False, ncols=4, fontsize=9)


def _mixture(axes: Axes, metrics: pl.DataFrame, plan: Plan, colours: dict[str, str]) -> None:
    counts = metrics.filter(pl.col("name") == "sequences").pivot("domain", index="step", values="value").fill_null(0)
    present = [name for name in plan.domains if name in counts.columns]
    total = counts.select(pl.sum_horizontal(present)).to_series()
    shares = [(counts[name] / total * 100).to_list() for name in present]
    axes.stackplot(
        counts["step"].to_list(), shares, colors=[colours[n] for n in present], labels=present, step="mid", lw=0
    )
    axes.set_ylabel("sequences (%)")
    axes.set_xlabel("step")
    axes.set_ylim(0, 100)
