"""What is told of a finished model beside its figures: what it is like, and classes that it never answers."""

from __future__ import annotations

import numpy as np

from flegel.algorithm import Algorithm, Sample
from flegel.core import pytree
from flegel.core.pytree import Tree
from flegel.params import hook_values
from flegel.params.hooks import call_hook
from flegel.wording import setting

NAMED_CLASSES = 5  # that are listed; of more the number is told


def description(algorithm: Algorithm, statistics: Tree, parameter: Tree) -> list[str]:
    """The description that the class gives of the model; nothing where training has failed."""
    if not (pytree.is_finite(parameter) and pytree.is_finite(statistics)):
        return []
    said = call_hook(algorithm, "the end", "description", statistics, parameter)
    return hook_values.texts(said, "description")


def never_predicted(algorithm: Algorithm, sample: Sample, parameter: Tree) -> list[str]:
    """Classes that no row of the sample gets, although some rows have them: an accuracy does not show that."""
    classes = algorithm.accepts.labels == "classes" and not algorithm.kernels.backend
    if not classes or sample.labels is None or not pytree.is_finite(parameter):
        return []
    answered = call_hook(algorithm, "the end", "predict", sample.features, parameter)
    values, counts = np.unique(sample.labels, return_counts=True)
    never = ~np.isin(values, answered)
    if not never.any() or len(values) < 2:
        return []
    words = [_shown(float(value), sample) for value in values[never]]
    more = f" and {len(words) - NAMED_CLASSES} more" if len(words) > NAMED_CLASSES else ""
    weighs = "class_weight" in algorithm.hyper_parameters() and algorithm.hyper()["class_weight"] is None
    advice = f"; {setting('class_weight', 'balanced')} counts rare classes more" if weighs else ""
    return [
        f"{len(words)} of {len(values)} classes are never predicted for {len(sample.labels):,} rows of training, "
        f"{int(counts[never].sum()):,} of which have them: {', '.join(words[:NAMED_CLASSES])}{more}{advice}."
    ]


def _shown(value: float, sample: Sample) -> str:
    words = sample.class_names
    return repr(words[int(value)]) if words is not None and 0 <= value < len(words) else f"{value:g}"
