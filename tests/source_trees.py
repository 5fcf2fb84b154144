"""Source files, parsed once for all tests that look at the shape of the code."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file, as `ast.walk` finds them."""
    return tuple(ast.walk(parse(path)))
