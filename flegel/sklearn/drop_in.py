"""Estimators that are scikit-learn's own class but for the computation: parameters, checks, answers and attributes are
inherited, and the sums over rows come from one job of the engine. Never knows an algorithm.
"""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

ENGINE_PARAMETERS = {"workers": None, "sync": None, "cluster": None, "target": None}
"""What each estimator has besides scikit-learn's parameters; see `flegel.run`."""
Estimator = TypeVar("Estimator", bound=type)


def with_engine_parameters(cls: Estimator) -> Estimator:
    """Give a class the constructor of the scikit-learn class that it derives from, and the engine's parameters behind
    those: scikit-learn finds parameters by the constructor's signature."""
    theirs: Any = next(base for base in cls.__mro__[1:] if base.__module__.startswith("sklearn.") and _has_own(base))
    known = list(inspect.signature(theirs.__init__).parameters.values())
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(name, kind, default=value) for name, value in ENGINE_PARAMETERS.items()]
    signature = inspect.Signature([*known, *added])

    def __init__(self: Any, *args: Any, **given: Any) -> None:
        bound = signature.bind(self, *args, **given)
        bound.apply_defaults()
        for name, value in list(bound.arguments.items())[1:]:
            setattr(self, name, value)

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    cls.__init__ = __init__  # type: ignore[misc]
    return cls


def _has_own(base: type) -> bool:
    """A class with a constructor of its own, which scikit-learn's mixins do not have."""
    return "__init__" in vars(base)
