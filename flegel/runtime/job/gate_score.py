"""The gate of a job's options, and how good a model is on the rows of that gate. Used for groups and for workers."""

from __future__ import annotations

from collections.abc import Callable

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


def gate_scorer(job: Job, algorithm: Algorithm, scaling: Scaling | None) -> Callable[[Tree], float]:
    """A function that scores θ on the rows of the gate, which are read now: the more the better."""
    rows = open_job_data(job, job.sites.gate_data, algorithm).read()
    features = rows.features if scaling is None else scale.apply(rows.features, scaling)
    model_score = hook(algorithm, ModelHooks.score)

    def score(parameter: Tree) -> float:
        try:
            return float(model_score(features, rows.labels, parameter))
        except UsageError as error:
            raise UsageError(f"{option('gate')} needs a score. {error}") from None

    return score
