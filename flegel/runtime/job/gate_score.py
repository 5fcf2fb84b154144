"""The gate of a job's options, and how good a model is on the rows of that gate. Used for groups and for workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

from flegel.algorithm import Algorithm
from flegel.core.pytree import Tree
from flegel.datasets.rows import scale
from flegel.datasets.rows.scale import Scaling
from flegel.declarations.figures import ModelHooks
from flegel.declarations.optional import hook
from flegel.errors import UsageError
from flegel.group_options import GroupSpec
from flegel.job import Job
from flegel.params.gate import Gate, parse_gate
from flegel.runtime.job.request import open_job_data
from flegel.wording import option


def new_gate(sites: GroupSpec) -> Gate:
    """A gate that nothing has passed yet; refuses options that lack half of it."""
    if not (sites.gate and sites.gate_data):
        raise UsageError(
            f"{option('gate')} says which score is good enough, {option('gate_data')} names rows to score; give both."
        )
    return Gate(parse_gate(sites.gate), sites.gate_failures)


def gate_scorer(
    job: Job, algorithm: Algorithm, scaling: Scaling | None, trained: Sequence[str] = ()
) -> Callable[[Tree], float]:
    """A function that scores θ on the rows of the gate, which are read now: the more the better. `trained`: names of
    the columns of the training data, where they have any; those of the gate must be the same."""
    data = open_job_data(job, job.sites.gate_data, algorithm)
    _check_names(job.sites.gate_data, [str(name) for name in data.treatment.feature_names or ()], trained)
    rows = data.read()
    features = rows.features if scaling is None else scale.apply(rows.features, scaling)
    model_score = hook(algorithm, ModelHooks.score)

    def score(parameter: Tree) -> float:
        try:
            return float(model_score(features, rows.labels, parameter))
        except UsageError as error:
            raise UsageError(f"{option('gate')} needs a score. {error}") from None

    return score


def _check_names(place: str, names: Sequence[str], trained: Sequence[str]) -> None:
    """Refuse rows for the gate whose columns are others than those of the training data, or in another order."""
    if not (names and trained):
        return
    pairs = enumerate(zip_longest(names, trained))
    for at, (one, other) in pairs:
        if one != other:
            raise UsageError(
                f"Column {at + 1} of {option('gate_data', place)} is {one!r}, and of the training data {other!r}; give "
                "both the same columns in the same order."
            )
