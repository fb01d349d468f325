"""Records by their index: always what the ledger says, whatever state the index is in."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.audit import ledger_index
from millstream.audit.ledger import FILE, move_ledger, open_ledger, read_ledger
from millstream.audit.ledger_index import INF, NAN, ROW
from millstream.audit.records import Fed, fed_step, index_fits, open_records, returns_of, scan_records, step_rows
from millstream.errors import InputError, UsageError


def step(number: int, attempt: int, loss: int | str = 5) -> dict[str, Any]:
    return {
        "step": number,
        "attempt": attempt,
        "segment": 3,
        "first_index": number * 8 - 8,
        "sequences": 8,
        "tokens": 64,
        "root": "ab" * 32,
        "update_applied": number % 7 != 0,
        "loss": loss,
    }


def write_run(run: Path) -> None:
    """Three attempts, a rollback, and a branch that somebody took."""
    with open_ledger(run) as ledger:
        ledger.append("run", {"name": "x"})
        for attempt, after, last in ((1, 0, 9), (2, 6, 12), (3, 4, 10)):
            if attempt == 3:
                ledger.append("rollback", {"to_step": 4, "from_step": 12})
            ledger.append("attempt", {"attempt": attempt, "checkpoint_step": after})
            for number in range(after + 1, last + 1):
                ledger.append("step", step(number, attempt, "nan" if number == 8 else 1000 * number))
        ledger.append("branch", {"at": 2, "to": "../side", "name": "side"})


def assert_as_read(run: Path) -> None:
    records = open_records(run)
    whole = list(read_ledger(run))
    assert list(records) == whole
    assert not whole or records[-1] == whole[-1]
    assert records[3:9:2] == tuple(whole[3:9:2])
    assert list(records.of("step", "attempt")) == [r for r in whole if r.kind in ("step", "attempt")]
    assert records.rows.tobytes() == scan_records(run).rows.tobytes()


def test_the_index_holds_what_the_records_say(tmp_path: Path) -> None:
    write_run(tmp_path)
    records = open_records(tmp_path)
    assert_as_read(tmp_path)
    assert index_fits(records)
    steps = records.rows[records.rows["kind"] == b"step"]
    assert len(steps) == 9 + 6 + 6
    assert steps["first_index"].tolist() == [8 * int(n) - 8 for n in steps["step"]]
    assert set(steps["loss"][steps["step"] == 8].tolist()) == {NAN}
    assert steps["applied"].tolist() == [int(n % 7 != 0) for n in steps["step"].tolist()]
    with open_ledger(tmp_path) as ledger:
        ledger.append("step", step(11, 3, "inf"))
    assert open_records(tmp_path).rows["loss"][-1] == INF
    with pytest.raises(IndexError):
        records[len(records)]


def test_what_a_lineage_keeps_is_told_as_record_by_record(tmp_path: Path) -> None:
    write_run(tmp_path)
    records = open_records(tmp_path)
    returns = returns_of(records)
    went_back = {"attempt": "checkpoint_step", "rollback": "to_step"}
    plain = [(r.seq, r.body[went_back[r.kind]]) for r in read_ledger(tmp_path) if r.kind in went_back]
    rows = step_rows(records, returns)
    for number, row, superseded in zip(rows.numbers.tolist(), rows.rows, rows.superseded.tolist(), strict=True):
        expected = any(seq > number and to < row["step"] for seq, to in plain)
        assert superseded == expected == returns.after(number, int(row["step"]))
    assert rows.last_learned == 10
    fed = Fed(records)
    assert list(fed) == list(range(1, 13))
    assert [f.attempt for f in fed[7]] == [1, 2, 3]
    assert fed[7] == [fed_step(r) for r in read_ledger(tmp_path) if r.kind == "step" and r.body["step"] == 7]
    assert fed.get(13, []) == []
    assert len(fed) == 12


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_an_index_in_any_state_costs_no_answer(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    run = tmp_path_factory.mktemp("index")
    write_run(run)
    path = run / ledger_index.FILE
    whole = path.read_bytes()
    kind = data.draw(st.sampled_from(["cut", "missing", "zeros", "behind", "ledger lost its tail", "longer", "other"]))
    at = data.draw(st.integers(0, len(whole) - 1))
    if kind == "cut":
        path.write_bytes(whole[:at])
    elif kind == "missing":
        path.unlink()
    elif kind == "zeros":
        path.write_bytes(whole[: at // ROW.itemsize * ROW.itemsize] + bytes(3 * ROW.itemsize))
    elif kind == "behind":
        path.write_bytes(whole[: ROW.itemsize * data.draw(st.integers(0, 10))])
    elif kind == "ledger lost its tail":
        ledger = (run / FILE).read_bytes()
        (run / FILE).write_bytes(ledger[: data.draw(st.integers(1, len(ledger)))])
    elif kind == "longer":
        ledger = (run / FILE).read_bytes()
        (run / FILE).write_bytes(ledger.replace(b'"update_applied":true', b'"update_applied":false', 1))
    else:
        path.write_bytes(b"something else\n" * 100)
    assert_as_read(run)
    before = len(open_records(run))
    with open_ledger(run) as ledger:
        ledger.append("note", {"text": "more"})
    assert len(open_records(run)) >= before + 1
    assert_as_read(run)
    assert len(ledger_index.mapped_rows(path)) == len(open_records(run))


def test_an_altered_index_is_found(tmp_path: Path) -> None:
    write_run(tmp_path)
    path = tmp_path / ledger_index.FILE
    rows = bytearray(path.read_bytes())
    rows[ROW.itemsize * 5 + ROW.fields["loss"][1]] ^= 1  # type: ignore[index]
    path.write_bytes(rows)
    assert not index_fits(scan_records(tmp_path))


def test_a_disk_that_is_full_for_the_index_does_not_stop_the_run(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        ledger.append("note", {"text": "a"})
        ledger._index._file.close()  # type: ignore[union-attr]
        ledger._index._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
        for text in "bcd":
            ledger.append("note", {"text": text})
    assert [r.body["text"] for r in open_records(tmp_path)] == ["a", "b", "c", "d"]
    with open_ledger(tmp_path) as ledger:
        ledger.append("note", {"text": "e"})
    assert len(ledger_index.mapped_rows(tmp_path / ledger_index.FILE)) == 5


def test_a_ledger_moves_with_its_index(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    write_run(tmp_path / "old")
    move_ledger(tmp_path / "old", tmp_path / "new")
    assert not list((tmp_path / "old").iterdir())
    assert_as_read(tmp_path / "new")
    assert len(np.unique(open_records(tmp_path / "new").rows["end"])) == len(open_records(tmp_path / "new"))


def test_what_is_no_ledger_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run here"):
        open_records(tmp_path)
    write_run(tmp_path)
    (tmp_path / ledger_index.FILE).unlink()
    lines = (tmp_path / FILE).read_bytes().splitlines(keepends=True)
    for wrong in (b"{}\n", b"[]\n", b"{\n", b'{"seq":1,"kind":"step","body":{},"prev":"","hash":"00"}\n'):
        (tmp_path / FILE).write_bytes(b"".join([*lines[:4], wrong, *lines[5:]]))
        with pytest.raises(InputError, match=r"ledger\.jsonl:5: not a ledger record"):
            open_records(tmp_path)
    assert struct.calcsize("<QQqIIIII10sBx") == ROW.itemsize
