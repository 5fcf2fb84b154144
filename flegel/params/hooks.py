"""Calls of a user's hooks on the coordinator's side, with errors that say where. Decides nothing."""

from __future__ import annotations

from typing import Any

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.errors import AlgorithmError, FlegelError, own_traceback


def call_hook(algorithm: Algorithm, place: str, name: str, *args: Any) -> Any:
    """What the hook returns. What it raises becomes an `AlgorithmError` with the user's own traceback; `place` is the
    round, for the message."""
    presented = [pytree.present(a) if isinstance(a, tuple) or hasattr(a, "shape") else a for a in args]
    try:
        return getattr(algorithm, name)(*presented)
    except FlegelError:
        raise
    except Exception as error:
        where = f"coordinator, {place}"
        raise AlgorithmError(
            f"{name} raised {type(error).__name__}: {error} ({where})", own_traceback(error)
        ) from error
