"""The class that users write: one point, six hooks, typed hyper-parameters.

This module never trains anything. The runtime compiles `updateDataPoint` and `aggregate` into one loop over a
block; the coordinator calls the other hooks. Hook names are the paper's (Fig. 5), spelled as in the paper.
"""

from __future__ import annotations

import contextlib
import hashlib
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from flegel.core import pytree
from flegel.core.counting_kernel import one_point
from flegel.core.kept_state import (
    COUNTED,
    KeptForm,
    counted_once,
    form_of_kept,
    replaced_contribution,
    replaced_statistics,
)
from flegel.core.pytree import Array, Tree
from flegel.core.shard import DataPoint, Sparse
from flegel.declarations.accepts import Accepts
from flegel.declarations.check import check_declarations, check_spelling, check_visit
from flegel.declarations.figures import ReportedFigures
from flegel.declarations.hidden_state import HiddenState, StateHooks
from flegel.declarations.hyper_names import HyperNames
from flegel.declarations.kernels import KernelHooks, Kernels
from flegel.declarations.learning import Learning
from flegel.declarations.optional import OPTIONAL_HOOKS, defines, hook
from flegel.declarations.placement import ParameterPlacement
from flegel.declarations.statistics import Statistics
from flegel.errors import UNDECODABLE, UsageError, nearest
from flegel.loading.input_files import NamesFile

MOST_CLASSES = 1000
"""More different labels than this are a quantity, not classes."""


class Sample(NamedTuple):
    """What `initParameter` sees: some rows, drawn evenly over the whole data, and the size of the whole."""

    features: Array | Sparse
    labels: Array | None
    points: int
    columns: int
    weights: Array | None = None
    """Of these rows; None where every point weighs 1."""
    classes: Array | None = None
    """The different labels of all rows, in order, for an algorithm that accepts labels as `classes`. None where they
    are not known: labels of other groups, more than `MOST_CLASSES`."""
    class_names: Sequence[str] | None = None
    """Where labels are words: label i stands for the i-th."""
    names: Sequence[str] | None = None
    """Of the columns, where they have names."""
    categories: Sequence[int] | None = None
    """Columns that hold codes of categories, of a table that was read for an algorithm that accepts them; None where
    nothing says which."""
    total_weight: float | None = None
    """Of all points, where they have weights. None where the sample holds all points, or where it is not known."""

    @property
    def mass(self) -> float:
        """The weight of all points together, a little too low so that the sum over visited points reaches it: by 1e-6
        where it is known, by 5 % where it is an estimate from a part of them."""
        if self.weights is None:
            return float(self.points)
        if self.total_weight is not None:
            return self.total_weight * (1.0 - 1e-6)
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

    @property
    def holds_arrays(self) -> bool:
        """Whether it takes an array, and no name of a file."""
        return self.file is None and _takes_arrays(self.type)

    def convert(self, value: Any, owner: str) -> Any:
        """The value in the declared type; from text too, because the command line has nothing else."""
        if _takes_arrays(self.type) and isinstance(value, (np.ndarray, list)):
            return np.asarray(value, dtype=np.float64)
        value = value.item() if isinstance(value, np.generic) else value
        plain = _without_arrays(self.type)
        value = _with_brackets(value, plain)
        try:
            if isinstance(value, str) and value[:1] in ("[", "{"):  # lists and tables from the command line
                words = _bare_words(value, plain)
                return msgspec.json.decode(value, type=plain) if words is None else words
            return msgspec.convert(value, plain, strict=not isinstance(value, str))
        except UNDECODABLE as error:  # also those of values that do not fit
            choices = _choices(self.type)
            detail = f"it is one of {', '.join(choices)}" if choices else str(error).split(" - at ")[0]
            if "malformed" in detail and str(value)[:1] == "[":
                detail = "in a list of numbers each stands as it is, as in [0,2]; words take double quotes"
            raise UsageError(f"{owner}: {self.name}={value!r} does not fit ({detail}).") from None


def _choices(hint: Any) -> list[str]:
    """The values that a parameter may have, where only some do."""
    if get_origin(hint) is Literal:
        return [str(choice) for choice in get_args(hint)]
    first = get_args(hint)[:1] if get_origin(hint) is Annotated else ()
    return _choices(first[0]) if first else []


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


def _with_brackets(value: Any, hint: Any) -> Any:
    """`red,blue` as `[red,blue]` for a parameter that takes a list of words and no text; any other value as it is."""
    if not isinstance(value, str) or value[:1] in ("[", "{") or value.lower() in ("", "null", "none"):
        return value
    alternatives = _alternatives(hint)
    lists = [one for one in alternatives if get_origin(one) is list and str in _alternatives(get_args(one)[0])]
    return f"[{value}]" if lists and str not in alternatives else value


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, without what is said about them."""
    if get_origin(hint) is Annotated:
        return _alternatives(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


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

    A class says what a visit of one point does in one of three ways: `contribution`, what the point adds to the
    statistics under θ; `hidden` and `statistics_of`, the same in two steps, of which the engine keeps the first; or
    `updateDataPoint`, the *change* since the point's last visit. Statistics are sums: that is what lets the engine move
    a point to another worker, or lose a worker, by adding and subtracting. Only `updateDataPoint` may return any
    smaller NamedTuple that `aggregate` knows how to fold in; then give `initAggregator` too.
    """

    accepts: ClassVar[Accepts] = Accepts()
    """Which rows the class takes: sparse, weighted, with labels."""
    statistics: ClassVar[Statistics] = Statistics()
    """What the fields of the statistics are: sums, unless said otherwise."""
    state: ClassVar[HiddenState] = HiddenState()
    """What the engine may rely on in the state of a point."""
    learning: ClassVar[Learning] = Learning()
    """Direction and meaning of the objective, convergence, interval."""
    placement: ClassVar[ParameterPlacement] = ParameterPlacement()
    """Where the fields of θ lie and travel."""
    kernels: ClassVar[Kernels] = Kernels()
    """What visits the points."""
    figures: ClassVar[ReportedFigures] = ReportedFigures()
    """Which figures of `evaluate` are shown and followed."""
    hyper_names: ClassVar[HyperNames] = HyperNames()
    """Other names of hyper-parameters, and which of them only `initParameter` reads."""

    _kept = cast("KeptForm | None", None)  # of a class that returns contributions: what the engine keeps of each point

    def __init_subclass__(cls, **options: Any) -> None:
        """Check the declarations of a user's class where it is defined, and declare what follows from a `contribution`
        hook: weights work, and states are memoryless unless it votes to halt."""
        super().__init_subclass__(**options)
        check_declarations(cls, Algorithm, DECLARED)
        check_spelling(cls, Algorithm, HOOKS)
        if defines(cls, KernelHooks.contributions) and cls.contribution is Algorithm.contribution:
            cls.contribution = one_point  # type: ignore[method-assign, assignment]
        check_visit(cls, Algorithm)
        if visit_hook(cls) != "updateDataPoint":
            halts = any("voteToHalt" in function.__code__.co_names for function in visit_hooks(cls))
            for name, known in (("accepts", {"weighted": True}), ("state", {"memoryless": not halts})):
                if not isinstance(declared := getattr(cls, name), property):
                    setattr(cls, name, replace(declared, **known))

    def __init__(self, **hyper: Any) -> None:
        """Take hyper-parameters by name: unknown ones are refused with the nearest name, absent ones get their
        default."""
        known, names = self.hyper_parameters(), self.hyper_names
        owner = type(self).__name__
        for name in [name for name in hyper if name not in known and name in names.also_called]:
            if names.also_called[name] in hyper:
                raise UsageError(f"{owner}: {name} is another name of {names.also_called[name]}; give one of them.")
            hyper[names.also_called[name]] = hyper.pop(name)
        for name in hyper:
            if name not in known:
                hint = f"; {names.instead[name]}." if name in names.instead else nearest(name, list(known))
                raise UsageError(f"{owner} has no hyper-parameter {name!r}{hint}")
        for name, parameter in known.items():
            value = hyper.get(name, parameter.default)
            if value is _REQUIRED:
                raise UsageError(f"{owner} needs a value for {name}; give it with {name}=…")
            setattr(self, name, parameter.convert(value, owner) if name in hyper else value)
        self._halting = False

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

    def contribution(self, dataPoint: DataPoint, parameter: Tree) -> Tree:
        """What this point adds to the statistics under `parameter`. The engine keeps it, takes away what the point
        added at its last visit, and counts the point `dataPoint.weight` times."""
        raise NotImplementedError(f"{type(self).__name__} must define contribution, or updateDataPoint")

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Tree, iterationNum: int) -> Tree:
        """The change of this point's statistics under `parameter`; may write `dataPoint.state`. By default that of
        what the class calls the point's contribution."""
        row, spent, weight = dataPoint.state, self.statistics.spent, dataPoint.weight
        point = dataPoint._replace(state=row[:0])
        if visit_hook(type(self)) != "hidden":
            new = self.contribution(point, parameter)
            if self._kept == COUNTED:
                return counted_once(new, row, weight)
            return new if self._kept is None else replaced_contribution(self._kept, new, row, spent, weight)
        hidden, statistics_of = hook(self, StateHooks.hidden), hook(self, StateHooks.statistics_of)
        found = hidden(point, parameter)
        if self._kept is None:
            return statistics_of(point, found)
        old = statistics_of(point, self._kept.unpack(row)) if row[0] else None
        self._kept.pack(found, row, "hidden")
        return replaced_statistics(statistics_of(point, self._kept.unpack(row)), old, spent, weight)

    def aggregate(self, target: Tree, aggregator: Tree) -> Tree:
        """target += aggregator; called for each point on a worker, and for each report at the barrier."""
        return pytree.add(target, aggregator)

    def updateParameter(self, aggregator: Tree, oldParameter: Tree) -> Tree:
        """θ(t) from the global statistics."""
        raise NotImplementedError(f"{type(self).__name__} must define updateParameter")

    def terminationCheck(self, aggregator: Tree, iterationNum: int) -> bool:
        """True ends the job. Asked once per full pass of the slowest worker, not at every barrier."""
        return False

    def voteToHalt(self) -> None:
        """Call it from `updateDataPoint`: this point is left out from now on."""
        self._halting = True

    # -- what the engine may ask besides -------------------------------------------------------------------

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        """Hidden state before the first visit, shape (points, size). By default what the engine keeps, if anything."""
        return np.zeros((points, 0), np.float32) if self._kept is None else self._kept.unvisited(points)

    def initAggregator(self, sample: Sample, parameter: Tree) -> Tree:
        """Statistics before any visit: zeros. By default the shape of one point's dense change."""
        kept, self._kept = self._kept, None  # the statistics in their own types, not a difference of them
        try:
            made = self.updateDataPoint(sample_point(self, sample), parameter, 0)
        finally:
            self._kept = kept
        return pytree.zeros_like(made, self.placement.typed)

    def objective(self, aggregator: Tree, parameter: Tree) -> float | None:
        """F(Q, θ) from the statistics alone, exact, without looking at the data. None: there is no objective."""
        return None

    def validate(self, sample: Sample) -> None:
        """Raise `UsageError` where these hyper-parameters cannot work on such data."""

    def predict(self, features: Any, parameter: Tree) -> Array:
        """What the model says about new rows."""
        raise UsageError(f"{type(self).__name__} does not define predict, so its model cannot be applied to rows.")

    def evaluate(self, features: Any, labels: Array | None, parameter: Tree) -> Evaluation | None:
        """The objective computed from scratch, independent of the engine's own number."""
        return None

    # -- hyper-parameters ----------------------------------------------------------------------------------

    @classmethod
    def hyper_parameters(cls) -> dict[str, HyperParameter]:
        """Annotated public attributes of the class and its bases, in the order they were written."""
        return dict(_HYPER.get(cls) or _HYPER.setdefault(cls, _hyper_parameters(cls)))

    def hyper(self) -> dict[str, Any]:
        """Current values by name."""
        return {name: getattr(self, name) for name in self.hyper_parameters()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.hyper().items())})"


DECLARED = {
    "accepts": Accepts,
    "figures": ReportedFigures,
    "hyper_names": HyperNames,
    "kernels": Kernels,
    "learning": Learning,
    "placement": ParameterPlacement,
    "state": HiddenState,
    "statistics": Statistics,
}
"""What a class may declare, and the type of each declaration."""
HOOKS = [*OPTIONAL_HOOKS, *(name for name, value in vars(Algorithm).items() if name[0] != "_" and callable(value))]
"""Methods that the engine calls by name."""
_REQUIRED: Any = object()
LISTED = 4096  # numbers of an array that is written out: 80 kB of text


def merges_reports(algorithm: Algorithm) -> bool:
    """`aggregate` also merges whole reports. False where a point's change is smaller than the statistics."""
    return type(algorithm).initAggregator is Algorithm.initAggregator


def visit_hook(cls: type[Algorithm]) -> str:
    """Which hook visits a point: `contribution`, `hidden` or `updateDataPoint`."""
    if callable(cls.contribution) and cls.contribution is not Algorithm.contribution:
        return "contribution"
    return "hidden" if defines(cls, StateHooks.hidden) else "updateDataPoint"


def visit_hooks(cls: type[Algorithm]) -> list[Any]:
    """The functions of the class that a visit calls, before `aggregate`."""
    name = visit_hook(cls)
    return [getattr(cls, each) for each in ((name, "statistics_of") if name == "hidden" else (name,))]


def predicts(algorithm: Algorithm) -> bool:
    """Whether its class defines `predict`."""
    return type(algorithm).predict is not Algorithm.predict


def keep_contributions(algorithm: Algorithm, sample: Sample, parameter: Tree) -> None:
    """Find out what the engine keeps of each point, from one of them, where the class returns contributions."""
    form = visit_hook(type(algorithm))
    if form == "updateDataPoint":
        return
    algorithm._kept = None
    point = sample_point(algorithm, sample)
    if form == "hidden":
        algorithm._kept = form_of_kept(hook(algorithm, StateHooks.hidden)(point, parameter), "hidden", marked=True)
    elif algorithm.statistics.constant:
        algorithm._kept = COUNTED
    else:
        made = algorithm.contribution(point, parameter)
        algorithm._kept = form_of_kept(made, "contribution", marked=False, left_out=algorithm.statistics.spent)
    algorithm._halting = False


def described_hyper(algorithm: Algorithm) -> dict[str, Any]:
    """Current values by name, to compare and to show: arrays as lists, or by shape and hash where they are long."""
    return {k: _described(v) if isinstance(v, np.ndarray) else v for k, v in algorithm.hyper().items()}


def _described(array: Array) -> Any:
    if array.size <= LISTED:
        return array.tolist()
    digest = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()[:16]
    return f"array of {' × '.join(map(str, array.shape))}, sha256 {digest}"


_HYPER: WeakKeyDictionary[type[Algorithm], dict[str, HyperParameter]] = WeakKeyDictionary()
"""By class: to evaluate its hints takes 5 ms, and a job asks several times."""


def _hyper_parameters(cls: type[Algorithm]) -> dict[str, HyperParameter]:
    """The annotated class attributes without a leading underscore, in their order."""
    hints = get_type_hints(cls, include_extras=True)
    found: dict[str, HyperParameter] = {}
    for name, hint in hints.items():
        if name.startswith("_") or get_origin(hint) is ClassVar:
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
