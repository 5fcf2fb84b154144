"""`check_algorithm`: does a class keep the promises that the engine builds on? Users call it on their own classes.

It trains on a few hundred generated rows (or on rows that the caller gives), in this process, and raises
`ConformanceError` with the first promise that is broken. It never starts workers.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flegel.algorithm import Algorithm, merges_reports, predicts
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard, Sparse, make_shard, unit_rows
from flegel.core.sharding import Cuts, cut, make_cuts
from flegel.core.stop_flag import new_flag
from flegel.datasets.dataset import Dataset
from flegel.datasets.rows.arrays import ArraySource
from flegel.datasets.rows.sparse_arrays import SparseSource
from flegel.declarations.accepts import RowHooks
from flegel.declarations.hidden_state import StateHooks
from flegel.declarations.kernels import KernelHooks
from flegel.declarations.optional import defines, hook
from flegel.declarations.placement import PlacementHooks
from flegel.errors import ConformanceError, FlegelError, UsageError, own_place
from flegel.job import AlgorithmRef, Job
from flegel.loading.class_source import in_plain, instantiate, reference
from flegel.loading.code_gate import Consent
from flegel.messages import WorkerBeat
from flegel.params.sharded import sharding_of
from flegel.runtime.backends.conformance import check_backend
from flegel.runtime.backends.numba.interpreted_loop import as_hooks_see, data_point, interpreted
from flegel.runtime.backends.numba.kernels import Built, build_kernel
from flegel.runtime.backends.registry import choose
from flegel.runtime.job.compiler_thread import compiled
from flegel.runtime.job.prepared_job import PreparedJob
from flegel.runtime.job.request import Request, check_data
from flegel.runtime.transport.codec import PackedArrays, Sequencer, decode

CHECKED_ROWS, CHECKED_COLUMNS = 331, 6  # of the table that hooks are checked with: no multiple of a tile
NARROW_TOLERANCE = 1e-4  # of sums in float32, relative to the largest of their field
ROUNDING_OF_A_SHARE = float(np.finfo(np.float32).eps)
"""What a number near 1, such as a responsibility, is not known better than in float32. The entropies of rows that are
far from other clusters are sums of such remains, and nothing else."""
CHECK_SEED = 3  # of the job that a check prepares; any fixed number
HOOKS = frozenset(
    {
        "aggregate",
        "contribution",
        "hidden",
        "initAggregator",
        "initParameter",
        "initState",
        "kernel",
        "objective",
        "predict",
        "statistics_of",
        "terminationCheck",
        "updateDataPoint",
        "updateParameter",
        "validate",
    }
)


def check_algorithm(
    algorithm: Algorithm | type[Algorithm], features: Any = None, labels: Array | None = None
) -> list[str]:
    """The promises that hold, one sentence each; raises `ConformanceError` at the first that does not.

    A promise that does not apply to the class, such as conservation where all statistics are spent, is left out.
    """
    return list(kept_promises(algorithm, features, labels))


def kept_promises(
    algorithm: Algorithm | type[Algorithm], features: Any = None, labels: Array | None = None
) -> Iterator[str]:
    """Do what `check_algorithm` does, and yield each promise as soon as it was checked."""
    subject = algorithm() if isinstance(algorithm, type) else algorithm
    if subject.kernels.backend:
        yield from _check_own_backend(subject, features, labels)
        return
    for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        for promise, check in PROMISES:
            try:
                applies = check(Trial(subject, features, labels, dtype))
            except (ConformanceError, UsageError):
                raise
            except Exception as error:
                raise ConformanceError(sentence_for(type(subject).__name__, promise, error)) from error
            if applies:
                yield f"{promise} ({dtype.name})"


def _check_own_backend(algorithm: Algorithm, features: Any, labels: Array | None) -> list[str]:
    """An algorithm with a backend of its own, such as a network: its kernel beside its hooks, in its own precision."""
    if features is None or labels is None:
        raise UsageError(f"{type(algorithm).__name__} is checked on data of the right shape; give some, with --data.")
    few, answers = np.ascontiguousarray(features[:CHECKED_ROWS]), np.asarray(labels)[:CHECKED_ROWS]
    passed = []
    for promise, check in PROMISES[:3]:
        check(Trial(algorithm, few, answers, few.dtype))
        passed.append(promise)
    check_backend(choose("cpu", algorithm.kernels.backend), algorithm, few, answers, close=1e-4)
    return [*passed, "the stop flag stops the kernel", "the kernel equals the hooks, in one call and in several"]


def sentence_for(name: str, promise: str, error: Exception) -> str:
    """What an exception during a check means, in one line, with the line of the user's that it came from."""
    at = own_place(error)
    ending = f", at {at}" if at else ""
    if isinstance(error, FlegelError):
        return f"{name}: {error}{ending}"
    place = next((f for f in reversed(traceback.extract_tb(error.__traceback__)) if f.name in HOOKS), None)
    where = f"{place.name} raised" if place else f"while checking that {promise}:"
    return " ".join(f"{name}: {where} {type(error).__name__}: {error}{ending}".split())


class Trial:
    """Fresh data, θ(0) and statistics for one check."""

    def __init__(self, algorithm: Algorithm, features: Any, labels: Array | None, dtype: np.dtype[Any]) -> None:
        """Rows of four clusters where none are given; θ(0) as a job with the seed `CHECK_SEED` makes it."""
        self.algorithm, self.name = algorithm, type(algorithm).__name__
        rng = np.random.default_rng(7)
        if features is None:
            centres = rng.normal(scale=3.0, size=(4, CHECKED_COLUMNS))
            which = rng.integers(len(centres), size=CHECKED_ROWS)
            features = np.abs(centres[which] + rng.normal(size=(CHECKED_ROWS, CHECKED_COLUMNS))) + 0.1
            labels = (which % 2).astype(np.float64)
        if not isinstance(features, Sparse):
            features = np.ascontiguousarray(features, dtype=dtype)
        self.labels = algorithm.accepts.kept_labels(labels)
        self.features: Any = unit_rows(features) if hook(algorithm, RowHooks.unit_rows)() else features
        self.points = len(features.indptr) - 1 if isinstance(features, Sparse) else len(features)
        self.columns = features.columns if isinstance(features, Sparse) else features.shape[1]
        source = SparseSource if isinstance(features, Sparse) else ArraySource
        data = Dataset("the rows of this check", source(features, labels, origin="the rows of this check"), self.points)
        request = Request(algorithm, data, Job(seed=CHECK_SEED))
        check_data(request)
        prepared = PreparedJob(request, None)  # as in a job: what fails there fails here, with the same sentence
        self.sample, self.zero = prepared.sample, prepared.zero
        self.parameter: Tree = pytree.read_only(prepared.parameter)

    def start(self) -> Tree:
        """θ(0), once more for the seed that gave `parameter`."""
        made = self.algorithm.initParameter(self.sample, np.random.default_rng(CHECK_SEED))
        return pytree.read_only(pytree.starting(made, self.algorithm.placement.typed))

    def shard(self, layout: str, weights: Array | None = None) -> Shard:
        state = self.algorithm.initState(self.points, self.columns, np.random.default_rng(5))
        return make_shard(self.features, self.labels, state, layout, weights=weights)

    def kernel(self, shard: Shard) -> Built:
        return compiled(lambda: build_kernel(self.algorithm, shard, self.parameter, self.zero))

    def layout(self) -> str:
        return hook(self.algorithm, KernelHooks.layout_for)(self.columns)

    def alike(self, a: Tree, b: Tree, relative: float) -> bool:
        """Two sums over all points are equal up to rounding. Where terms cancel, as about a mean, rounding is relative
        to the sizes of the terms, which are then added up."""
        least = self.points * ROUNDING_OF_A_SHARE if relative >= NARROW_TOLERANCE else 0.0
        if _close(a, b, relative, least):
            return True
        sizes, shard = pytree.copy(self.zero), self.shard("rows")
        theta = pytree.presented(as_hooks_see(self.algorithm, self.parameter, shard))
        for i in range(shard.points):
            change = self.algorithm.updateDataPoint(data_point(shard, i), theta, 0)
            if not (merges_reports(self.algorithm) or pytree.same_shape(change, sizes)):
                return False
            pytree.add(sizes, pytree.unflatten(change, [np.abs(each) for each in pytree.flatten(change)]))
        return _close(a, b, relative, least, sizes)

    def update(self, total: Tree, parameter: Tree) -> Tree:
        new = self.algorithm.updateParameter(pytree.present(total), pytree.present(parameter))
        return pytree.read_only(pytree.as_typed(new, parameter))

    def require(self, truth: bool, sentence: str) -> None:
        if not truth:
            raise ConformanceError(f"{self.name}: {sentence}.")


def _close(a: Tree, b: Tree, relative: float, least: float = 0.0, sizes: Tree | None = None) -> bool:
    """Equal up to rounding, relative to the largest number of each field (of `sizes`, where these are given), or within
    `least`."""
    of = b if sizes is None else sizes
    for x, y, size in zip(pytree.flatten(a), pytree.flatten(b), pytree.flatten(of), strict=True):
        scale = max(float(np.abs(size).max(initial=0.0)), 1e-30)
        if x.shape != y.shape or float(np.abs(x - y).max(initial=0.0)) > max(relative * scale, least):
            return False
    return True


def _serializes(trial: Trial) -> bool:
    """θ survives a message, and `initParameter` gives the same θ for the same seed."""
    frames = Sequencer("job", 0, 0, 0).wrap(WorkerBeat(0), PackedArrays(pytree.flatten(trial.parameter)))
    _, arrays = decode(frames)
    trial.require(
        all(np.array_equal(a, b) for a, b in zip(arrays, pytree.flatten(trial.parameter), strict=True)),
        "initParameter returns something other than an array or a NamedTuple of arrays of numbers",
    )
    again = zip(pytree.flatten(trial.parameter), pytree.flatten(trial.start()), strict=True)
    trial.require(
        all(np.array_equal(a, b) for a, b in again),
        "initParameter gives something else for the same seed; draw from the rng that it is given",
    )
    return True


def _travels(trial: Trial) -> bool:
    """The class and its hyper-parameters survive the way to a worker as source text, and unknown ones are refused."""
    ref = in_plain(reference(trial.algorithm, whole=True))
    again = instantiate(AlgorithmRef(ref.name, json.loads(json.dumps(ref.hyper)), ref.source), Consent.PRESENT)
    same = all(np.array_equal(v, again.hyper()[k]) for k, v in trial.algorithm.hyper().items())
    trial.require(same, "its hyper-parameters change on the way to a worker")
    try:
        type(trial.algorithm)(no_such_hyper_parameter=1)
    except FlegelError:
        return True
    trial.require(False, "an unknown hyper-parameter is accepted; call super().__init__(**hyper)")
    return True


def _block_equals_points(trial: Trial) -> bool:
    """Two passes by the kernel and by the hooks point by point: the same statistics, hidden states and halting
    votes."""
    plain, fast = trial.shard("rows"), trial.shard(trial.layout())
    built = trial.kernel(fast)
    one, other = pytree.copy(trial.zero), pytree.copy(trial.zero)
    parameter = trial.parameter
    by_hooks = interpreted(trial.algorithm)
    for iteration in range(2):
        pytree.clear(one, trial.algorithm.statistics.spent)
        pytree.clear(other, trial.algorithm.statistics.spent)
        by_hooks(plain, parameter, one, 0, plain.points, iteration, new_flag())
        built.kernel(fast, parameter, other, 0, fast.points, iteration, new_flag())
        narrow = np.float32 in (getattr(trial.features, "dtype", np.float64), fast.state.dtype)
        tolerance = (
            NARROW_TOLERANCE if narrow else 1e-8
        )  # a kernel may compute in the precision of the states that it keeps
        trial.require(trial.alike(one, other, tolerance), f"block ({built.kind}) and per-point statistics differ")
        trial.require(
            np.allclose(plain.state_rows(), fast.state_rows(), rtol=1e-3, atol=1e-5),
            f"block ({built.kind}) and per-point leave different hidden states",
        )
        trial.require(np.array_equal(plain.halted, fast.halted), "block and per-point halt different points")
        parameter = trial.update(one, parameter)
    return True


def _stops(trial: Trial) -> bool:
    """A kernel visits nothing while the stop flag is set."""
    shard = trial.shard(trial.layout())
    kernel = trial.kernel(shard).kernel
    total, flag = pytree.copy(trial.zero), new_flag()
    flag[0] = 1
    reached = kernel(shard, trial.parameter, total, 0, shard.points, 0, flag)
    trial.require(reached == 0 and _close(total, trial.zero, 0.0), "the kernel trains on although the flag is up")
    return True


def _resumes(trial: Trial) -> bool:
    """Two calls of a kernel for half of the points each give what one call for all points gives."""
    shard = trial.shard(trial.layout())
    kernel = trial.kernel(shard).kernel
    total = pytree.copy(trial.zero)
    half = kernel(shard, trial.parameter, total, 0, shard.points // 2, 0, new_flag())
    trial.require(shard.points // 2 <= half <= shard.points, "the kernel stops before the end it was given")
    end = kernel(shard, trial.parameter, total, half, shard.points, 0, new_flag())
    whole = pytree.copy(trial.zero)
    kernel(trial.shard(trial.layout()), trial.parameter, whole, 0, shard.points, 0, new_flag())
    trial.require(end == shard.points and trial.alike(total, whole, 1e-6), "two half passes are not one pass")
    return True


def _conserves(trial: Trial) -> bool:
    """Whatever happened before, after a pass under θ the kept statistics are those of a fresh pass under θ."""
    apart = (*trial.algorithm.statistics.spent, *trial.algorithm.statistics.lagging)
    if set(pytree.names(trial.zero)) <= set(apart):
        return False  # nothing is kept from one barrier to the next, or nothing that the last visit alone decides
    if trial.algorithm.state.kept and not trial.algorithm.statistics.lagging:
        return False  # the state is part of the model and goes on learning, and nothing says which sums follow it
    shard = trial.shard(trial.layout())
    kernel = trial.kernel(shard).kernel
    total, parameter, cursor = pytree.copy(trial.zero), trial.parameter, 0
    rng = np.random.default_rng(11)
    for iteration in range(6):
        end = min(cursor + int(rng.integers(1, shard.points)), shard.points)
        cursor = kernel(shard, parameter, total, cursor, end, iteration, new_flag()) % shard.points
        parameter = trial.update(total, parameter)
        pytree.clear(total, trial.algorithm.statistics.spent)
    shard.halted[:] = 0
    kernel(shard, parameter, total, 0, shard.points, 6, new_flag())
    fresh = pytree.copy(trial.zero)
    kernel(trial.shard(trial.layout()), parameter, fresh, 0, shard.points, 6, new_flag())
    pytree.clear(total, apart)
    pytree.clear(fresh, apart)
    asked = "updateDataPoint must return the change since the point's last visit"
    if defines(trial.algorithm, StateHooks.hidden) or type(trial.algorithm).contribution is not Algorithm.contribution:
        asked = (
            "the kept terms have the precision of the rows, and one that is a million times larger than others drowns "
            "them; bound it (a distance in a denominator: add a small number)"
        )
    trial.require(trial.alike(total, fresh, 1e-5), f"statistics do not conserve: {asked}")
    return True


def _adds(trial: Trial) -> bool:
    """`aggregate` is addition, in any order; otherwise a lost worker could not be subtracted."""
    if not merges_reports(trial.algorithm):
        return False
    shard, kernel = trial.shard("rows"), interpreted(trial.algorithm)
    change = pytree.copy(trial.zero)
    kernel(shard, trial.parameter, change, 0, shard.points // 2, 0, new_flag())
    target = pytree.add(pytree.copy(trial.zero), change)
    result = trial.algorithm.aggregate(target, change)
    merged = target if result is None else result
    expected = pytree.add(pytree.copy(change), change)
    trial.require(_close(merged, expected, 1e-12), "aggregate(target, aggregator) is not target + aggregator")
    return True


def _weighs(trial: Trial) -> bool:
    """A class that says that it counts weights must not ignore them."""
    if not trial.algorithm.accepts.weighted:
        return False
    sums = []
    for weight in (1.0, 3.0):
        shard = trial.shard("rows", np.full(trial.points, weight))
        total = pytree.copy(trial.zero)
        interpreted(trial.algorithm)(shard, trial.parameter, total, 0, shard.points // 8, 0, new_flag())
        sums.append(total)
    trial.require(
        not _close(sums[0], sums[1], 1e-6),
        "it accepts `weighted` rows, and its statistics are the same for points of weight 1 and of weight 3; multiply "
        "the change in updateDataPoint by dataPoint.weight",
    )
    return True


def _shards(trial: Trial) -> bool:
    """`updateSlice` of the slices gives the slices of `updateParameter`, to the last bit; so does the objective where
    spent statistics are cleared already."""
    algorithm = trial.algorithm
    if algorithm.placement.sharding is None:
        return False
    sharding_of(algorithm)
    shard, kernel = trial.shard("rows"), interpreted(algorithm)
    total, parameter = pytree.copy(trial.zero), trial.parameter
    for iteration in range(2):
        pytree.clear(total, algorithm.statistics.spent)
        kernel(shard, parameter, total, 0, shard.points, iteration, new_flag())
        whole = trial.update(total, parameter)
        for count in (1, 2, 3, 7):
            cuts = make_cuts(algorithm.placement.sharding, parameter, total, count)
            made = sharded_update(algorithm, cuts, total, parameter)
            for (start, stop), found in zip(cuts.slices, made, strict=True):
                wanted = cut(whole, cuts.parameter, start, stop)
                same = zip(pytree.names(wanted), pytree.flatten(wanted), pytree.flatten(found), strict=True)
                for name, one, other in same:
                    trial.require(
                        np.array_equal(one, np.asarray(other, dtype=one.dtype)),
                        f"updateSlice of {start} to {stop} gives another {name} than updateParameter of the whole",
                    )
        kept = pytree.clear(pytree.copy(total), algorithm.statistics.spent)
        values = [algorithm.objective(pytree.present(s), pytree.present(whole)) for s in (total, kept)]
        trial.require(values[0] == values[1], "objective looks at statistics that are spent by then")
        parameter = whole
    return True


def sharded_update(algorithm: Algorithm, cuts: Cuts, total: Tree, parameter: Tree) -> list[Tree]:
    """θ of each slice, made as servers make it."""
    pieces = [
        (pytree.present(cut(total, cuts.statistics, *span)), pytree.present(cut(parameter, cuts.parameter, *span)))
        for span in cuts.slices
    ]
    said = [
        hook(algorithm, PlacementHooks.sliceSummary)(*piece, *span)
        for piece, span in zip(pieces, cuts.slices, strict=True)
    ]
    summary = None if said[0] is None else np.concatenate([each for each in said if each is not None])
    return [
        hook(algorithm, PlacementHooks.updateSlice)(*piece, *span, summary)
        for piece, span in zip(pieces, cuts.slices, strict=True)
    ]


def _answers(trial: Trial) -> bool:
    """One pass and one update: θ keeps its shape, nothing that a hook was shown is written to, all numbers are
    finite."""
    shard = trial.shard("rows")
    total = pytree.copy(trial.zero)
    interpreted(trial.algorithm)(shard, trial.parameter, total, 0, shard.points, 0, new_flag())
    before = pytree.copy(total), pytree.copy(trial.parameter)
    parameter = trial.update(total, trial.parameter)
    untouched = _close(total, before[0], 0.0) and _close(trial.parameter, before[1], 0.0)
    trial.require(untouched, "updateParameter writes into the statistics or the θ that it is shown; return a new θ")
    trial.require(pytree.same_shape(parameter, trial.parameter), "updateParameter returns θ in another shape")
    trial.require(pytree.is_finite(parameter), "updateParameter returns numbers that are not finite")
    value = trial.algorithm.objective(pytree.present(total), pytree.present(parameter))
    trial.require(value is None or bool(np.isfinite(value)), f"objective returns {value}")
    verdict = trial.algorithm.terminationCheck(pytree.present(total), 1)
    trial.require(isinstance(verdict, bool | np.bool_), f"terminationCheck returns {verdict!r}, not True or False")
    if predicts(trial.algorithm):
        found = trial.algorithm.predict(trial.features, pytree.present(parameter))
        trial.require(len(found) == trial.points, "predict does not return one answer per row")
    return True


PROMISES: list[tuple[str, Callable[[Trial], bool]]] = [
    ("parameters serialize", _serializes),
    ("class and hyper-parameters travel to workers", _travels),
    ("hooks answer in the right shape", _answers),
    ("aggregate is addition", _adds),
    ("slices on servers give the same bits", _shards),
    ("weights count", _weighs),
    ("the stop flag stops the kernel", _stops),
    ("block equals per-point", _block_equals_points),
    ("training resumes where it stopped", _resumes),
    ("statistics conserve", _conserves),
]
"""What is cheap and basic first. A check returns False where its promise does not apply."""
