"""Who runs a stage's tasks: processes here, a Ray cluster, or Slurm; all through datatrove's executors.

Units decide the bytes, executors only where they are made, so a corpus is the same from each. Ray and Slurm need the
corpus folder on a file system that every node sees under the same path, and the same Python environment there.
"""

import contextlib
import io
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datatrove.executor.base import PipelineExecutor
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.executor.ray import RayPipelineExecutor
from datatrove.executor.slurm import SlurmPipelineExecutor
from datatrove.pipeline.base import PipelineStep

from millstream.errors import SetupError
from millstream.mixture.recipe import Executor, LocalExecutor, RayExecutor

TASKS_A_WORKER = 4
"""Tasks that a stage is cut into for each that runs at once, so that none waits long for the last."""


def run_step(step: PipelineStep, units: int, executor: Executor, tasks: int, logs: Path) -> None:
    """Run a step that works on ``units`` units, and wait for its end.

    Args:
        step: takes every n-th unit of n tasks.
        units: how many units there are.
        executor: the recipe's.
        tasks: how many run at once, where the recipe does not say.
        logs: folder for the tasks' logs.

    Raises:
        SetupError: Ray is not installed or not reachable; Slurm refuses the job or is not there.
    """
    at_once = min(units, tasks if isinstance(executor, LocalExecutor) else executor.tasks or tasks)
    ranks = min(units, TASKS_A_WORKER * at_once)
    common: dict[str, Any] = {"pipeline": [step], "tasks": ranks, "logging_dir": str(logs), "skip_completed": False}
    if isinstance(executor, LocalExecutor):
        _Local(**common, workers=at_once).run()
    elif isinstance(executor, RayExecutor):
        with _ray_cluster(executor.address):
            resources = executor.model_dump(include={"cpus_per_task", "mem_per_cpu_gb"})
            _Ray(**common, workers=at_once, **resources).run()
    else:
        settings = executor.model_dump(exclude={"kind", "tasks", "sbatch"}, exclude_none=True)
        _run_slurm(_Slurm(**common, workers=at_once, sbatch_args={**executor.sbatch, "wait": ""}, **settings))


class _Silent(PipelineExecutor):
    """Leaves datatrove's console log out; the log files stay."""

    def _run_for_rank(self, *args: Any, **kwargs: Any) -> Any:
        with contextlib.redirect_stderr(io.StringIO()):
            return super()._run_for_rank(*args, **kwargs)


class _Local(_Silent, LocalPipelineExecutor):
    pass


class _Ray(_Silent, RayPipelineExecutor):
    pass


class _Slurm(_Silent, SlurmPipelineExecutor):
    def launch_merge_stats(self) -> None:
        """Nothing: what a stage did is told by its units, and the job would have to be waited for."""


@contextlib.contextmanager
def _ray_cluster(address: str) -> Iterator[None]:
    """Connect to a Ray cluster, unless the caller has."""
    try:
        import ray
    except ImportError as error:
        raise SetupError("the executor 'ray' needs Ray: pip install 'millstream[ray]'") from error
    if ray.is_initialized():
        yield
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdecimal():
            # Ray itself tries for minutes, and may end the process.
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        raise SetupError(f"no Ray cluster at '{address}': {' '.join(str(error).split())}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _run_slurm(executor: SlurmPipelineExecutor) -> None:
    try:
        # With '#SBATCH --wait' the command returns when the jobs have ended.
        with contextlib.redirect_stderr(io.StringIO()):
            executor.run()
    except FileNotFoundError as error:
        raise SetupError(f"the executor 'slurm' needs '{error.filename}' on the PATH") from error
    except subprocess.CalledProcessError as error:
        # A failed task tells by its unit; a job that was refused leaves no log at all.
        if not any(Path(executor.slurm_logs_folder).iterdir()):
            raise SetupError(
                f"sbatch refused the job (exit {error.returncode}); see {executor.logging_dir.path}"
            ) from error
