"""What visits the points: the layout of rows, the precision of θ, backends and kernels of the class's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from flegel.core.counting_kernel import counting_kernel
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard, Sparse
from flegel.declarations.field_types import TypedFields

Kernel = Callable[[Shard, Tree, Tree, int, int, int, Array], int]
"""`kernel(share, parameter, aggregator, start, end, iteration, flag) -> position reached`.

Trains points start … end-1, adds their changes to `aggregator` in place, and returns early, at a tile's edge or
after any point, once `flag[0]` is not 0. `start` and `end` may lie inside a tile: its other points are left alone,
at the cost of a whole tile. An `end` behind the last point means the last point. `iteration` is `COUNTING` in the pass
at the end of a job, over copies that were never visited.
"""
COUNTING = -1
"""The `iteration` that hand-written kernels see when points are only counted: states are thrown away, the statistics
are reported, so they are to be as exact as float64. Hooks see 0."""


class TeamCode(NamedTuple):
    """Of a hand-written kernel, as its attribute `team`: how several threads take its blocks inside compiled code
    (`flegel.core.team_loop`)."""

    serve: Any
    """The entry point of `team_loop(train)`."""
    rest: Callable[[int], tuple[Any, ...]]
    """What `train` takes behind the flag, by iteration."""
    most_points: int
    """Of a block."""
    prepare: Callable[[Shard, Tree], None] | None = None
    """Makes what arrays of `rest` hold of θ, before the first block under it."""


class TwoStepKernel(Protocol):
    """A hand-written kernel whose threads share θ, what is kept of the rows, and one set of statistics, because a set
    for each thread or block would take longer to clear and to add up than the visits: points are decided first, by
    blocks, and then what changed is added by parts of the statistics, each in the order of the points. So the sums are
    those of a call by one thread, to the last bit. Beside these methods it is a `Kernel`."""

    unit: int
    """Blocks begin and end at multiples of so many points, itself a multiple of TILE."""

    def __call__(
        self, share: Shard, parameter: Tree, aggregator: Tree, start: int, end: int, iteration: int, flag: Array
    ) -> int: ...

    def prepare(self, share: Shard, parameter: Tree) -> None:
        """Called by one thread before the others begin."""

    def decide(
        self, share: Shard, parameter: Tree, aggregator: Tree, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        """As the kernel itself, but what would be done to states and statistics is only remembered. Several threads
        call it at a time, for other points each."""

    def collect(self, share: Shard, start: int, end: int) -> int:
        """Points up to `end` were decided: their states follow. Called by one thread. Returns the number of parts."""

    def add(self, share: Shard, parameter: Tree, aggregator: Tree, part: int) -> None:
        """Add what was collected to a part of the statistics. Several threads call it at a time, for other parts
        each."""


@dataclass(frozen=True, kw_only=True)
class Kernels(TypedFields):
    """`kernels = Kernels(narrow_parameter=True)`. Without it the hooks are compiled into one loop over rows."""

    narrow_parameter: bool = False
    """`updateDataPoint` takes θ in the precision of the features: with float32 data half the bytes and twice the
    numbers in a register. θ itself, the statistics and all other hooks stay float64."""
    layout: Literal["rows", "tiles"] = "rows"
    """How the kernel wants its features (see `flegel.core.shard`)."""
    in_batches: bool = False
    """Workers train batches of points that a signal does not interrupt. Then flexible barriers are kept by the workers'
    own clocks, and a worker begins as many points as it will have done in time."""
    backend: str = ""
    """The backend that trains this algorithm on every device (`flegel.runtime.backends.registry`); by default that of
    the worker's device."""
    torch_program: str = ""
    """`module:Class` of the program that trains blocks of points by torch, for workers on a GPU
    (`flegel.runtime.backends.torch.program`)."""
    compiled_apart: tuple[dict[str, Any], ...] = ({},)
    """Hyper-parameters whose kernels are compiled separately; `flegel warm` compiles each."""


class KernelHooks:
    """Methods that a class may define; otherwise these answer."""

    def contributions(self, features: Array | Sparse, labels: Array, weights: Array | None, parameter: Tree) -> Tree:
        """In place of `contribution`, where statistics are constant: what several points add together, by operations on
        whole arrays. A point counts `weights` times (None: once). Columns are those of θ: `features.columns` of a lone
        sparse row is only what it needs."""
        raise NotImplementedError(f"{type(self).__name__} must define contributions")

    def kernel(self: Any, share: Shard) -> Kernel | None:
        """A hand-written block kernel that agrees with `updateDataPoint`, or None to have one compiled. Blocks are
        given to `contributions` where a class defines that."""
        return counting_kernel(self.contributions) if callable(getattr(self, "contributions", None)) else None

    def kernel_choice(self, share: Shard) -> str:
        """Which of its kernels serves such rows and why, in a sentence, where a class has several; for `--explain`."""
        return ""

    def layout_for(self: Any, columns: int) -> str:
        """How the kernel wants features of so many columns, where its kernels differ by width."""
        return str(self.kernels.layout)

    def localParameter(self, parameter: Tree, aggregator: Tree) -> Tree:
        """θ as the next point of this interval sees it: θ itself, unless the kernel trains on its own copy.

        Such a copy is θ and what this worker's aggregator has gathered since the barrier, nothing else; so it
        ends with the interval, and a conformance check can follow the kernel point by point.
        """
        return parameter

    def work(self, columns: int) -> float:
        """Multiplications for one visit of a point, roughly: decides how many workers a small job has by default.
        Infinite where nothing is known; the job then has one for each core."""
        return math.inf
