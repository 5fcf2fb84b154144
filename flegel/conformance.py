"""`check_algorithm`: does a class keep the promises that the engine builds on? Users call it on their own classes.

It trains on a few hundred generated rows (or on rows that the caller gives), in this process, and raises
`ConformanceError` with the first promise that is broken. It never starts workers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from flegel import tree
from flegel.algorithm import Algorithm, Sample
from flegel.errors import ConformanceError, FlegelError, UsageError
from flegel.messages import Beat
from flegel.runtime.code import instantiate, reference
from flegel.runtime.compile import Built, build_kernel, interpreted
from flegel.runtime.flag import new_flag
from flegel.runtime.wire import Numbered, Parcel, decode
from flegel.share import Share, Sparse, make_share
from flegel.spec import AlgorithmRef
from flegel.tree import Array, Tree

ROWS, COLUMNS = 331, 6


def check_algorithm(
    algorithm: Algorithm | type[Algorithm], features: Any = None, labels: Array | None = None
) -> list[str]:
    """The promises that hold, in words; raises `ConformanceError` at the first that does not."""
    subject = algorithm() if isinstance(algorithm, type) else algorithm
    passed: list[str] = []
    for dtype in (np.float32, np.float64):
        for promise, check in PROMISES:
            trial = _Trial(subject, features, labels, np.dtype(dtype))
            try:
                check(trial)
            except ConformanceError:
                raise
            except UsageError:
                raise
            except Exception as error:
                raise ConformanceError(
                    f"{trial.name}: while checking that {promise}: {type(error).__name__}: {error}"
                ) from error
            passed.append(f"{promise} ({np.dtype(dtype).name})")
    return passed


class _Trial:
    """Fresh data, θ(0) and statistics for one check."""

    def __init__(self, algorithm: Algorithm, features: Any, labels: Array | None, dtype: np.dtype[Any]) -> None:
        self.algorithm, self.name = algorithm, type(algorithm).__name__
        rng = np.random.default_rng(7)
        if features is None:
            centres = rng.normal(scale=3.0, size=(4, COLUMNS))
            which = rng.integers(len(centres), size=ROWS)
            features = np.abs(centres[which] + rng.normal(size=(ROWS, COLUMNS))) + 0.1
            labels = (which % 2).astype(np.float64)
        if not isinstance(features, Sparse):
            features = np.ascontiguousarray(features, dtype=dtype)
        self.features = features
        self.labels = labels if algorithm.supervised else None
        self.points = len(features.indptr) - 1 if isinstance(features, Sparse) else len(features)
        self.columns = features.columns if isinstance(features, Sparse) else features.shape[1]
        self.sample = Sample(features, self.labels, self.points, self.columns)
        algorithm.validate(self.sample)
        self.parameter: Tree = tree.as_float64(algorithm.initParameter(self.sample, np.random.default_rng(3)))
        self.zero: Tree = tree.zeros_like(algorithm.initAggregator(self.sample, tree.present(self.parameter)))

    def share(self, layout: str) -> Share:
        state = self.algorithm.initState(self.points, self.columns, np.random.default_rng(5))
        return make_share(self.features, self.labels, state, layout)

    def kernel(self, share: Share) -> Built:
        return build_kernel(self.algorithm, share, self.parameter, self.zero)

    def layout(self) -> str:
        return self.algorithm.layout

    def update(self, total: Tree, parameter: Tree) -> Tree:
        new = self.algorithm.updateParameter(tree.present(total), tree.present(parameter))
        return tree.as_float64(new)

    def require(self, truth: bool, sentence: str) -> None:
        if not truth:
            raise ConformanceError(f"{self.name}: {sentence}.")


def _close(a: Tree, b: Tree, relative: float) -> bool:
    """Equal up to rounding, relative to the largest number of each field."""
    for x, y in zip(tree.flatten(a), tree.flatten(b), strict=True):
        scale = max(float(np.abs(y).max(initial=0.0)), 1e-30)
        if x.shape != y.shape or float(np.abs(x - y).max(initial=0.0)) > relative * scale:
            return False
    return True


def _serializes(trial: _Trial) -> None:
    frames = Numbered("job", 0, 0, 0).wrap(Beat(0), Parcel(tree.flatten(trial.parameter)))
    _, arrays = decode(frames)
    trial.require(
        all(np.array_equal(a, b) for a, b in zip(arrays, tree.flatten(trial.parameter), strict=True)),
        "initParameter returns something other than an array or a NamedTuple of arrays of numbers",
    )
    trial.require(tree.is_finite(trial.parameter), "initParameter returns numbers that are not finite")


def _travels(trial: _Trial) -> None:
    ref = reference(trial.algorithm)
    again = instantiate(AlgorithmRef(ref.name, json.loads(json.dumps(ref.hyper)), ref.source))
    same = all(np.array_equal(v, again.hyper()[k]) for k, v in trial.algorithm.hyper().items())
    trial.require(same, "its hyper-parameters change on the way to a worker")
    try:
        type(trial.algorithm)(no_such_hyper_parameter=1)
    except FlegelError:
        return
    trial.require(False, "an unknown hyper-parameter is accepted; call super().__init__(**hyper)")


def _block_equals_points(trial: _Trial) -> None:
    plain, fast = trial.share("rows"), trial.share(trial.layout())
    built = trial.kernel(fast)
    one, other = tree.copy(trial.zero), tree.copy(trial.zero)
    parameter = trial.parameter
    by_hooks = interpreted(trial.algorithm)
    for iteration in range(2):
        tree.clear(one, trial.algorithm.spent)
        tree.clear(other, trial.algorithm.spent)
        by_hooks(plain, parameter, one, 0, plain.points, iteration, new_flag())
        built.kernel(fast, parameter, other, 0, fast.points, iteration, new_flag())
        tolerance = 1e-4 if getattr(trial.features, "dtype", np.float64) == np.float32 else 1e-8
        trial.require(_close(one, other, tolerance), f"block ({built.kind}) and per-point statistics differ")
        trial.require(
            np.allclose(plain.state_rows(), fast.state_rows(), rtol=1e-3, atol=1e-5),
            f"block ({built.kind}) and per-point leave different hidden states",
        )
        trial.require(np.array_equal(plain.halted, fast.halted), "block and per-point halt different points")
        parameter = trial.update(one, parameter)


def _stops(trial: _Trial) -> None:
    share = trial.share(trial.layout())
    kernel = trial.kernel(share).kernel
    total, flag = tree.copy(trial.zero), new_flag()
    flag[0] = 1
    reached = kernel(share, trial.parameter, total, 0, share.points, 0, flag)
    trial.require(reached == 0 and _close(total, trial.zero, 0.0), "the kernel trains on although the flag is up")
    half = kernel(share, trial.parameter, total, 0, share.points // 2, 0, new_flag())
    trial.require(share.points // 2 <= half <= share.points, "the kernel stops before the end it was given")
    end = kernel(share, trial.parameter, total, half, share.points, 0, new_flag())
    whole = tree.copy(trial.zero)
    kernel(trial.share(trial.layout()), trial.parameter, whole, 0, share.points, 0, new_flag())
    trial.require(end == share.points and _close(total, whole, 1e-6), "two half passes are not one pass")


def _conserves(trial: _Trial) -> None:
    """Whatever happened before, after a pass under θ the kept statistics are those of a fresh pass under θ."""
    if trial.algorithm.keep_state:
        return  # the state is part of the model and goes on learning, so no fresh pass is like it
    share = trial.share(trial.layout())
    kernel = trial.kernel(share).kernel
    total, parameter, cursor = tree.copy(trial.zero), trial.parameter, 0
    rng = np.random.default_rng(11)
    for iteration in range(6):
        end = min(cursor + int(rng.integers(1, share.points)), share.points)
        cursor = kernel(share, parameter, total, cursor, end, iteration, new_flag()) % share.points
        parameter = trial.update(total, parameter)
        tree.clear(total, trial.algorithm.spent)
    share.halted[:] = 0
    kernel(share, parameter, total, 0, share.points, 6, new_flag())
    fresh = tree.copy(trial.zero)
    kernel(trial.share(trial.layout()), parameter, fresh, 0, share.points, 6, new_flag())
    tree.clear(total, trial.algorithm.spent)
    tree.clear(fresh, trial.algorithm.spent)
    trial.require(
        _close(total, fresh, 1e-5),
        "statistics do not conserve: updateDataPoint must return the change since the point's last visit",
    )


def _adds(trial: _Trial) -> None:
    """`aggregate` is addition, in any order; otherwise a lost worker could not be subtracted."""
    if not trial.algorithm.merges_reports:
        return
    share, kernel = trial.share("rows"), interpreted(trial.algorithm)
    change = tree.copy(trial.zero)
    kernel(share, trial.parameter, change, 0, share.points // 2, 0, new_flag())
    target = tree.add(tree.copy(trial.zero), change)
    result = trial.algorithm.aggregate(target, change)
    merged = target if result is None else result
    expected = tree.add(tree.copy(change), change)
    trial.require(_close(merged, expected, 1e-12), "aggregate(target, aggregator) is not target + aggregator")


def _answers(trial: _Trial) -> None:
    share = trial.share(trial.layout())
    total = tree.copy(trial.zero)
    trial.kernel(share).kernel(share, trial.parameter, total, 0, share.points, 0, new_flag())
    parameter = trial.update(total, trial.parameter)
    trial.require(tree.same_shape(parameter, trial.parameter), "updateParameter returns θ in another shape")
    trial.require(tree.is_finite(parameter), "updateParameter returns numbers that are not finite")
    value = trial.algorithm.objective(tree.present(total), tree.present(parameter))
    trial.require(value is None or bool(np.isfinite(value)), f"objective returns {value}")
    verdict = trial.algorithm.terminationCheck(tree.present(total), 1)
    trial.require(isinstance(verdict, bool | np.bool_), f"terminationCheck returns {verdict!r}, not True or False")
    if type(trial.algorithm).predict is not Algorithm.predict:
        found = trial.algorithm.predict(trial.features, tree.present(parameter))
        trial.require(len(found) == trial.points, "predict does not return one answer per row")


PROMISES: list[tuple[str, Callable[[_Trial], None]]] = [
    ("parameters serialize", _serializes),
    ("class and hyper-parameters travel to workers", _travels),
    ("block equals per-point", _block_equals_points),
    ("the stop flag stops, and training resumes where it stopped", _stops),
    ("statistics conserve", _conserves),
    ("aggregate is addition", _adds),
    ("hooks answer in the right shape", _answers),
]
