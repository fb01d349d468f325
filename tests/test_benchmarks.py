"""Benchmarks still run: what they ask of the package is there, and their facts that do not depend on time hold."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
# What other benchmarks import, and what runs only under the interpreter of the peers.
PARTS = {"peers.py"}


@pytest.mark.parametrize(
    "script", sorted(p.name for p in BENCHMARKS.glob("*.py") if p.name not in PARTS and "argparse" in p.read_text())
)
def test_every_benchmark_starts(script: str) -> None:
    command = [sys.executable, str(BENCHMARKS / script), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_full_scale_plan_answers_what_the_benchmark_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import scale

    from millstream.canonical import canonical_bytes
    from millstream.stream.plan_json import plan_to_json

    plan = scale.marin_plan()
    assert plan.consumed("c22q0") == scale.EXACT
    path = tmp_path / "plan.json"
    path.write_bytes(canonical_bytes(plan_to_json(plan)))
    assert path.stat().st_size < 100_000
    assert scale.read_plan(path) == plan
    for number in range(4):
        scale.child("inverse", path, number)
    scale.child("open", path, 0)
    assert len(capsys.readouterr().out.splitlines()) == 5
