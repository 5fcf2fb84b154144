"""Work on the parts of an array, side by side where a job has given threads to its start. Arrays only.

NumPy leaves the interpreter's lock inside its loops and products, so a start of many centroids can use all processors.
How rows are cut does not depend on the number of threads, so neither do the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, copy_context
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class GivenThreads(NamedTuple):
    """What a job gives to its start."""

    number: int
    products_by_one: Callable[[], AbstractContextManager[None]]
    """While threads work on parts, a library must not split each of their products over threads of its own."""


_given: ContextVar[GivenThreads | None] = ContextVar("threads of a start", default=None)


@contextmanager
def giving(threads: GivenThreads) -> Iterator[None]:
    """`in_parts` works by so many threads inside; elsewhere it works by the thread that calls it."""
    token = _given.set(threads)
    try:
        yield
    finally:
        _given.reset(token)


def in_parts(count: int, size: int, work: Callable[[slice], T]) -> list[T]:
    """work(part) for parts of `size` of 0 … count, in their order; it should be long and hold no lock. Work that calls
    this again is done by its own thread."""
    parts = [slice(at, min(at + size, count)) for at in range(0, count, size)]
    given = _given.get()
    if given is None or min(given.number, len(parts)) < 2:
        return [work(part) for part in parts]
    contexts = [copy_context() for _ in parts]  # each thread works with the settings of the job

    def alone(place: int) -> T:
        contexts[place].run(_given.set, None)
        return contexts[place].run(work, parts[place])

    with given.products_by_one(), ThreadPoolExecutor(min(given.number, len(parts)), "start") as pool:
        return list(pool.map(alone, range(len(parts))))
