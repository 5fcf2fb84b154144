"""What a job needs before its workers are loaded: θ(0), empty statistics, a compiled kernel. Starts no process.

Runs the hooks that look at the data, in the order in which they can fail cheaply.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from functools import partial
from typing import Any, Protocol

import numpy as np

from flegel.algorithm import MOST_CLASSES, Algorithm, Sample, keep_contributions, sample_point, visit_hook
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.hook_limits import BUILT_IN_START_SECONDS, COMPILING_SECONDS
from flegel.core.parallel_parts import GivenThreads, giving
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard, Sparse, check_state, make_shard, unit_rows
from flegel.core.stop_flag import new_flag
from flegel.datasets import Dataset
from flegel.datasets.rows import scale
from flegel.declarations.accepts import RowHooks
from flegel.declarations.kernels import Kernel, KernelHooks
from flegel.declarations.optional import defines, hook
from flegel.errors import AlgorithmError, DataError, FlegelError, FlegelWarning
from flegel.loading.class_source import is_built_in
from flegel.params import hook_values
from flegel.params.hooks import guarded, is_write_error
from flegel.params.ledger import sums_alone
from flegel.runtime import clock
from flegel.runtime.backends.numba.compiler_process import CompilerProcess
from flegel.runtime.backends.numba.interpreted_loop import fold_change, interpreted
from flegel.runtime.backends.numba.kernels import Built, build_kernel, choice_of, warm
from flegel.runtime.job.compiler_thread import CompilerThread, compiled
from flegel.runtime.job.request import Request
from flegel.runtime.job.teams import NotCompiled
from flegel.runtime.processes.blas_threads import by_one_thread
from flegel.runtime.system.processors import computing_threads
from flegel.runtime.worker.current_hook import EnteredHook

_loaded: set[Hashable] = set()
"""Classes, their kernels and the forms of all arrays for which this process has code in memory: a further job of the
same kind has nothing to compile, nor to read from the cache."""

LARGEST_WEIGHT, LEAST_WEIGHT = 1e100, 1e-100
"""Of all points together."""


def _form(array: Array | None) -> tuple[Any, ...] | None:
    """What code may depend on: the type, and how long a row is."""
    return None if array is None else (array.dtype, array.ndim, array.shape[1:])


def _arrays(shard: Shard) -> tuple[Array | None, ...]:
    rows = shard.features
    parts = rows[:3] if isinstance(rows, Sparse) else (rows,)
    return (*parts, shard.labels, shard.state, shard.weights)


class StartHooks(Protocol):
    """What a part of the job has to say about θ(0); `part.py` tells when each is asked."""

    def sampled(self, sample: Sample) -> None: ...

    def former_parameter(self) -> Tree | None: ...

    def joint_sample(self, sample: Sample) -> Sample: ...

    def check_parameter(self, parameter: Tree, fresh: Callable[[], Tree]) -> None: ...

    def explain(self, error: FlegelError) -> FlegelError | None: ...

    def place_parameter(self, parameter: Tree) -> Tree: ...


class PreparedJob:
    """θ(0), empty statistics, and a compiled kernel."""

    def __init__(self, request: Request, scaling: scale.Scaling | None, parts: Sequence[StartHooks] = ()) -> None:
        """Call the hooks once on a sample, in this process, so that wrong shapes and exceptions show before any worker
        starts."""
        self.request, self.algorithm, self._parts = request, request.algorithm, parts
        self.compiler: CompilerProcess | None = None
        """A process that compiles the kernel, where there is one."""
        self.sample = take_sample(request.data, request.job.seed, self.algorithm.accepts.small_sample)._replace(
            class_names=request.data.classes
        )
        check_weights(self.sample, request.data.name)
        if self.algorithm.accepts.labels == "classes":
            self.sample = with_classes(self.sample, request.data)
        for part in parts:
            part.sampled(self.sample)
        if scaling is not None:
            rows = self.sample.features
            own = rows if isinstance(rows, Sparse) else rows.copy()
            self.sample = self.sample._replace(features=scale.apply(own, scaling))
        if hook(self.algorithm, RowHooks.unit_rows)():
            self.sample = self.sample._replace(features=unit_rows(self.sample.features))
        self._hook("validate", self.sample)
        self.parameter: Tree = self._first_parameter()
        presented = pytree.presented(self.parameter)
        count = min(active().starts.probe_rows, self.sample.points)
        visit = visit_hook(type(self.algorithm))
        self._guard(visit, lambda: keep_contributions(self.algorithm, self.sample, presented))
        self.state: Array = self._hook("initState", count, self.sample.columns, np.random.default_rng(0))
        check_state(self.state, count)
        default = type(self.algorithm).initAggregator is Algorithm.initAggregator
        maker = visit if default else "initAggregator"  # the default looks at one point's change
        request.observers.phase("init", maker)
        made = self._guard(maker, lambda: self.algorithm.initAggregator(self.sample, presented))
        self.zero: Tree = hook_values.tree(made, maker, lambda v: pytree.zeros_like(v, self.algorithm.placement.typed))
        if not default and not defines(self.algorithm, KernelHooks.kernel):
            self._check_first_visit(presented)
        if not sums_alone(self.algorithm):
            self._check_aggregate(self.zero)

    def _first_parameter(self) -> Tree:
        """θ(0): from an earlier run or another group, from an earlier job's θ, or by the algorithm; checked."""
        request, rng = self.request, np.random.default_rng(self.request.job.seed)
        known = (part.former_parameter() for part in reversed(self._parts))
        fresh = next((found for found in known if found is not None), None)
        hook = "initParameter" if request.start is None else "continueParameter"
        if fresh is None:
            drawn = self.sample
            for part in self._parts:
                drawn = part.joint_sample(drawn)
            given = (drawn, rng) if request.start is None else (request.start, self.sample, rng)
            with giving(GivenThreads(request.job.threads or computing_threads(), by_one_thread)):
                fresh = self._hook(hook, *given)
        typed = self.algorithm.placement.typed
        parameter: Tree = hook_values.tree(fresh, hook, lambda v: pytree.starting(v, typed))
        for part in self._parts:
            part.check_parameter(parameter, self._fresh_parameter)
        if not pytree.is_finite(parameter):
            raise AlgorithmError("initParameter returned numbers that are not finite.")
        for part in self._parts:
            parameter = part.place_parameter(parameter)
        return parameter

    def compile(self) -> Built:
        """In this process first, so that workers find the code in the cache; a job that goes on has left it there."""
        if self.algorithm.kernels.backend:  # it compiles nothing
            return Built(interpreted(self.algorithm), self.algorithm.kernels.backend)
        if self.compiler is not None:
            self.compiler.wait()
        if self.request.interpreted:
            return self._interpreted(Built(interpreted(self.algorithm), "interpreted", self.request.interpreted))
        shard = self._shard(active().starts.probe_rows, self.state)
        build = partial(build_kernel, self.algorithm, shard, self.parameter, self.zero, cold=self.request.resumed)
        built: Built = self._guard(visit_hook(type(self.algorithm)), lambda: compiled(build), extra=COMPILING_SECONDS)
        if built.kind != "interpreted":
            return built
        if self.request.otherwise is not None:
            raise NotCompiled(built.note)
        return self._interpreted(built)

    def _interpreted(self, built: Built) -> Built:
        """This kernel; users hear why it is slow."""
        name = f"{type(self.algorithm).__name__}.{visit_hook(type(self.algorithm))}"
        warnings.warn(
            f"{name} runs interpreted, many times slower, because numba cannot compile it: {built.note}",
            FlegelWarning,
            stacklevel=3,
        )
        return built

    def compile_beside(self, ending: contextlib.ExitStack) -> Built | None:
        """A kernel of ours, which a thread compiles while workers start and read their rows; they wait for its code.

        None where it has to be compiled first (whether hooks compile decides how workers run them, and users hear of
        errors before training), and where a job goes on, which has left its code in the cache.
        """
        if not is_built_in(self.algorithm) or self.algorithm.kernels.backend or self.request.resumed:
            return None
        shard = self._shard(active().starts.probe_rows, self.state)
        with EnteredHook("kernel"):
            own = hook(self.algorithm, KernelHooks.kernel)(shard)
        if own is None:
            return None
        choice = choice_of(self.algorithm, shard)
        types = (type(self.algorithm), choice, shard.layout, *map(_form, (*_arrays(shard), *self._trees())))
        if types not in _loaded:
            work = partial(self._warm, own, shard, types)
            with contextlib.suppress(RuntimeError):  # no room for a thread: whoever needs the code compiles it
                ending.enter_context(CompilerThread(work))
        return Built(own, "hand-written", choice)

    def _warm(self, kernel: Kernel, shard: Shard, types: Hashable) -> None:
        if self.compiler is not None:
            self.compiler.wait()
        with contextlib.suppress(Exception):  # workers meet the same error, and say where
            self._some_rows(np.random.default_rng(0))  # what lays rows out: workers need it first
            warm(kernel, shard, self.parameter, self.zero)
            _loaded.add(types)

    def _trees(self) -> list[Array]:
        """The arrays of θ and of the statistics."""
        return [*pytree.flatten(self.parameter), *pytree.flatten(self.zero)]

    def _shard(self, most: int, state: Array) -> Shard:
        """The first rows of the sample, as a worker would have them."""
        features, labels = self.sample.features, self.sample.labels
        count = min(most, self.sample.points)
        labels = self.algorithm.accepts.kept_labels(None if labels is None else labels[:count])
        if isinstance(features, Sparse):
            end = features.indptr[count]
            few: Array | Sparse = Sparse(
                features.indptr[: count + 1], features.indices[:end], features.values[:end], features.columns
            )
        else:
            few = features[:count]
        weights = None if self.sample.weights is None else self.sample.weights[:count]
        return make_shard(
            few, labels, state, hook(self.algorithm, KernelHooks.layout_for)(self.sample.columns), weights=weights
        )

    def _some_rows(self, rng: np.random.Generator) -> Shard:
        """More rows of the sample than are laid out by hand."""
        count = min(active().starts.timed_rows, self.sample.points)
        return self._shard(count, self.algorithm.initState(count, self.sample.columns, rng))

    def pass_seconds(self, built: Built) -> float:
        """Seconds of one worker for all rows, from a kernel that is timed on some of them; the better of two calls."""
        shard, flag = self._some_rows(np.random.default_rng(0)), new_flag()
        count = shard.points
        sums, fixed = pytree.copy(self.zero), pytree.read_only(self.parameter)  # the types that training has
        seconds = []
        for _ in range(2):
            began = clock.now()
            built.kernel(shard, fixed, sums, 0, count, 0, flag)
            seconds.append(clock.now() - began)
        return min(seconds) / count * self.request.data.rows

    def _fresh_parameter(self) -> Tree:
        """θ(0) as a new job would have it, for its form. A copy makes it: what the algorithm has learned stays."""
        twin, typed = copy(self.algorithm), self.algorithm.placement.typed
        rng = np.random.default_rng(self.request.job.seed)
        self.request.observers.phase("init", "initParameter")
        extra = BUILT_IN_START_SECONDS if is_built_in(twin) else 0.0
        hook = "initParameter"
        made = guarded(twin, hook, "before training", lambda: twin.initParameter(self.sample, rng), extra=extra)
        return hook_values.tree(made, hook, lambda v: pytree.starting(v, typed))

    def _hook(self, name: str, *args: Any) -> Any:
        self.request.observers.phase("init", name)
        extra = BUILT_IN_START_SECONDS if is_built_in(self.algorithm) else 0.0
        return self._guard(name, lambda: getattr(self.algorithm, name)(*args), extra)

    def _guard(self, name: str, call: Callable[[], Any], extra: float = 0.0) -> Any:
        """Call a hook of the user's class before training; parts may explain its error better. `name`: of the hook;
        `extra`: seconds that it may take besides the usual limit."""
        try:
            return guarded(self.algorithm, name, "before training", call, extra=extra)
        except AlgorithmError as error:
            for part in self._parts:
                if (better := part.explain(error)) is not None:
                    raise better from error
            raise

    def _check_first_visit(self, presented: Tree) -> None:
        """One point is visited by the hooks as they are. θ refuses writes, which compiled code does not notice, and
        `aggregate` gets what it gets on workers: a point's change, which may have another form than the statistics."""
        changes: list[Tree] = []

        def visit() -> None:
            """Visit one point in the interpreter and keep its change. Errors are left to the compiler, but for writes
            to arrays that hooks must not change."""
            try:
                point = sample_point(self.algorithm, self.sample)
                changes.append(self.algorithm.updateDataPoint(point, presented, 0))
            except Exception as error:
                if is_write_error(error):
                    raise
            finally:
                self.algorithm._halting = False

        self._guard(visit_hook(type(self.algorithm)), visit)
        if changes and type(self.algorithm).aggregate is not Algorithm.aggregate:
            self._check_aggregate(changes[0])

    def _check_aggregate(self, change: Tree) -> None:
        self.request.observers.phase("init", "aggregate")
        self._guard("aggregate", lambda: fold_change(self.algorithm, pytree.copy(self.zero), change))


def check_weights(sample: Sample, name: str) -> None:
    """Sums over all points are divided by their weight, and hold squares of it."""
    if sample.weights is None:
        return
    if not sample.mass > 0.0:
        raise DataError(f"Every weight of {name} is 0; at least one row must have a positive one.")
    if sample.mass > LARGEST_WEIGHT:
        raise DataError(
            f"The weights of {name} sum to {sample.mass:.3g}, more than {LARGEST_WEIGHT:g}; divide all of them by the "
            "same number."
        )
    if sample.mass < LEAST_WEIGHT:
        raise DataError(
            f"The weights of {name} sum to {sample.mass:.3g}, less than {LEAST_WEIGHT:g}; multiply all of them by the "
            "same number."
        )


def take_sample(data: Dataset, seed: int, small: bool = False) -> Sample:
    """All rows in their order where they are few; else the first `starts.head_rows`, then others drawn evenly, and what
    all rows weigh. `small`: few rows are enough."""
    rules = active().starts
    most = rules.fewest_sample_rows if small else sample_rows(data.columns, data.sparse)
    if data.rows <= most:
        rows = data.read() if data.in_memory else data.draw(data.rows, seed)
        return Sample(rows.features, rows.labels, data.rows, data.columns, rows.weights)
    total = data.total_weight()
    if data.in_memory and not data.sparse:
        rows = data.draw(most - rules.head_rows, seed, rules.head_rows)
        return Sample(rows.features, rows.labels, data.rows, data.columns, rows.weights, total_weight=total)
    head = data.source.take(np.array([[0, rules.head_rows]]))
    rows = data.draw(most - rules.head_rows, seed)
    labels, weights = (
        None if a is None or b is None else np.concatenate([a, b])
        for a, b in ((head.labels, rows.labels), (head.weights, rows.weights))
    )
    features = _stack(head.features, rows.features)
    return Sample(features, labels, data.rows, data.columns, weights, total_weight=total)


def with_classes(sample: Sample, data: Dataset) -> Sample:
    """The sample with the classes of all rows: a sample lacks rare ones. Reads labels where the sample has not all."""
    if sample.labels is not None and len(sample.labels) == data.rows:
        return sample._replace(classes=np.unique(sample.labels))
    return sample._replace(classes=data.label_values(MOST_CLASSES))


def sample_rows(columns: int, sparse: bool) -> int:
    """Rows of a sample: fewer where they are wide, since the first parameters are chosen in memory, by one process."""
    rules = active().starts
    dense = max(rules.fewest_sample_rows, rules.sample_numbers // max(1, columns))
    return rules.sample_rows if sparse else min(rules.sample_rows, dense)


def _stack(a: Array | Sparse, b: Array | Sparse) -> Array | Sparse:
    """The rows of `a`, then those of `b`, dense or sparse."""
    if isinstance(a, Sparse) and isinstance(b, Sparse):
        return Sparse(
            np.concatenate([a.indptr, b.indptr[1:] + a.indptr[-1]]),
            np.concatenate([a.indices, b.indices]),
            np.concatenate([a.values, b.values]),
            a.columns,
        )
    return np.concatenate([a, b])  # type: ignore[arg-type, unused-ignore]
