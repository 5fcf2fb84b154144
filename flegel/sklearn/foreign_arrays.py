"""Arrays of other libraries (PyTorch, CuPy, JAX, whatever follows the array API) as NumPy's. Never imports one of them.

Memory of the processor is shared, not copied; arrays on a GPU are copied from it once. Answers are NumPy arrays.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import config_context

PROCESSOR = 1
"""As the DLPack protocol numbers the memory of processors."""
METHODS = (
    *("fit", "partial_fit", "fit_predict", "fit_transform", "predict", "predict_proba", "predict_log_proba"),
    *("predict_joint_log_proba", "decision_function", "transform", "inverse_transform", "score", "score_samples"),
    *("aic", "bic", "error_norm", "mahalanobis", "perplexity", "recommend"),
)
"""That take rows."""


def accept_foreign_arrays(cls: type) -> None:
    """Methods of an estimator that take rows, also inherited ones, take them from other libraries."""
    for name in METHODS:
        found = inspect.getattr_static(cls, name, None)
        if inspect.isfunction(found) and not hasattr(found, "takes_foreign_arrays"):
            setattr(cls, name, _taking_them(found))


def _taking_them(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def converted(self: Any, *args: Any, **named: Any) -> Any:
        if not any(is_foreign(value) for value in (*args, *named.values())):
            return method(self, *args, **named)
        with config_context(array_api_dispatch=False):
            given = {name: as_numpy(value) for name, value in named.items()}
            return method(self, *map(as_numpy, args), **given)

    converted.takes_foreign_arrays = True  # type: ignore[attr-defined]
    return converted


def is_foreign(value: Any) -> bool:
    """An array with shape and device, and not NumPy's."""
    return hasattr(value, "__dlpack_device__") and hasattr(value, "shape") and not isinstance(value, np.ndarray)


def as_numpy(value: Any) -> Any:
    """The same numbers as a NumPy array; everything but arrays of other libraries as it is."""
    if not is_foreign(value):
        return value
    try:
        if value.__dlpack_device__()[0] != PROCESSOR:
            value = value.get() if hasattr(value, "get") else value.cpu()
        return value if isinstance(value, np.ndarray) else np.from_dlpack(value)
    except (AttributeError, BufferError, RuntimeError) as error:
        what = f"{type(value).__module__}.{type(value).__name__}"
        raise ValueError(
            f"A {what} cannot be read as a NumPy array ({error}); give one of float32 or float64, without gradients, "
            "in the processor's memory."
        ) from None
