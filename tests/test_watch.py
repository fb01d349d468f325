"""Watching: each detector speaks of what it is named for, and of nothing in a run that is well."""

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fed_runs import DOMAINS, feed, start
from test_cli import fails, run

from millstream.audit.alerts import alerts_of, raise_alerts, take_alerts
from millstream.audit.corpora import open_corpora
from millstream.audit.ledger import being_written, check_chain, open_ledger
from millstream.audit.runs import Run, open_run
from millstream.train.metrics import MetricsWriter, Value
from millstream.train.schedule import rates_at
from millstream.train.watch.alarms import Alarm, Settings
from millstream.train.watch.detectors import STATISTICAL
from millstream.train.watch.readings import Readings
from millstream.train.watch.statistics import cusum, ema_z, in_a_row, median_before, off_level, off_trend
from millstream.train.watch.watching import Watch, alarms_of, alert_body, idle

STEPS, TOTAL, FAULT = 300, 400, 200


def healthy(seed: int = 0) -> Readings:
    """Numbers of a run that is well: falling losses with noise that goes on from step to step, as batches have it."""
    rng = np.random.default_rng(seed)
    steps = np.arange(1, STEPS + 1)
    columns: dict[tuple[str, str | None], Any] = {}
    for place, name in enumerate(DOMAINS):
        noise = 0.05 * rng.standard_normal(STEPS)
        columns["loss", name] = 3 + place + 4 * (steps + 5.0) ** -0.4 + noise
        columns["sequences", name] = rng.poisson(6, STEPS) + 1.0
    weights = np.stack([columns["sequences", n] for n in DOMAINS])
    losses = np.stack([columns["loss", n] for n in DOMAINS])
    columns["loss", None] = (weights * losses).sum(0) / weights.sum(0)
    columns["grad_norm", None] = np.exp(0.1 * rng.standard_normal(STEPS)) * (1 + 5 / steps)
    columns["expert_load_max", None] = 1.5 + 0.1 * rng.standard_normal(STEPS)
    columns["expert_load_min", None] = 0.5 + 0.05 * rng.standard_normal(STEPS)
    columns["router_bias_max", None] = 0.0002 * steps
    columns["step_s", None] = 1 + 0.1 * rng.random(STEPS)
    columns["loading_s", None] = 0.01 * rng.random(STEPS)
    columns["tokens_per_s", None] = 1e4 / columns["step_s", None]
    return Readings(steps, columns, {k: np.isfinite(v) for k, v in columns.items()}, TOTAL)


def found(readings: Readings) -> list[Alarm]:
    return [alarm for detect in STATISTICAL for alarm in detect(readings, Settings())]


def test_a_healthy_run_raises_nothing() -> None:
    for seed in range(20):
        assert found(healthy(seed)) == [], seed


def _spike(r: Readings) -> None:
    for name in (None, *DOMAINS):
        r.columns["loss", name][FAULT : FAULT + 3] += 1.0


def _one_domain(r: Readings) -> None:
    r.columns["loss", "news"][FAULT:] += 2.0


def _drift(r: Readings) -> None:
    for name in (None, *DOMAINS):
        r.columns["loss", name][FAULT:] += 0.008 * np.arange(STEPS - FAULT)


def _gradient(r: Readings) -> None:
    r.columns["grad_norm", None][FAULT : FAULT + 2] *= 50


def _dead(r: Readings) -> None:
    r.columns["expert_load_min", None][FAULT:] = 0


def _crowded(r: Readings) -> None:
    r.columns["expert_load_max", None][FAULT:] = 12


def _biased(r: Readings) -> None:
    r.columns["router_bias_max", None][FAULT:] += 0.6


def _waiting(r: Readings) -> None:
    r.columns["loading_s", None][FAULT:] += 2
    r.columns["step_s", None][FAULT:] += 2


def _slow(r: Readings) -> None:
    r.columns["tokens_per_s", None][FAULT:] /= 10


def _no_number(r: Readings) -> None:
    r.columns["grad_norm", None][FAULT] = np.nan


@pytest.mark.parametrize(
    ("fault", "detector", "within"),
    [
        (_spike, "loss", 1),
        (_one_domain, "domain", 1),
        (_drift, "drift", 60),
        (_gradient, "grad-norm", 1),
        (_gradient, "grad-ema", 1),
        (_dead, "experts", 5),
        (_crowded, "experts", 5),
        (_biased, "experts", 1),
        (_waiting, "stall", 3),
        (_slow, "stall", 10),
        (_no_number, "non-finite", 1),
    ],
)
def test_a_fault_is_named_by_its_detector(fault: Any, detector: str, within: int) -> None:
    for seed in range(3):
        readings = healthy(seed)
        fault(readings)
        steps = [alarm.step for alarm in found(readings) if alarm.detector == detector]
        # Rows count from 0, steps from 1.
        assert steps, seed
        assert FAULT + 1 <= steps[0] <= FAULT + within, seed


def test_statistics_look_back_alone() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(120)
    changed = values.copy()
    changed[80:] += 5
    for statistic in (
        lambda x: off_trend(x, 12),
        lambda x: off_level(x, 12, 6),
        lambda x: median_before(x, 16, 4),
        lambda x: ema_z(x, 0.9, 8),
        lambda x: cusum(x, 0.5, 4),
        lambda x: in_a_row(x > 0),
    ):
        np.testing.assert_array_equal(statistic(values)[:80], statistic(changed)[:80])


def test_a_line_has_no_deviation_whatever_is_missing() -> None:
    line = np.linspace(5, 2, 60)
    line[[7, 20, 21]] = np.nan
    kept = np.arange(60)[np.isfinite(line)]
    line[kept] = np.linspace(5, 2, len(kept))
    off = off_trend(line, 10)
    assert np.isnan(off[:10]).all()
    np.testing.assert_allclose(off[np.isfinite(off)], 0, atol=1e-12)
    np.testing.assert_allclose(np.diff(off_level(line, 10, 3)[kept][13:]), 0, atol=1e-12)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = start(tmp_path, train={"schedule": {"warmup_steps": 4}})
    feed(path, 12)
    measure(open_run(path), 12)
    return tmp_path


def measure(run: Run, until: int, **changes: float) -> None:
    """Write numbers of steps that were fed; ``changes`` of the last one, by metric."""
    metrics = MetricsWriter(run.path, 1)
    for step in range(1, until + 1):
        plan = run.plans[run.segment_of(step).id]
        first, end = plan.span(step)
        domain = plan.running(np.arange(first, end, dtype=np.uint64))[0]
        train = run.recipe.train
        numbers = {"loss": 5 - step / 100, "lr": rates_at(step, plan, train.optimizer, train.schedule).lr}
        numbers |= changes if step == until else {}
        values = [Value(name=name, value=value) for name, value in numbers.items()]
        for number in np.unique(domain).tolist():
            values.append(Value(name="loss", domain=plan.domains[number], value=5 - step / 100))
            values.append(Value(name="sequences", domain=plan.domains[number], value=float((domain == number).sum())))
        metrics.add(step, 0, values)
    metrics.close()


def detectors(run: Run, watch: Watch = Watch()) -> list[str]:  # noqa: B008
    return [alarm.detector for alarm in alarms_of(run, watch)]


def test_a_run_as_planned_is_well(home: Path) -> None:
    found = open_run(home / "run")
    assert detectors(found, Watch(corpora=open_corpora(found), replay=5)) == []


def test_a_mixture_that_no_record_tells_of_is_an_alarm(home: Path) -> None:
    run = open_run(home / "run")
    for file in (run.path / "metrics").iterdir():
        file.unlink()
    plan = run.plan
    metrics = MetricsWriter(run.path, 1)
    for step in range(1, 13):
        first, end = plan.span(step)
        domain = plan.running(np.arange(first, end, dtype=np.uint64))[0].copy()
        if step > 9:
            domain[:2] = (domain[:2] + 1) % len(plan.domains)
        counts = np.bincount(domain, minlength=len(plan.domains)).tolist()
        values = [Value(name="sequences", domain=d, value=c) for d, c in zip(plan.domains, counts, strict=True) if c]
        metrics.add(step, 0, values)
    metrics.close()
    (alarm,) = alarms_of(run, Watch())
    assert alarm.detector == "plan"
    assert alarm.step in (10, 11)
    assert "no amendment says so" in alarm.text


def test_a_rate_off_its_schedule_is_an_alarm(home: Path) -> None:
    run = open_run(home / "run")
    measure(run, 12, lr=3e-2)
    assert "learning-rate" in detectors(run)


def test_skipped_updates_and_other_data_are_alarms(tmp_path: Path) -> None:
    path = start(tmp_path)
    feed(path, 12, skipped=(7,))
    measure(open_run(path), 12)
    (alarm,) = alarms_of(open_run(path), Watch())
    assert (alarm.detector, alarm.step) == ("skipped", 7)
    ledger = path / "ledger.jsonl"
    root = open_run(path).fed[12][0].root
    ledger.write_text(ledger.read_text().replace(root, "0" * 64))
    run = open_run(path)
    assert "replay" in detectors(run, Watch(corpora=open_corpora(run), replay=12))


def test_domains_read_too_often_are_alarms(home: Path) -> None:
    run = open_run(home / "run")
    assert run.recipe.mixture is not None
    run.info["recipe"]["mixture"]["max_epochs"] = "0.2"
    run = Run(run.path, run.info, run.records)
    repeated = [a for a in alarms_of(run, Watch()) if a.detector == "repeat"]
    assert repeated
    assert all(f"{a.domain} is in epoch" in a.text for a in repeated)


def test_a_run_that_trains_and_makes_no_step_is_stalled(home: Path) -> None:
    run = open_run(home / "run")
    newest = max(p.stat().st_mtime for p in (run.path / "metrics").iterdir())
    assert idle(run, Settings(), newest + 59) == []
    (alarm,) = idle(run, Settings(), newest + 61)
    assert (alarm.detector, alarm.name, alarm.step) == ("stall", "step", 12)


def test_alerts_wait_for_whoever_holds_the_ledger(home: Path) -> None:
    path = home / "run"
    alarm = Alarm(step=9, detector="loss", name="loss", domain=None, value=9.9, limit=9.0, text="high")
    body = alert_body(open_run(path), alarm)
    with open_ledger(path) as ledger:
        assert being_written(path)
        assert raise_alerts(open_run(path), [body]) == [body]
        assert raise_alerts(open_run(path), [body]) == []
        assert alerts_of(open_run(path)) == [body]
        assert take_alerts(path, ledger) == [body]
        assert take_alerts(path, ledger) == []
    assert not being_written(path)
    later = alert_body(open_run(path), replace(alarm, step=10))
    raise_alerts(open_run(path), [body, later])
    assert [r.body["step"] for r in open_run(path).records.of("alert")] == [9, 10]
    assert check_chain(path) == len(open_run(path).records)


def test_the_command_tells_once_and_exits_with_1(home: Path) -> None:
    measure(open_run(home / "run"), 12, loss=float("nan"))
    got: list[dict[str, Any]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    done = run(home, "watch", "run", "--on-alert", "tee told.json", "--webhook", url, "--json")
    server.shutdown()
    server.server_close()
    assert done.returncode == 1
    assert "1 alert, the first at step 12" in done.stderr
    (alert,) = json.loads(done.stdout)["alerts"]
    assert (alert["step"], alert["detector"], alert["name"]) == (12, "non-finite", "loss")
    assert json.loads((home / "told.json").read_text()) == got[0] == {"run": "test"} | alert
    assert [r.body for r in open_run(home / "run").records.of("alert")] == [alert]
    assert "1 alerts" in run(home, "watch", "run").stdout
    assert len(list(open_run(home / "run").records.of("alert"))) == 1
    assert run(home, "watch", "run", "--live", "--since", "13").returncode == 0


def test_what_cannot_be_told_is_refused_before_the_run_is_looked_at(home: Path) -> None:
    fails(home, 2, "--webhook: expected an address such as https://", "watch", "run", "--webhook", "file:///etc/passwd")
    fails(home, 2, "--on-alert: 'a \"b': No closing quotation", "watch", "run", "--on-alert", 'a "b')
