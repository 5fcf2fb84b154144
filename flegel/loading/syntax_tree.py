"""Python source as a syntax tree, in threads as well. Runs nothing of it."""

from __future__ import annotations

import ast
import threading

_turn = threading.Lock()


def parse_source(text: str | bytes) -> ast.Module:
    """`ast.parse`. Where two threads parse at once, Python 3.11 and 3.12 may mix their depths up and raise SystemError
    for a correct text; then it is parsed again. Raises what `ast.parse` raises."""
    for _ in range(7):  # others, such as `inspect`, parse outside of the lock
        try:
            with _turn:
                return ast.parse(text)
        except SystemError:
            continue
    return ast.parse(text)
