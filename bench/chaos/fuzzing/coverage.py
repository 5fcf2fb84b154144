"""Which lines of the package an input reached first, and which lines of a reader its inputs reached in all.

With Python 3.12 `sys.monitoring` reports each line once for each turn of a reader and then costs nothing; with 3.11
`sys.settrace` follows one input in sixteen. Both see lines of `flegel`, `algorithms` and `datasets` alone.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import flegel

PLACE = Path(flegel.__file__).resolve().parent
ROOT = PLACE.parent
MONITORING = hasattr(sys, "monitoring")
EVERY = 1 if MONITORING else 16
Line = tuple[str, int]


class LineCoverage:
    """`turn(name)`: inputs of this reader follow. `reached(call)`: run one, and tell how many lines were new to it."""

    def __init__(self) -> None:
        self.lines: dict[str, set[Line]] = {}
        """By reader: file and line."""
        self._now: set[Line] = set()
        self._calls = 0
        self.kind = "sys.monitoring" if MONITORING else "sys.settrace, one input in 16"
        self._roots = tuple(str(ROOT / part) for part in ("flegel", "algorithms", "datasets"))
        if MONITORING:
            self._tool: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
            self._tool.use_tool_id(3, "fuzz")
            self._tool.register_callback(3, self._tool.events.LINE, self._line)
            self._tool.set_events(3, self._tool.events.LINE)

    def turn(self, reader: str) -> None:
        self._now = self.lines.setdefault(reader, set())
        if MONITORING:
            self._tool.restart_events()

    def _line(self, code: CodeType, number: int) -> Any:
        if code.co_filename.startswith(self._roots):
            self._now.add((code.co_filename, number))
        return self._tool.DISABLE

    def reached(self, call: Callable[[], Any], always: bool = False) -> int:
        """`always`: follow this one."""
        before = len(self._now)
        self._calls += 1
        if MONITORING or (self._calls % EVERY and not always):
            call()
        else:
            sys.settrace(self._trace)
            try:
                call()
            finally:
                sys.settrace(None)
        return len(self._now) - before

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self._roots):
            return None
        if event == "line":
            self._now.add((frame.f_code.co_filename, frame.f_lineno))
        return self._trace


def functions_of(module: str) -> list[set[int]]:
    """Lines of each function of a file, with what is defined inside of it. Lines of module and class bodies run at
    import, and are left out."""
    path = ROOT / module
    found: list[set[int]] = []
    waiting: list[tuple[CodeType, set[int] | None]] = [(compile(path.read_bytes(), str(path), "exec"), None)]
    while waiting:
        code, inside = waiting.pop()
        if inside is None and code.co_flags & inspect.CO_OPTIMIZED:
            inside = set()
            found.append(inside)
        if inside is not None:
            inside.update(line for _, _, line in code.co_lines() if line and line != code.co_firstlineno)
        waiting += [(each, inside) for each in code.co_consts if isinstance(each, CodeType)]
    return found


class ReaderCoverage(NamedTuple):
    """Lines of a reader's files: reached, in all, and in functions of which some line was reached (the others are
    those of the writer beside it, mostly)."""

    reached: int
    lines: int
    entered: int


def covered(modules: Iterable[str], lines: Iterable[Line]) -> ReaderCoverage:
    by_file: dict[str, set[int]] = {}
    for file, line in lines:
        by_file.setdefault(str(Path(file).resolve()), set()).add(line)
    reached = total = entered = 0
    for module in modules:
        seen = by_file.get(str((ROOT / module).resolve()), set())
        for known in functions_of(module):
            total += len(known)
            reached += len(known & seen)
            entered += len(known) if known & seen else 0
    return ReaderCoverage(reached, total, entered)
