"""Forecasts of public loss curves that the fits have not seen.

Schedules: two curves a model size (cosine_24000, constant_24000) forecast seven others. Sizes: of OLMo's ladder, 190M
and 370M forecast 760M, then all three forecast 1B, for eight evaluations and five ratios of tokens to parameters. The
splits are fixed here. Prints tables, then one JSON object as its last line:

    schedule_err_pct    mean absolute error of final losses over schedules and model sizes, %
    next_size_err_pct   the same over evaluations, ratios and both origins, %
    coverage            share of all these final losses inside their 80% band

The curves (MultiPowerLaw, MIT; OLMo-ladder, Apache-2.0) are read from --curves; without that folder the same is done on
curves of the generator, and a field ``synthetic`` says so.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import polars as pl

from millstream.train.forecast.generator import generated_ladder, generated_schedules
from millstream.train.forecast.next_schedule import learn_schedules
from millstream.train.forecast.next_size import Ladder, forecast_size
from millstream.train.forecast.scaling import ASYMPTOTE, fit_chinchilla
from millstream.train.forecast.schedules import Curve, Rates

FITTED = ("cosine_24000", "constant_24000")
FORECAST = (
    "constant_72000",
    "cosine_72000",
    "wsd_20000_24000",
    "wsdld_20000_24000",
    "wsdcon_3",
    "wsdcon_9",
    "wsdcon_18",
)
MODELS = ("25M", "100M")
WARMUP, PEAK = 2160, 3e-4
SIZES = ("190M", "370M", "760M", "1B")
RATIOS = ("0.5xC", "1xC", "2xC", "5xC", "10xC")
RERUN = "1xC-rerun"
EVALUATIONS = (
    "c4_en",
    "dolma_common-crawl",
    "dolma_pes2o",
    "dolma_reddit",
    "dolma_stack",
    "dolma_wiki",
    "pile",
    "wikitext_103",
)
BARS = {"schedule_err_pct": "<= 0.5", "next_size_err_pct": "<= 1.5", "coverage": "0.7 to 0.9"}


def schedule_curve(path: Path) -> Curve:
    """A curve with its schedule: a linear warm-up to the peak, then the rates that were logged."""
    table = pl.read_csv(path)
    steps, rate = table["step"].to_numpy().astype(float), table["lr"].to_numpy()
    warm = np.arange(0, WARMUP, 240, dtype=float)
    rates = Rates(np.concatenate((warm, steps)), np.concatenate((warm / WARMUP * PEAK, rate)))
    return Curve(rates, steps, table["loss"].to_numpy())


def olmo_ladder(folder: Path) -> Ladder:
    """Final losses of every run. Active parameters are the tokens of the 1xC run over 20, by what 1xC means."""
    size, group, losses = [], [], []
    for name in SIZES:
        runs = {ratio: pl.read_csv(folder / f"{name}-{ratio}.csv").tail(1) for ratio in (*RATIOS, RERUN)}
        active = float(runs["1xC"]["throughput/total_tokens"][0]) / 20
        for ratio, run in runs.items():
            size.append(active)
            group.append(RATIOS.index(ratio.removesuffix("-rerun")))
            losses.append(run.select(EVALUATIONS).row(0))
    return Ladder(size=np.array(size), group=np.array(group), losses=np.array(losses))


def schedules(curves: dict[str, dict[str, Curve]]) -> tuple[list[float], list[bool]]:
    """Final errors in percent, and whether each lies inside its band."""
    errors, inside = [], []
    heads = ("final", "forecast", "error %", "band %", "curve: mean error %")
    print("{:<6} {:<18} {:>7} {:>9} {:>8} {:>7} {:>20}".format("model", "schedule", *heads))
    for model, own in curves.items():
        known = learn_schedules([own[name] for name in FITTED])
        for name in FORECAST:
            curve = own[name]
            value, half = known.forecast(curve.rates, curve.steps)
            error = (value / curve.loss - 1) * 100
            errors.append(float(error[-1]))
            inside.append(bool(abs(value[-1] - curve.loss[-1]) <= half[-1]))
            print(
                f"{model:<6} {name:<18} {curve.loss[-1]:>7.3f} {value[-1]:>9.3f} {error[-1]:>+8.2f} "
                f"{half[-1] / value[-1] * 100:>7.2f} {np.abs(error).mean():>20.2f}"
            )
    return errors, inside


def next_sizes(ladder: Ladder) -> tuple[list[float], list[bool], list[float]]:
    """Errors in percent, whether inside, and the errors of Chinchilla's form with the same E beside them."""
    errors, inside, chinchilla = [], [], []
    heads = ("mean |error| %", "worst %", "band %", "inside", "Chinchilla: mean |error| %")
    print("{:<6} {:<6} {:>15} {:>8} {:>7} {:>7} {:>27}".format("target", "ratio", *heads))
    for number, size in enumerate(ladder.sizes[2:], 2):
        known = ladder.below(size)
        tokens = known.size * np.array([float(r.removesuffix("xC")) for r in RATIOS])[known.group] * 20
        joint = [fit_chinchilla(known.size, tokens, loss, ASYMPTOTE * loss.min()) for loss in known.losses.T]
        for group, ratio in enumerate(RATIOS):
            made = forecast_size(known, size, group)
            found = ladder.losses[(ladder.size == size) & (ladder.group == group)]
            error = (made.value / found - 1) * 100
            hit = np.abs(made.value - found) <= made.half
            target = np.array([size * float(ratio.removesuffix("xC")) * 20])
            other = np.array([law.predict(np.array([size]), target)[0] for law in joint])
            errors += error.ravel().tolist()
            inside += hit.ravel().tolist()
            chinchilla += ((other / found - 1) * 100).ravel().tolist()
            print(
                f"{SIZES[number]:<6} {ratio:<6} {np.abs(error).mean():>15.2f} "
                f"{error.flat[np.abs(error).argmax()]:>+8.2f} "
                f"{(made.half / made.value).mean() * 100:>7.2f} {f'{hit.sum()}/{hit.size}':>7} "
                f"{np.abs(other / found - 1).mean() * 100:>27.2f}"
            )
    return errors, inside, chinchilla


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--curves", type=Path, default=Path("../shared/curves"), help="folder of the public curves")
    given = parser.parse_args()
    real = (given.curves / "schedules").is_dir()
    if real:
        folder = given.curves / "schedules"
        curves = {m: {n: schedule_curve(folder / f"{m}-{n}.csv") for n in (*FITTED, *FORECAST)} for m in MODELS}
        ladder = olmo_ladder(given.curves / "olmo-ladder")
    else:
        print(f"{given.curves}: no public curves there; generated ones instead", file=sys.stderr)
        curves = {m: generated_schedules((*FITTED, *FORECAST), seed) for seed, m in enumerate(MODELS)}
        ladder = generated_ladder(RATIOS, len(EVALUATIONS))
    errors, inside = schedules(curves)
    print()
    further, hit, chinchilla = next_sizes(ladder)
    print(
        f"\nschedules: {np.abs(errors).mean():.2f}% off, {sum(inside)} of {len(inside)} inside; sizes: "
        f"{np.abs(further).mean():.2f}% off (Chinchilla's form, the same E: {np.abs(chinchilla).mean():.2f}%), "
        f"{sum(hit)} of {len(hit)} inside"
    )
    figures: dict[str, float | bool] = {
        "schedule_err_pct": round(float(np.abs(errors).mean()), 3),
        "next_size_err_pct": round(float(np.abs(further).mean()), 3),
        "coverage": round((sum(inside) + sum(hit)) / (len(inside) + len(hit)), 3),
    }
    for name, bar in BARS.items():
        print(f"{name:<20} {figures[name]:>6}   {bar}", file=sys.stderr)
    print(json.dumps(figures if real else figures | {"synthetic": True}))


if __name__ == "__main__":
    main()
