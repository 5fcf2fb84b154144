"""Optional hooks: the class's own method where it defines one, otherwise the default of the subject that asks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from flegel.declarations.accepts import RowHooks
from flegel.declarations.figures import ModelHooks
from flegel.declarations.hidden_state import StateHooks
from flegel.declarations.kernels import KernelHooks
from flegel.declarations.learning import LearningHooks
from flegel.declarations.placement import PlacementHooks

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

OPTIONAL_HOOKS: dict[str, Callable[..., Any]] = {
    name: default
    for subject in (KernelHooks, LearningHooks, ModelHooks, PlacementHooks, RowHooks, StateHooks)
    for name, default in vars(subject).items()
    if not name.startswith("_")
}
"""All of them by name, each with what it answers where a class does not define it."""

PLAIN_DEFAULTS: dict[str, Callable[..., Any]] = {
    name: OPTIONAL_HOOKS[name]
    for name in (
        *(name for name in vars(LearningHooks) if not name.startswith("_")),
        "metrics",
        "warnings",
        "description",
    )
}
"""Those of them whose answer calls no other method of the class: asked at each barrier, they need no guard."""


def defines(algorithm: object, default: Callable[..., Any]) -> bool:
    """Whether the class has a method of its own for this hook."""
    return callable(getattr(algorithm, default.__name__, None))


def hook(algorithm: object, default: Callable[Concatenate[Any, Given], Answer]) -> Callable[Given, Answer]:
    """`hook(algorithm, LearningHooks.baseline)(statistics, θ)`: the method of the class, or else this default."""
    own: Callable[Given, Answer] | None = getattr(algorithm, default.__name__, None)
    return own if callable(own) else partial(default, algorithm)


def hook_named(algorithm: object, name: str) -> Callable[..., Any]:
    """The same by name, for hooks of either kind."""
    default = OPTIONAL_HOOKS.get(name)
    found: Callable[..., Any] = getattr(algorithm, name) if default is None else hook(algorithm, default)
    return found
