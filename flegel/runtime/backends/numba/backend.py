"""The backend for processors: compiled loops over shards in the memory of the host, built by numba.

States and votes are always up to date, because kernels work on the arrays of the shard itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from flegel.algorithm import Algorithm
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard
from flegel.declarations.kernels import KernelHooks
from flegel.declarations.optional import hook
from flegel.runtime.backends.numba.kernels import Built, build_kernel


class NumbaKernel:
    """A compiled or interpreted loop, its parameter and its statistics."""

    device = "cpu"
    library = ""
    room = 0
    overhead = 0.0
    abandoned = 0

    def __init__(self, built: Built, parameter: Tree, empty: Tree) -> None:
        self.kind, self.note = built.kind, built.note
        self.least_points = active().training.fewest_points_per_call if built.kind == "hand-written" else 1
        self.grid: int = getattr(built.kernel, "grid", 1)
        self._loop = built.kernel
        self._parameter, self._statistics = pytree.read_only(parameter), pytree.copy(empty)

    def set_parameter(self, arrays: Sequence[Array]) -> None:
        self._parameter = pytree.read_only(pytree.unflatten(self._parameter, arrays))

    def clear_statistics(self) -> None:
        pytree.clear(self._statistics)

    def add_statistics(self, arrays: Sequence[Array]) -> None:
        pytree.add(self._statistics, pytree.unflatten(self._statistics, arrays))

    def statistics(self) -> tuple[Array, ...]:
        return tuple(pytree.flatten(self._statistics))

    def run(self, shard: Shard, start: int, end: int, iteration: int, flag: Array) -> int:
        if self.kind != "hand-written":
            iteration = max(iteration, 0)
        return self._loop(shard, self._parameter, self._statistics, start, end, iteration, flag)

    def fetch_states(self, shards: Sequence[Shard], start: int = 0, end: int | None = None) -> None:
        """Nothing to do: the loop writes to the arrays of the shard."""

    def put_states(self, shards: Sequence[Shard], start: int = 0, end: int | None = None) -> None:
        """Nothing to do: the loop reads the arrays of the shard."""

    def forget(self, shard: Shard) -> None:
        """Some kernels keep what they have found out about rows."""
        forget = getattr(self._loop, "forget", None)
        if forget is not None:
            forget(shard)

    def close(self) -> None:
        """Nothing to free beyond the arrays, which go with this object."""


class NumbaBackend:
    """Hand-written kernels as they are, hooks as one compiled loop, and interpreted where that is not possible."""

    device = "cpu"

    def on(self, device: str) -> NumbaBackend:
        return self

    def layout(self, algorithm: Algorithm, columns: int, interpret: bool) -> str:
        return "rows" if interpret else hook(algorithm, KernelHooks.layout_for)(columns)

    def build(self, algorithm: Algorithm, shard: Shard, parameter: Tree, empty: Tree, interpret: bool) -> NumbaKernel:
        return NumbaKernel(build_kernel(algorithm, shard, parameter, empty, interpret), parameter, empty)


BACKEND = NumbaBackend()
