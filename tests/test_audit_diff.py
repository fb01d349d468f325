"""Two runs side by side: what differs, and from which step on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import simulated
from simulated import begin, train
from test_story import millstream

from millstream.audit.branches import branch_run
from millstream.audit.change import Reason, amend_run
from millstream.audit.diff import ABSENT, Difference, audit_diff, differences
from millstream.audit.ledger import open_ledger
from millstream.audit.runs import create_run, open_run
from millstream.mixture.load import load_recipe
from millstream.stream.amend import Amendment
from millstream.stream.corpora import open_corpus
from millstream.stream.freeze import freeze_plan

MIXTURE: dict[str, Any] = {
    "seq_len": 16,
    "batch": 8,
    "steps": 30,
    "phases": [{"name": "a", "weights": {"law": "0.6", "news": "0.4"}}],
}
WHY = Reason(why="x", by="y")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diff")
    train(begin(folder, MIXTURE, {"law": 60, "news": 60}), 0, 20)
    return folder


def copied(home: Path, folder: Path) -> Path:
    shutil.copytree(home / "run", folder / "run")
    shutil.copytree(home / "corpus", folder / "corpus", ignore=shutil.ignore_patterns(".work"))
    return folder / "run"


def test_values_are_compared_as_deep_as_they_go() -> None:
    a = {"x": 1, "y": [1, 2], "z": {"w": "s"}, "d": [{"name": "law", "n": 1}, {"name": "news", "n": 2}], "t": True}
    b = {"x": 1, "y": [1, 3, 4], "z": {"w": "t", "v": 0}, "d": [{"name": "news", "n": 3}], "t": 1}
    assert [(d.where, d.a, d.b) for d in differences(a, b)] == [
        ("y[1]", 2, 3),
        ("y[2]", ABSENT, 4),
        ("z.w", "s", "t"),
        ("z.v", ABSENT, 0),
        ("d.law", {"name": "law", "n": 1}, ABSENT),
        ("d.news.n", 2, 3),
        ("t", True, 1),
    ]
    assert list(differences(a, a)) == []


def test_a_run_does_not_differ_from_itself(home: Path) -> None:
    run = open_run(home / "run")
    found = audit_diff(run, run)
    assert found.shared_records == len(run.records)
    assert not any((found.recipe, found.plan, found.segments, found.corpora, found.code))
    assert (found.fed.common, found.fed.roots, found.fed.losses, found.fed.largest_at) == (20, 0, 0, None)


def test_a_branch_shares_its_beginning_and_then_goes_its_way(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copied(home, tmp_path)
    branch_run(path, tmp_path / "side", 8, WHY)
    amend_run(tmp_path / "side", Amendment(from_step=11, weights={"law": "0.1", "news": "0.9"}), WHY)
    other = simulated.losses_of
    monkeypatch.setattr(simulated, "losses_of", lambda s, a, n: other(s, 1, n) + (s >= 10) * (s - 9) / 1024)
    train(tmp_path / "side", 8, 12, lambda step: step != 12)
    run, side = open_run(path), open_run(tmp_path / "side")
    found = audit_diff(run, side)
    left = next(r.seq for r in side.records if r.kind == "branch")
    assert found.shared_records == left
    assert found.recipe == ()
    assert {d.where.split(".")[0].split("[")[0] for d in found.plan} == {"phases", "amendments"}
    assert found.segments[0].where == "[1]"
    assert found.segments[0].a == ABSENT
    fed = found.fed
    assert (fed.common, fed.last) == (12, (20, 12))
    assert (fed.updates, fed.first_update) == (1, 12)
    assert (fed.losses, fed.first_loss) == (3, 10)
    assert abs(fed.largest - 3 / 1024 * 1e6) <= 1
    assert fed.largest_at == 12
    assert fed.first_root is None, "made-up roots are all the same"
    shown = millstream(tmp_path, "audit", "diff", "run", "side").stdout
    assert "losses: 3 differ, first at step 10" in shown
    assert "recipe: the same" in shown


def test_other_recipes_corpora_and_data_are_named(home: Path, tmp_path: Path) -> None:
    mixture = MIXTURE | {"seed": 5, "phases": [{"name": "a", "weights": {"law": "0.5", "news": "0.5"}}]}
    other = begin(tmp_path, mixture, {"law": 80, "news": 60})
    train(other, 0, 3)
    with open_ledger(other) as ledger:
        body = open_run(other).records[-2].body | {"step": 4, "root": "1" * 64, "loss": "nan", "losses": None}
        ledger.append("step", body)
    found = audit_diff(open_run(home / "run"), open_run(other))
    assert found.shared_records == 0
    recipe = {d.where: (d.a, d.b) for d in found.recipe}
    assert recipe["mixture.seed"][1] == 5
    assert recipe["mixture.phases.a.weights.law"] == ("0.6", "0.5")
    assert Difference(where="seed", a=recipe["mixture.seed"][0], b=5) in found.plan
    corpora = {d.where: (d.a, d.b) for d in found.corpora}
    assert len(corpora["ids"][0]) == len(corpora["ids"][1]) == 1
    assert corpora["law.documents"][0] < corpora["law.documents"][1]
    assert "news.documents" not in corpora
    assert (found.fed.common, found.fed.roots, found.fed.first_root) == (4, 1, 4)
    assert (found.fed.losses, found.fed.first_loss) == (1, 4)
    shutil.rmtree(tmp_path / "corpus")
    gone = audit_diff(open_run(home / "run"), open_run(other))
    assert gone.corpora[0].where == "ids"
    answer = json.loads(millstream(tmp_path, "audit", "diff", str(home / "run"), "run", "--json").stdout)
    assert answer["fed"]["first_root"] == 4


def test_a_run_without_steps_has_none_in_common(home: Path, tmp_path: Path) -> None:
    recipe = load_recipe(home / "recipe.yaml")
    corpus = open_corpus(home / "corpus")
    assert recipe.mixture is not None
    create_run(tmp_path / "run", recipe, freeze_plan(recipe.mixture, corpus.manifest, corpus.root), corpus)
    found = audit_diff(open_run(home / "run"), open_run(tmp_path / "run"))
    assert (found.fed.common, found.fed.largest, found.fed.last) == (0, 0, (20, 0))
    assert "steps that both learned: 0" in millstream(home, "audit", "diff", "run", str(tmp_path / "run")).stdout
