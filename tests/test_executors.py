"""The same corpus from every executor: local processes, a Ray cluster of two nodes, Slurm's generated scripts."""

import os
import stat
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from corpora import build, digests, recipe_dict, words, write_domain, write_jsonl
from test_mixture_minhash import edited

from millstream.errors import InputError, SetupError


@pytest.fixture
def recipe(tmp_path: Path) -> dict[str, Any]:
    """Two domains of several files with exact and near duplicates and repeated sentences."""
    write_domain(tmp_path / "in", "law", 60)
    write_domain(tmp_path / "in", "art", 40)
    bases = [words(f"b{n}", 90) + "." for n in range(6)]
    write_jsonl(tmp_path / "in" / "art" / "more.jsonl", [{"text": t} for t in [*bases, bases[0]]])
    write_jsonl(tmp_path / "in" / "law" / "near.jsonl", [{"text": edited(t, 40, "e")} for t in bases])
    dedup = {"near": {"max_removed": "1"}, "sentences": {"min_doc_words": 5}}
    return recipe_dict(tmp_path / "in", ["law", "art"], corpus={"dedup": dedup, "shard_bytes": 20_000})


@pytest.fixture
def expected(tmp_path: Path, recipe: dict[str, Any]) -> tuple[str, dict[str, str]]:
    result = build(tmp_path, recipe, tasks=1, corpus="local")
    return result.manifest.corpus_id, digests(tmp_path / "local")


@pytest.mark.parametrize("tasks", [3, 8])
def test_local_tasks_decide_nothing(
    tmp_path: Path, recipe: dict[str, Any], expected: tuple[str, dict[str, str]], tasks: int
) -> None:
    again = build(tmp_path, recipe, tasks=tasks, corpus="again")
    assert (again.manifest.corpus_id, digests(tmp_path / "again")) == expected


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    os.environ["RAY_DISABLE_DOCKER_CPU_WARNING"] = "1"
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    found = cluster_utils.Cluster()
    for _ in range(2):
        found.add_node(num_cpus=1, memory=2 << 30, object_store_memory=80 << 20, include_dashboard=False)
    yield found.address
    found.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_ray_on_two_nodes_gives_the_same_bytes(
    tmp_path: Path, recipe: dict[str, Any], expected: tuple[str, dict[str, str]], cluster: str
) -> None:
    executor = {"kind": "ray", "address": cluster, "tasks": 2, "mem_per_cpu_gb": 0.5}
    again = build(tmp_path, recipe | {"build": {"executor": executor}}, corpus="ray")
    assert (again.manifest.corpus_id, digests(tmp_path / "ray")) == expected
    assert (tmp_path / "ray" / ".work" / "logs" / "read" / "completions").is_dir()


@pytest.mark.filterwarnings("ignore")
def test_a_failure_on_ray_is_the_units_own_line(tmp_path: Path, recipe: dict[str, Any], cluster: str) -> None:
    (tmp_path / "in" / "law" / "zz.parquet").write_bytes(b"PAR1 no such thing PAR1")
    executor = {"kind": "ray", "address": cluster, "tasks": 2, "mem_per_cpu_gb": 0.5}
    with pytest.raises(InputError, match=r"law-files: zz\.parquet: damaged Parquet file"):
        build(tmp_path, recipe | {"build": {"executor": executor}}, corpus="ray")


@pytest.mark.filterwarnings("ignore")
def test_no_cluster_is_one_line(tmp_path: Path, recipe: dict[str, Any]) -> None:
    pytest.importorskip("ray")
    executor = {"kind": "ray", "address": "127.0.0.1:1"}
    with pytest.raises(SetupError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        build(tmp_path, recipe | {"build": {"executor": executor}}, corpus="ray")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for Slurm's commands: ``sbatch`` runs the array's tasks in turn and keeps the script."""
    folder = tmp_path / "slurm"
    commands = {
        "sbatch": f"""
            #!{sys.executable}
            import os, re, shutil, subprocess, sys
            script = sys.argv[-1]
            number = len(os.listdir("{folder}/jobs"))
            kept = f"{folder}/jobs/{{number}}.slurm"
            shutil.copy(script, kept)
            text = open(script).read()
            first, last = map(int, re.search(r"--array=(\\d+)-(\\d+)", text).groups())
            given = [a[13:] for a in sys.argv[1:-1] if a.startswith("--export=ALL,")]
            exports = dict(pair.split("=") for export in given for pair in export.split(","))
            failed = 0
            for task in range(first, last + 1):
                slurm = {{"SLURM_ARRAY_TASK_ID": str(task), "SLURM_JOB_ID": "7", "SLURM_NODELIST": "here"}}
                env = {{**os.environ, **exports, **slurm}}
                done = subprocess.run(["bash", kept], env=env, capture_output=True)
                open(f"{folder}/jobs/{{number}}-{{task}}.out", "wb").write(done.stdout + done.stderr)
                failed |= done.returncode
            print("Submitted batch job 7")
            sys.exit(bool(failed))
            """,
        "srun": """
            #!/bin/bash
            while [[ "$1" == -* ]]; do [[ "$1" == "-n" ]] && shift; shift; done
            exec "$@"
            """,
        "scontrol": """
            #!/bin/bash
            echo here
            """,
    }
    (folder / "jobs").mkdir(parents=True)
    for name, source in commands.items():
        path = folder / name
        path.write_text(textwrap.dedent(source).lstrip())
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    return folder


SLURM = {
    "kind": "slurm",
    "time": "01:00:00",
    "partition": "cpu",
    "tasks": 2,
    "mem_per_cpu_gb": 3,
    "sbatch": {"account": "us"},
}


def test_slurm_scripts_give_the_same_bytes(
    tmp_path: Path, recipe: dict[str, Any], expected: tuple[str, dict[str, str]], slurm: Path
) -> None:
    again = build(tmp_path, recipe | {"build": {"executor": SLURM}}, corpus="slurm-corpus")
    assert (again.manifest.corpus_id, digests(tmp_path / "slurm-corpus")) == expected
    scripts = sorted((slurm / "jobs").glob("*.slurm"))
    assert len(scripts) >= 8, "one job a stage"
    for script in scripts:
        lines = script.read_text().splitlines()
        for wanted in ("time=01:00:00", "partition=cpu", "mem-per-cpu=3G", "account=us", "wait"):
            assert f"#SBATCH --{wanted}" in lines
        (array,) = [line for line in lines if line.startswith("#SBATCH --array=0-")]
        assert array.endswith(("%1", "%2"))
        assert "launch_pickled_pipeline" in lines[-1]


def test_a_failure_on_slurm_is_the_units_own_line(tmp_path: Path, recipe: dict[str, Any], slurm: Path) -> None:
    (tmp_path / "in" / "law" / "zz.parquet").write_bytes(b"PAR1 no such thing PAR1")
    with pytest.raises(InputError, match=r"law-files: zz\.parquet: damaged Parquet file"):
        build(tmp_path, recipe | {"build": {"executor": SLURM}}, corpus="slurm-corpus")


def test_no_slurm_is_one_line(tmp_path: Path, recipe: dict[str, Any]) -> None:
    with pytest.raises(SetupError, match="the executor 'slurm' needs 'sbatch' on the PATH"):
        build(tmp_path, recipe | {"build": {"executor": SLURM}}, corpus="slurm-corpus")
