"""Controls: steps trained once more by other code are compared and recorded, and nothing comes of them unasked."""

from pathlib import Path
from typing import Any

import pytest
from fed_runs import feed, start

from millstream.audit import branches
from millstream.audit.branches import branch_run, compare_control, control_run
from millstream.audit.change import reason
from millstream.audit.ledger import Ledger, open_ledger
from millstream.audit.runs import Run, open_run
from millstream.errors import InputError, UsageError

WHY = reason("test", "ann")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run with checkpoints of steps 4 and 10."""
    path = start(tmp_path)
    feed(path, 4)
    feed(path, 10)
    return path


def feed_otherwise(path: Path, until: int, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Feed steps whose records say something else from step 7 on, as other code or another machine would make them."""
    append = Ledger.append

    def other(self: Ledger, kind: str, body: dict[str, Any]) -> Any:
        return append(self, kind, body | changed if kind == "step" and body["step"] >= 7 else body)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", other)
        feed(path, until)


def recorded(path: Path) -> dict[str, Any]:
    (record,) = open_run(path).records.of("control")
    return record.body


def learned(run: Run) -> list[str]:
    return [fed.root for step in range(1, run.last_step + 1) if (fed := run.learned(step)) is not None]


def test_equal_digests_are_told_and_recorded(path: Path) -> None:
    before = learned(open_run(path))
    control = control_run(path, 4, "ann")
    feed(control, 10)
    outcome = compare_control(path, control, 4)
    assert (outcome["steps"], outcome["roots"], outcome["losses"], outcome["first_difference"]) == (6, 0, 0, 0)
    assert outcome["same_code"]
    assert recorded(path) == outcome
    assert learned(open_run(path)) == before


def test_losses_of_another_code_are_measured(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "code_digest", lambda: "f" * 64)
    control = control_run(path, 4, "ann")
    feed_otherwise(control, 10, monkeypatch, loss=4_999_000)
    outcome = compare_control(path, control, 4)
    assert (outcome["roots"], outcome["losses"], outcome["first_difference"]) == (0, 4, 7)
    assert outcome["loss_difference"] == 5_000_000 - 7 - 4_999_000
    assert (outcome["same_code"], outcome["code"]) == (False, "f" * 64)
    assert recorded(path)["losses"] == 4


def test_other_data_is_found_by_the_roots(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = control_run(path, 4, "ann")
    feed_otherwise(control, 9, monkeypatch, root="0" * 64)
    outcome = compare_control(path, control, 4)
    assert (outcome["steps"], outcome["roots"], outcome["losses"], outcome["first_difference"]) == (5, 3, 0, 7)


def test_a_lineage_comes_from_a_control_only_where_somebody_says_so(path: Path, tmp_path: Path) -> None:
    control = control_run(path, 4, "ann")
    feed(control, 8)
    with pytest.raises(UsageError, match="is a control; say --accept"):
        branch_run(control, tmp_path / "taken", 8, WHY)
    branch_run(control, tmp_path / "taken", 8, WHY, accept=True)
    feed(tmp_path / "taken", 11)
    assert open_run(tmp_path / "taken").last_step == 11
    assert open_run(path).last_step == 10


def test_what_cannot_be_compared_is_refused(path: Path) -> None:
    control = control_run(path, 10, "ann")
    with pytest.raises(InputError, match="has no steps after 10"):
        compare_control(path, control, 10)
    with pytest.raises(UsageError, match="there is no checkpoint of step 5; there are: 4, 10"):
        control_run(path, 5, "ann")
    with open_ledger(path), pytest.raises(UsageError, match="is writing"):
        compare_control(path, control, 10)
