"""The class that users write: one point, six hooks, typed hyper-parameters.

This module never trains anything. The runtime compiles `updateDataPoint` and `aggregate` into one loop over a
block; the coordinator calls the other hooks. Hook names are the paper's (Fig. 5), spelled as in the paper.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import DataPoint, Shard, Sparse
from flegel.core.sharding import Sharding
from flegel.errors import UNDECODABLE, UsageError, nearest
from flegel.job import TOLERANCE
from flegel.loading.input_files import NamesFile

Kernel = Callable[[Shard, Tree, Tree, int, int, int, Array], int]
"""`kernel(share, parameter, aggregator, start, end, iteration, flag) -> position reached`.

Trains points start … end-1, adds their changes to `aggregator` in place, and returns early, at a tile's edge or
after any point, once `flag[0]` is not 0. `start` and `end` may lie inside a tile: its other points are left alone,
at the cost of a whole tile. An `end` behind the last point means the last point. `iteration` is `COUNTING` in the pass
at the end of a job, over copies that were never visited.
"""
MOST_CLASSES = 1000
"""More different labels than this are a quantity, not classes."""
COUNTING = -1
"""The `iteration` that hand-written kernels see when points are only counted: states are thrown away, the statistics
are reported, so they are to be as exact as float64. Hooks see 0."""


class Sample(NamedTuple):
    """What `initParameter` sees: some rows, drawn evenly over the whole data, and the size of the whole."""

    features: Array | Sparse
    labels: Array | None
    points: int
    columns: int
    weights: Array | None = None
    """Of these rows; None where every point weighs 1."""
    classes: Array | None = None
    """The different labels of all rows, in order, for an algorithm whose `labels_are_classes`. None where they are not
    known: labels of other groups, more than `MOST_CLASSES`."""
    class_names: Sequence[str] | None = None
    """Where labels are words: label i stands for the i-th."""

    @property
    def mass(self) -> float:
        """The weight of all points together: exact where the sample holds them all, else an estimate, 5 % too low so
        that the sum over visited points reaches it."""
        if self.weights is None:
            return float(self.points)
        drawn = float(self.weights.sum())
        whole = len(self.weights) == self.points
        return drawn * (1.0 - 1e-6) if whole else 0.95 * drawn / len(self.weights) * self.points


class Evaluation(NamedTuple):
    """One pass over rows that were not trained on, or over all rows again, with a finished model."""

    objective: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class HyperParameter:
    """A typed attribute of an algorithm: settable with --set, validated, saved with the model."""

    name: str
    type: Any
    default: Any
    description: str
    file: NamesFile | None = None
    """Where it may name a file: how that is told."""

    def convert(self, value: Any, owner: str) -> Any:
        """The value in the declared type; from text too, because the command line has nothing else."""
        if _takes_arrays(self.type) and isinstance(value, (np.ndarray, list)):
            return np.asarray(value, dtype=np.float64)
        value = value.item() if isinstance(value, np.generic) else value
        plain = _without_arrays(self.type)
        try:
            if isinstance(value, str) and value[:1] in ("[", "{"):  # lists and tables from the command line
                words = _bare_words(value, plain)
                return msgspec.json.decode(value, type=plain) if words is None else words
            return msgspec.convert(value, plain, strict=not isinstance(value, str))
        except UNDECODABLE as error:  # also those of values that do not fit
            detail = str(error).split(" - at ")[0]
            raise UsageError(f"{owner}: {self.name}={value!r} does not fit ({detail}).") from None


def _bare_words(text: str, hint: Any) -> Any:
    """`[red,light blue]` for a parameter that takes words; None where this is JSON, or no such list."""
    try:
        msgspec.json.decode(text)
    except UNDECODABLE:
        if not (text.startswith("[") and text.endswith("]")):
            return None
        words = [word.strip() for word in text[1:-1].split(",")]
        with contextlib.suppress(*UNDECODABLE):
            text.encode()  # words that no file could hold are none
            return msgspec.convert(words, hint)
    return None


def _takes_arrays(hint: Any) -> bool:
    return hint is np.ndarray or get_origin(hint) is np.ndarray or any(map(_takes_arrays, get_args(hint)))


def _without_arrays(hint: Any) -> Any:
    """The hint without its array alternatives, which msgspec does not know."""
    if get_origin(hint) is Annotated:
        base, *meta = get_args(hint)
        return Annotated[(_without_arrays(base), *meta)]
    if get_origin(hint) in (typing.Union, types.UnionType):
        kept = [arg for arg in get_args(hint) if not _takes_arrays(arg)]
        return typing.Union[tuple(kept)]  # noqa: UP007 - built at run time
    return hint


class Algorithm:
    """Subclass this. Annotated attributes with a default are hyper-parameters.

    `updateDataPoint` returns the *change* of the point's statistics since its last visit, and `aggregate` adds
    a change to a target. Statistics are sums: that is what lets the engine move a point to another worker, or
    lose a worker, by adding and subtracting. A change may be a dense aggregator or any smaller NamedTuple that
    `aggregate` knows how to fold in; in the second case give `initAggregator` too.
    """

    also_called: ClassVar[dict[str, str]] = {}
    """Names under which other libraries know a hyper-parameter, and ours: `{"n_clusters": "k"}`. They are accepted."""
    instead: ClassVar[dict[str, str]] = {}
    """Hyper-parameters of other libraries that have no equal here, and what to give in their place."""
    compiled_apart: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    """Hyper-parameters whose kernels are compiled separately; `flegel warm` compiles each."""
    layout: ClassVar[str] = "rows"
    """`rows` or `tiles`: how the kernel wants its features (see `flegel.core.shard`)."""
    spent: ClassVar[tuple[str, ...]] = ()
    """Aggregator fields that are used up at a barrier (gradients) rather than kept for ever (sums)."""
    lagging: ClassVar[tuple[str, ...]] = ()
    """Aggregator fields that depend on earlier visits of a point besides the last one: a visit improves the state that
    it finds (row factors), or counts only what has changed much (second derivatives)."""
    additive: ClassVar[tuple[str, ...]] = ()
    """Fields of θ whose changes may be added, such as weights: where statistics are spent, groups at several sites
    exchange the changes of these. The others, such as the state of an optimizer, stay with each group."""
    starts_from_means: ClassVar[bool] = False
    """True where `initParameter` may get weighted means of small parts of the rows for the rows themselves: groups at
    several sites show each other those, and begin with one θ(0) for all. Otherwise the first group's is taken."""
    supervised: ClassVar[bool] = False
    """True where every point needs a label. Labels that the data have are passed in any case."""
    takes_ratings: ClassVar[bool] = False
    """True where three or four columns that look like (user, item, rating[, time]) are a list of ratings, of which
    sparse rows are made."""
    labels_are_classes: ClassVar[bool] = False
    """True where labels name classes: `Sample.classes` then has those of all rows, also of rows that are not in the
    sample."""
    ignores_labels: ClassVar[bool] = False
    """True where no hook looks at labels: workers then do not keep them."""
    sparse: ClassVar[bool] = False
    """True where `updateDataPoint` or the kernel takes sparse rows."""
    weighted: ClassVar[bool] = False
    """True where `updateDataPoint` and the kernel count a point `dataPoint.weight` times."""
    maximize: ClassVar[bool] = False
    """Direction of the objective."""
    starting: ClassVar[tuple[str, ...]] = ()
    """Hyper-parameters that only `initParameter` reads. Arrays among them are part of θ(0) by the time that workers,
    servers, checkpoints and saved models get the others, and are not given to them."""
    auxiliary: ClassVar[tuple[str, ...]] = ()
    """Fields of θ that are no parameters of the model: constants, and what the algorithm remembers. They are left out
    where the engine counts parameters, which decides how many points the first updates rest on."""
    default_tolerance: ClassVar[float] = TOLERANCE
    """Relative change of the objective over a full pass within which a job has converged, unless the user gives
    another. Choose it by what is left: a method that gains a part ρ of the last gain in each pass is still
    tolerance · ρ / (1 − ρ) from its limit."""
    slow_gains: ClassVar[bool] = False
    """True where gains shrink slowly from pass to pass (alternating minimization): a job has then converged only where
    the second half of all passes has gained less than 100 tolerances, besides the last one less than one."""
    trivial: ClassVar[str] = "a trivial model"
    """What `baseline` is the objective of, in words."""
    typed: ClassVar[bool] = False
    """True where the arrays of `initParameter` and `initAggregator` say in which types θ and the statistics are kept
    and sent, such as float32. Otherwise both are float64, whatever the hooks return."""
    per_report: ClassVar[tuple[str, ...]] = ()
    """Fields of the statistics that are made once for each report rather than summed over points."""
    local_updates: ClassVar[bool] = False
    """True where θ follows from the statistics, however often it is made: with a flexible barrier the only worker of
    a job then calls `updateParameter` between barriers too. Not for steps along a gradient, whose number matters."""
    unsent: ClassVar[tuple[str, ...]] = ()
    """Fields of θ that workers do not need, such as the state of an optimizer: they stay with the coordinator."""
    backend: ClassVar[str] = ""
    """The backend that trains this algorithm on every device (`flegel.runtime.backends.registry`); by default that of
    the worker's device."""
    torch_program: ClassVar[str] = ""
    """`module:Class` of the program that trains blocks of points by torch, for workers on a GPU
    (`flegel.runtime.backends.torch.program`)."""
    in_batches: ClassVar[bool] = False
    """True where workers train batches of points that a signal does not interrupt. Then flexible barriers are kept by
    the workers' own clocks, and a worker begins as many points as it will have done in time."""
    averaged: ClassVar[bool] = False
    """True where the objective is an average over points rather than a sum."""
    sharding: ClassVar[Sharding | None] = None
    """Which fields of θ and of the statistics parameter servers cut along which axis (`flegel.core.sharding`). Then
    `updateSlice` of the slices gives the slices of `updateParameter`, to the last bit; `flegel check` tries it."""
    unsharded: ClassVar[str] = "it does not declare `sharding`"
    """Why parameter servers cannot cut θ, where they cannot."""
    shown: ClassVar[tuple[str, ...]] = ()
    """Figures of `evaluate` that are shown with the result beside those of `metrics`, because they need rows, such as
    the accuracy. They are of the sample that θ(0) was chosen from: all rows of training where these are few."""
    followed: ClassVar[tuple[str, ...]] = ()
    """Figures of `evaluate` that are followed on rows held out by `validate`; all of them where empty."""
    keep_state: ClassVar[bool] = False
    """True where the points' hidden state belongs to the model (NMF: the rows of W)."""
    remakes_state: ClassVar[bool] = False
    """True where a first visit under θ leaves a point in a state as good as any that it had before. A job that goes on
    from a commit then leaves states that are older than θ behind."""
    memoryless: ClassVar[bool] = False
    """True where a visit under θ leaves a point in the same state, with the same contribution to the statistics,
    whatever its state was before (k-means, EM). Then the engine checks while it trains that changes are differences,
    and evaluates the final θ by one pass over all points."""
    narrow_parameter: ClassVar[bool] = False
    """True where `updateDataPoint` takes θ in the precision of the features: with float32 data half the bytes and twice
    the numbers in a register. θ itself, the statistics and all other hooks stay float64."""
    merges_reports: bool
    """`aggregate` also merges whole reports. False where a point's change is smaller than the statistics."""

    def __init__(self, **hyper: Any) -> None:
        known = self.hyper_parameters()
        owner = type(self).__name__
        for name in [name for name in hyper if name not in known and name in self.also_called]:
            if self.also_called[name] in hyper:
                raise UsageError(f"{owner}: {name} is another name of {self.also_called[name]}; give one of them.")
            hyper[self.also_called[name]] = hyper.pop(name)
        for name in hyper:
            if name not in known:
                hint = f"; {self.instead[name]}." if name in self.instead else nearest(name, list(known))
                raise UsageError(f"{owner} has no hyper-parameter {name!r}{hint}")
        for name, parameter in known.items():
            value = hyper.get(name, parameter.default)
            if value is _REQUIRED:
                raise UsageError(f"{owner} needs a value for {name}; give it with {name}=…")
            setattr(self, name, parameter.convert(value, owner) if name in hyper else value)
        self._halting = False
        self.merges_reports = type(self).initAggregator is Algorithm.initAggregator

    # -- the paper's hooks ---------------------------------------------------------------------------------

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Tree:
        """θ(0): an array or a NamedTuple of arrays."""
        raise NotImplementedError(f"{type(self).__name__} must define initParameter")

    def continueParameter(self, previous: Tree, sample: Sample, rng: np.random.Generator) -> Tree:
        """θ(0) of a job that goes on from the θ of an earlier one (`start=`), perhaps on other points. By default that
        θ, if it has the shape that `initParameter` gives for these points."""
        fresh = self.initParameter(sample, rng)
        if not pytree.same_shape(fresh, previous):
            raise UsageError(
                f"{type(self).__name__}: start= is a θ of another shape than these data and settings need."
            )
        return previous

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Tree, iterationNum: int) -> Tree:
        """The change of this point's statistics under `parameter`; may write `dataPoint.state`."""
        raise NotImplementedError(f"{type(self).__name__} must define updateDataPoint")

    def aggregate(self, target: Tree, aggregator: Tree) -> Tree:
        """target += aggregator; called for each point on a worker, and for each report at the barrier."""
        return pytree.add(target, aggregator)

    def updateParameter(self, aggregator: Tree, oldParameter: Tree) -> Tree:
        """θ(t) from the global statistics."""
        raise NotImplementedError(f"{type(self).__name__} must define updateParameter")

    def updateSlice(self, aggregator: Tree, oldParameter: Tree, start: int, stop: int, summary: Array | None) -> Tree:
        """`updateParameter` for the units from `start` to `stop`: fields that `sharding` names hold these alone. Define
        it where that needs to know which units these are, or `summary`."""
        return self.updateParameter(aggregator, oldParameter)

    def sliceSummary(self, aggregator: Tree, parameter: Tree, start: int, stop: int) -> Array | None:
        """What the updates of other slices need to know of this one. Those of all slices, one behind the other along
        the first axis, are the `summary` of `updateSlice`. None: nothing, which every slice says, or none."""
        return None

    def terminationCheck(self, aggregator: Tree, iterationNum: int) -> bool:
        """True ends the job. Asked once per full pass of the slowest worker, not at every barrier."""
        return False

    def voteToHalt(self) -> None:
        """Call it from `updateDataPoint`: this point is left out from now on."""
        self._halting = True

    # -- what the engine may ask besides -------------------------------------------------------------------

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        """Hidden state before the first visit, shape (points, size). None by default."""
        return np.zeros((points, 0), np.float32)

    def stateLimits(self, parameter: Tree) -> tuple[float, float] | None:
        """Lowest and highest number that a point's state may hold, where the hooks use it as a place in an array: a
        checkpoint with others is refused. None by default: any number."""
        return None

    def initAggregator(self, sample: Sample, parameter: Tree) -> Tree:
        """Statistics before any visit: zeros. By default the shape of one point's dense change."""
        point = sample_point(self, sample)
        return pytree.zeros_like(self.updateDataPoint(point, parameter, 0), self.typed)

    def objective(self, aggregator: Tree, parameter: Tree) -> float | None:
        """F(Q, θ) from the statistics alone, exact, without looking at the data. None: there is no objective."""
        return None

    def efficiency(self, part: float, workers: int) -> float | None:
        """What a visit is worth where barriers are `part` of a pass apart, as a part of what it is worth where they are
        close together. None: `fsp` finds out by probing.

        To be defined where a probe cannot tell, because the objective answers to θ a pass late: it is made of what the
        points were worth when they were last visited.
        """
        return None

    def noise_scale(self, parameter: Tree) -> float | None:
        """The gradient noise scale B in samples, as estimated so far (`flegel.plan.interval.gradient_noise`): a visit
        in an update of b visits is worth 1/(1 + b/B). Not a number while it is not known yet. None: no gradient method,
        and the interval is found in another way.
        """
        return None

    def holds(self, parameter: Tree) -> bool:
        """True where θ stays as it is until every point has been visited with it. Among workers that are alike `fsp`
        then makes one barrier a pass: more of them would change nothing, and a round that goes on beyond the pass would
        visit points again in vain.
        """
        return False

    def part_noise(self, objective: float, points: int, parameter: Tree) -> float | None:
        """How much of the objective over so many points is due to θ having been fitted to just these, about: what more
        points would teach. A worker with `local_updates` visits a part of its points again while that gains more. None:
        it visits all points from the beginning.
        """
        return None

    def alternative(self, aggregator: Tree, parameter: Tree) -> Tree | None:
        """Another θ that may lead to a better optimum. It is tried on a part of the points, while visits cost little,
        and given up unless it proves better; where it does, this is asked again. None: there is no such θ.
        """
        return None

    def metrics(self, aggregator: Tree, parameter: Tree) -> dict[str, float]:
        """A few figures beside the objective that people know by name, from the statistics and θ alone: the log-loss,
        BIC, RMSE. Shown while the job runs and with its result, in this order; empty while nothing is known."""
        return {}

    def optimality(self, aggregator: Tree, parameter: Tree) -> float | None:
        """How far the objective is from its minimum, as a part of the objective; infinite while that is not known yet,
        not a number where no step improves it any more. None: the algorithm cannot tell, and relative change over a
        pass is judged instead. Asked once per full pass of the slowest worker; the job has converged where it is within
        the tolerance.
        """
        return None

    def finished(self, parameter: Tree) -> str:
        """Why training is over, such as `10 epochs are done`; empty while it is not. Asked at every barrier."""
        return ""

    def baseline(self, aggregator: Tree, parameter: Tree) -> float | None:
        """The objective of a trivial model on the same points, from the statistics alone: one cluster, the intercept,
        zeros. A job whose objective is worse never counts as converged. None: the statistics cannot tell.
        """
        return None

    def recounted(self, aggregator: Tree, parameter: Tree) -> float | None:
        """The objective of θ, where the statistics are those of one pass under θ over points that were never visited.
        By default `objective`, where a visit does not depend on the last one. None: such a pass does not tell."""
        return self.objective(aggregator, parameter) if self.memoryless else None

    def steppedBack(self, parameter: Tree) -> Tree:
        """θ to go on from when the job has diverged: the best one that it had. Where θ holds the length of steps, make
        them shorter here."""
        return parameter

    def finalParameter(self, aggregator: Tree, parameter: Tree) -> Tree:
        """θ as the result: the last one, unless the algorithm knows a better one that it has measured."""
        return parameter

    def localParameter(self, parameter: Tree, aggregator: Tree) -> Tree:
        """θ as the next point of this interval sees it: θ itself, unless the kernel trains on its own copy.

        Such a copy is θ and what this worker's aggregator has gathered since the barrier, nothing else; so it
        ends with the interval, and a conformance check can follow the kernel point by point.
        """
        return parameter

    def layout_for(self, columns: int) -> str:
        """How the kernel wants features of so many columns: `layout`, unless its kernels differ by width."""
        return self.layout

    def kernel(self, share: Shard) -> Kernel | None:
        """A hand-written block kernel that agrees with `updateDataPoint`, or None to have one compiled."""
        return None

    def validate(self, sample: Sample) -> None:
        """Raise `UsageError` where these hyper-parameters cannot work on such data."""

    def warnings(self, aggregator: Tree, parameter: Tree) -> list[str]:
        """Remarks on the finished model that a user should read (empty clusters and the like)."""
        return []

    def model_files(self, parameter: Tree) -> dict[str, bytes]:
        """Files that are saved beside the model, for other programs: their content by name."""
        return {}

    def predict(self, features: Any, parameter: Tree) -> Array:
        """What the model says about new rows."""
        raise UsageError(f"{type(self).__name__} does not define predict, so its model cannot be applied to rows.")

    def probabilities(self, features: Any, parameter: Tree) -> Array:
        """A row of numbers that sum to 1 for each row: of its classes, or of its clusters."""
        raise UsageError(f"{type(self).__name__} gives no probabilities; use predict.")

    def distances(self, features: Any, parameter: Tree) -> Array:
        """Distances of each row to every centroid."""
        raise UsageError(f"{type(self).__name__} gives no distances; use predict.")

    def scores(self, features: Any, parameter: Tree) -> Array:
        """One number for each row, or one for each of its classes; larger is better or more likely."""
        raise UsageError(f"{type(self).__name__} gives no scores; use predict.")

    def model(self, parameter: Tree) -> dict[str, Array] | None:
        """The trained model by name, for users; None: θ as it is. What is left out is in `Result.internals`."""
        return None

    def work(self, columns: int) -> float:
        """Multiplications for one visit of a point, roughly: decides how many workers a small job has by default.
        Infinite where nothing is known; the job then has one for each core."""
        return math.inf

    def to_sklearn(self, parameter: Tree, classes: list[str] | None) -> Any:
        """The model as a fitted estimator of scikit-learn; `classes` are the names of text labels."""
        raise UsageError(f"{type(self).__name__} has no counterpart in scikit-learn.")

    def evaluate(self, features: Any, labels: Array | None, parameter: Tree) -> Evaluation | None:
        """The objective computed from scratch, independent of the engine's own number."""
        return None

    def score(self, features: Any, labels: Array | None, parameter: Tree) -> float:
        """How good the model is on these rows; larger is better: the accuracy where `evaluate` tells it, otherwise the
        objective, or minus the objective where it is minimized."""
        found = self.evaluate(features, labels, parameter)
        if found is None:
            raise UsageError(f"{type(self).__name__} defines no evaluate, so its model cannot be scored.")
        return found.metrics.get("accuracy", found.objective if self.maximize else -found.objective)

    # -- hyper-parameters ----------------------------------------------------------------------------------

    @classmethod
    def hyper_parameters(cls) -> dict[str, HyperParameter]:
        """Annotated public attributes of the class and its bases, in the order they were written."""
        return dict(_HYPER.get(cls) or _HYPER.setdefault(cls, _hyper_parameters(cls)))

    def hyper(self) -> dict[str, Any]:
        """Current values by name."""
        return {name: getattr(self, name) for name in self.hyper_parameters()}

    def described_hyper(self) -> dict[str, Any]:
        """Current values by name, to compare and to show: arrays as lists, or by shape and hash where they are long."""
        return {k: _described(v) if isinstance(v, np.ndarray) else v for k, v in self.hyper().items()}

    def labels_for_points(self, labels: Array | None) -> Array | None:
        """The labels that workers keep beside the rows; without any, `dataPoint.label` is 0."""
        return None if self.ignores_labels else labels

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.hyper().items())})"


_REQUIRED: Any = object()
LISTED = 4096  # numbers of an array that is written out: 80 kB of text


def _described(array: Array) -> Any:
    if array.size <= LISTED:
        return array.tolist()
    digest = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()[:16]
    return f"array of {' × '.join(map(str, array.shape))}, sha256 {digest}"


_ENGINE_NAMES = frozenset({"merges_reports"})


_HYPER: WeakKeyDictionary[type[Algorithm], dict[str, HyperParameter]] = WeakKeyDictionary()
"""By class: to evaluate its hints takes 5 ms, and a job asks several times."""


def _hyper_parameters(cls: type[Algorithm]) -> dict[str, HyperParameter]:
    hints = get_type_hints(cls, include_extras=True)
    found: dict[str, HyperParameter] = {}
    for name, hint in hints.items():
        if name.startswith("_") or get_origin(hint) is ClassVar or name in _ENGINE_NAMES:
            continue
        found[name] = HyperParameter(name, hint, getattr(cls, name, _REQUIRED), _description(hint), _file(hint))
    return found


def _description(hint: Any) -> str:
    for meta in getattr(hint, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.description:
            return meta.description
    return ""


def _file(hint: Any) -> NamesFile | None:
    return next((meta for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, NamesFile)), None)


def sample_point(algorithm: Algorithm, sample: Sample) -> DataPoint:
    """The first point of a sample with a fresh state, for probing shapes."""
    from flegel.core.shard import SparseRow

    state = algorithm.initState(1, sample.columns, np.random.default_rng(0))[0]
    label = float(sample.labels[0]) if sample.labels is not None else 0.0
    if isinstance(sample.features, Sparse):
        lo, hi = sample.features.indptr[:2]
        return DataPoint(SparseRow(sample.features.indices[lo:hi], sample.features.values[lo:hi]), label, state)
    return DataPoint(sample.features[0], label, state)
