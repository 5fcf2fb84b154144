"""What the trainer of a worker knows of whatever computes over a shard. Types only, no implementation.

A backend belongs to a kind of device and builds one `ShardKernel` for a job. The kernel owns the parameter, the
statistics and, where its device has memory of its own, its copy of the shards. The trainer knows nothing else, so a
backend for another library or device is a folder beside `numba/` and a line in `registry.py`; `check_backend` in
`conformance.py` says whether it keeps this contract.

Contract:

- `run` trains points start … end-1 in this order, looks at the stop flag before the first point and again at least
  once for each `TILE` points or micro-batch, and returns the first point that it did not train;
- points whose `shard.halted` is 1 are skipped and count as trained; after `run` `shard.halted` is up to date in the
  memory of the host;
- hidden states may stay in the memory of the device. `fetch_states` writes them to `shard.state`, `put_states` reads
  them from there;
- `statistics` returns arrays in the types of the empty statistics, in the memory of the host. They may be those that
  `run` adds to: whoever keeps them beyond the next call copies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flegel.algorithm import Algorithm
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard


class ShardKernel(Protocol):
    """The algorithm of one job on one worker, ready to run."""

    device: str
    kind: str
    """How the kernel was made, for the user: `hand-written`, `compiled`, `interpreted`, ..."""
    note: str
    """Why it was not made in a faster way; empty otherwise."""
    library: str
    """Name and version of the library that computes, where all workers must have the same; empty otherwise."""
    room: int
    """Points that the memory of the device can hold; 0: not known, or no limit of its own."""
    least_points: int
    """Points of the first calls, while the speed is unknown: with fewer the results would depend on the speed."""
    grid: int
    """Calls that end at multiples of it give the same bits wherever a pass is cut; 1: it does not matter, or nobody
    promises that."""

    abandoned: int
    """Visits that were abandoned since it was built, because a point was too expensive; 0 where none ever is."""

    @property
    def overhead(self) -> float:
        """Seconds that a call of `run` takes besides visits, as far as they were measured."""
        ...

    def set_parameter(self, arrays: Sequence[Array]) -> None:
        """θ of the coming calls of `run`."""

    def clear_statistics(self) -> None: ...

    def add_statistics(self, arrays: Sequence[Array]) -> None:
        """Changes that were made before this kernel was built: those of a resumed job."""

    def statistics(self) -> tuple[Array, ...]:
        """The sum of changes since they were cleared."""

    def run(self, shard: Shard, start: int, end: int, iteration: int, flag: Array) -> int:
        """Train points start … end-1 until `flag[0]` is not 0; returns the first point that was not trained."""

    def fetch_states(self, shards: Sequence[Shard], start: int = 0, end: int | None = None) -> None:
        """Bring `shard.state` of points start … end-1 up to date: somebody is going to read it."""

    def put_states(self, shards: Sequence[Shard], start: int = 0, end: int | None = None) -> None:
        """`shard.state` or `shard.halted` was changed for points start … end-1, or shards were added."""

    def forget(self, shard: Shard) -> None:
        """This shard will not be run again: free what the kernel holds of it."""

    def close(self) -> None:
        """Free what the kernel holds."""


class Backend(Protocol):
    """Builds kernels for one kind of device."""

    device: str

    def on(self, device: str) -> Backend:
        """The backend for one device of its kind, such as cuda:1. Raises `UsageError` where that is not there."""

    def layout(self, algorithm: Algorithm, columns: int, interpret: bool) -> str:
        """The layout of shards of so many columns that its kernels read: `rows` or `tiles`."""

    def build(self, algorithm: Algorithm, shard: Shard, parameter: Tree, empty: Tree, interpret: bool) -> ShardKernel:
        """A kernel for shards like this one. `empty`: statistics of no points; `interpret`: never compile hooks."""
