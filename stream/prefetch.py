"""Reading ahead: the plan says what comes next, so a thread reads it while the consumer works."""

from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Read(Generic[Result]):
    result: Result


def read_ahead(source: Iterator[Result], depth: int, stop: Event | None = None) -> Iterator[Result]:
    """What ``source`` yields, in order, up to ``depth`` of it before the consumer asks.

    An exception reaches the consumer in its turn. Closing the iterator sets ``stop`` and waits for the thread, which
    ends after the read that it is in.

    Args:
        source: advanced in one thread; may watch ``stop`` and raise to end early.
        depth: most results held, with the one being read; at least one.
        stop: set when nobody wants further results.
    """
    stop = stop or Event()
    places = Semaphore(depth)
    done: SimpleQueue[_Read[Result] | BaseException | None] = SimpleQueue()

    def work() -> None:
        try:
            while True:
                places.acquire()
                if stop.is_set():
                    return
                done.put(_Read(next(source)))
        except StopIteration:
            done.put(None)
        except BaseException as error:
            done.put(error)

    thread = Thread(target=work, name="read-ahead", daemon=True)
    thread.start()
    try:
        while (got := done.get()) is not None:
            if isinstance(got, BaseException):
                raise got
            places.release()
            yield got.result
    finally:
        stop.set()
        places.release()
        thread.join()
