"""Finds numbers at the top of modules and their kinds (module_numbers.toml), for tests/test_shape.py: a tuned number is
a setting, and is none of these kinds."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.source_trees import parse

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [path for top in ("flegel", "algorithms", "datasets") for path in sorted((ROOT / top).rglob("*.py"))]
KINDS = tomllib.loads((ROOT / "tests" / "module_numbers.toml").read_text(encoding="utf-8"))


class ModuleNumber(NamedTuple):
    file: str
    name: str
    explained: bool
    """A comment stands beside it or above it, or a text below it."""


def is_number(value: ast.expr) -> bool:
    """Whether an expression is a number, an arithmetic expression with one, or a sequence of these."""
    match value:
        case ast.Constant(value=found):
            return isinstance(found, int | float) and not isinstance(found, bool)
        case ast.UnaryOp(operand=inner):
            return is_number(inner)
        case ast.BinOp(left=left, right=right):
            return is_number(left) or is_number(right)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return bool(parts) and all(is_number(part) for part in parts)
    return False


def numbers_of(file: str, text: str, tree: ast.Module) -> list[ModuleNumber]:
    """Those that a module assigns to names in capitals."""
    found, lines = [], text.splitlines()
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or not is_number(node.value):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        names = [part.id for part in ast.walk(target) if isinstance(part, ast.Name)]
        above = lines[node.lineno - 2] if node.lineno > 1 else ""
        told = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        explained = "#" in lines[(node.end_lineno or node.lineno) - 1] or above.startswith("#") or told
        found += [ModuleNumber(file, name, explained) for name in names if name == name.upper()]
    return found


@cache
def all_numbers() -> tuple[ModuleNumber, ...]:
    found: list[ModuleNumber] = []
    for path in SOURCES:
        found += numbers_of(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"), parse(path))
    return tuple(found)


def kinds_of(number: ModuleNumber) -> list[str]:
    """Kinds under which the list names it, by its file first."""
    named = [kind for kind, about in KINDS.items() if number.name in about["files"].get(number.file, "").split()]
    folders = [
        k for k, about in KINDS.items() if any(number.file.startswith(f"{d}/") for d in about.get("folders", ()))
    ]
    return named or folders
