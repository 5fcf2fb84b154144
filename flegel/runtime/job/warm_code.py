"""Fills the cache of compiled code: tiny jobs, one for each kernel that a user may ask for. Keeps no result.

Only a job knows all that a job compiles, so jobs are run: two iterations on a few rows, in a thread of this process.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from flegel.algorithm import Algorithm
from flegel.algorithms import BUILTINS
from flegel.core.pytree import protected
from flegel.core.row_windows import RowWindow, RowWindows
from flegel.core.shard import Sparse, pack_tiles
from flegel.declarations.kernels import KernelHooks
from flegel.declarations.optional import hook
from flegel.errors import FlegelWarning
from flegel.job import Criteria, Job, SyncSpec
from flegel.runtime import clock
from flegel.runtime.backends.numba.team import compiling_loops
from flegel.runtime.job.find_algorithm import find_builtin
from flegel.runtime.job.request import Request, open_job_data
from flegel.runtime.job.run import execute
from flegel.runtime.job.teams import obstacle
from flegel.runtime.system.parent_death import die_with_parent

EXAMPLE_ROWS, EXAMPLE_COLUMNS = 2048, 8  # enough that compiled code lays them out
WIDE = 64  # columns of rows that have a kernel of their own, where an algorithm has one for them
DTYPES = ("float32", "float64")


class Case(NamedTuple):
    """Something that is compiled separately."""

    algorithm: Algorithm
    name: str
    dtype: str
    sparse: bool
    weighted: bool

    @property
    def columns(self) -> int:
        """Wide rows where these hyper-parameters have a layout for them."""
        layout = hook(self.algorithm, KernelHooks.layout_for)
        return WIDE if layout(WIDE) != layout(EXAMPLE_COLUMNS) else EXAMPLE_COLUMNS

    @property
    def kind(self) -> str:
        """Its rows, for people."""
        return " ".join([self.dtype, *["sparse"][: self.sparse], *["with weights"][: self.weighted]])

    def __str__(self) -> str:
        return f"{self.name} {self.kind}"


def own_kernels() -> list[str]:
    """Built-in algorithms whose kernels are compiled here."""
    return [name for name in BUILTINS if BUILTINS[name].startswith("flegel.algorithms.")]


def variants(name: str) -> list[Algorithm]:
    """An algorithm with each of the hyper-parameters that are compiled separately."""
    cls = find_builtin(name)
    return [cls(**hyper) for hyper in cls.kernels.compiled_apart]


def cases(name: str, algorithms: list[Algorithm], dtypes: tuple[str, ...], weights: bool) -> Iterator[Case]:
    """What there is to compile for them."""
    for algorithm in algorithms:
        default = type(algorithm)().hyper()
        chosen = {key: value for key, value in algorithm.hyper().items() if value is not default[key]}
        words = " ".join([name, *(f"{key}={value}" for key, value in chosen.items())])
        for dtype in dtypes:
            for sparse in (False, True)[: 1 + algorithm.accepts.sparse]:
                for weighted in (False, True)[: 1 + (weights and algorithm.accepts.weighted)]:
                    yield Case(algorithm, words, dtype, sparse, weighted)


def everything() -> list[Case]:
    """All that jobs of built-in algorithms compile, without weights; what most first jobs need comes first: dense rows,
    the first shape of each algorithm, float64."""
    ranked = []
    for name in own_kernels():
        for place, algorithm in enumerate(variants(name)):
            for case in cases(name, [algorithm], DTYPES, weights=False):
                ranked.append(((case.sparse, place, case.dtype != "float64"), case))
    return [case for _, case in sorted(ranked, key=lambda pair: pair[0])]


class CaseGroup(NamedTuple):
    """Cases that differ in hyper-parameters alone."""

    title: str
    cases: list[Case]


def groups(name: str, algorithms: list[Algorithm], dtypes: tuple[str, ...], weights: bool) -> list[CaseGroup]:
    """What there is to compile for them, as people are told: a kernel serves many numbers of clusters, and which these
    are says nothing to them."""
    by_kind: dict[str, list[Case]] = {}
    for case in cases(name, algorithms, dtypes, weights):
        by_kind.setdefault(case.kind, []).append(case)
    many = f", {len(algorithms)} kernels for all values of its hyper-parameters" if len(algorithms) > 1 else ""
    return [
        CaseGroup(f"{found[0].name if len(algorithms) == 1 else name} {kind}{many}", found)
        for kind, found in by_kind.items()
    ]


def compile_case(case: Case) -> float:
    """Seconds that it took; a few hundredths where everything was there."""
    began = clock.now()
    job = Job(workers=1, processes=False, sync=SyncSpec(name="bsp"), criteria=Criteria(max_iterations=2))
    data = open_job_data(job, example_rows(case), case.algorithm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FlegelWarning)
        execute(Request(case.algorithm, data, job))
        if not obstacle(case.algorithm):
            with compiling_loops():
                execute(Request(case.algorithm, data, msgspec.structs.replace(job, threads=2)))
    if (
        not case.sparse and hook(case.algorithm, KernelHooks.layout_for)(case.columns) == "tiles"
    ):  # many rows from Python are laid out by code of their own
        some = RowWindow(protected(np.ones((EXAMPLE_ROWS, case.columns), case.dtype)), np.arange(EXAMPLE_ROWS))
        pack_tiles(RowWindows((EXAMPLE_ROWS, case.columns), some.rows.dtype, lambda: iter([some])))
    return clock.now() - began


def main() -> None:
    """Entry point of a `CompilerProcess`: one case, as JSON."""
    die_with_parent()
    name, hyper, dtype, sparse, weighted = json.loads(sys.argv[1])
    compile_case(Case(find_builtin(name)(**hyper), name, dtype, sparse, weighted))


def example_rows(case: Case) -> Any:
    """Small example rows of this case's form: rows, labels or None, weights or None. Whole numbers from 1 on, which are
    codes of categories and counts as well, and labels above 0 on both sides of 0.5: every built-in algorithm takes
    them."""
    rng = np.random.default_rng(0)
    columns = case.columns
    dense = rng.integers(1, 9, (EXAMPLE_ROWS, columns)).astype(case.dtype)
    labels = np.where(dense[:, 0] > 4, 1.0, 0.25) if case.algorithm.accepts.supervised else None
    weights = np.ones(EXAMPLE_ROWS) if case.weighted else None
    if not case.sparse:
        return dense, labels, weights
    starts = np.arange(0, EXAMPLE_ROWS * columns + 1, columns)
    rows = Sparse(starts, np.tile(np.arange(columns, dtype=np.int32), EXAMPLE_ROWS), dense.reshape(-1), columns)
    return rows, labels, weights


if __name__ == "__main__":
    main()
