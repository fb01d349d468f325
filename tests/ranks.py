"""Running a function on several gloo ranks, quickly: DeepSpeed is imported once, ranks are forked."""

import multiprocessing
import os
import socket
import traceback
import warnings
from collections.abc import Callable
from typing import Any


def on_ranks(world: int, function: Callable[..., Any], *args: Any, timeout: float = 120) -> list[Any]:
    """Results of ``function(*args)`` on each of ``world`` ranks, in order; the first error is raised."""
    import torch

    import millstream.train.engine  # noqa: F401  imported here, once, so that forks find it loaded

    torch.set_num_threads(1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(world)]
    processes = []
    with warnings.catch_warnings():
        # Forking with threads about: the ranks run nothing that those hold.
        warnings.simplefilter("ignore")
        for rank, (_, send) in enumerate(pipes):
            process = context.Process(target=_rank, args=(rank, world, port, send, function, args))
            process.start()
            processes.append(process)
    results = []
    try:
        for rank, (receive, send) in enumerate(pipes):
            send.close()
            if not receive.poll(timeout):
                raise TimeoutError(f"rank {rank} of {world} did not answer")
            ok, value = receive.recv()
            if not ok:
                raise AssertionError(f"rank {rank}: {value}")
            results.append(value)
    finally:
        for process in processes:
            process.kill() if len(results) < world else process.join(timeout)
            process.join()
        for receive, _ in pipes:
            receive.close()
    return results


def _rank(rank: int, world: int, port: int, send: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    warnings.simplefilter("ignore")
    import torch.distributed as dist

    from millstream.train.engine import init_distributed

    try:
        init_distributed()
        value: tuple[bool, Any] = (True, function(*args))
        dist.barrier()
    except BaseException:
        value = (False, traceback.format_exc())
    send.send(value)
    send.close()
    os._exit(0)
