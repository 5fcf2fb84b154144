"""Logistic regression: the model and its block kernels. Loaded when it is asked for: other models share its steps, and
importing them imports no compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flegel.algorithms.lr.lr import LR as LR

__all__ = ["LR"]


def __getattr__(name: str) -> Any:
    if name == "LR":
        from flegel.algorithms.lr.lr import LR

        return LR
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
