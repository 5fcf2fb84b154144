"""How functions are compiled that only compiled code calls. Knows no function.

Code with which Python could call them is a fifth of the compiler's work.
"""

from __future__ import annotations

from typing import Any

INNER: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
INLINE: dict[str, Any] = {**INNER, "forceinline": True}
