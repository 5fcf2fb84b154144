"""Which lines of the package an input reached first, and which lines of a reader its inputs reached in all.

With Python 3.12 `sys.monitoring` reports each line once for each turn of a reader and then costs nothing; with 3.11
`sys.settrace` follows one input in sixteen. Both see lines of `flegel`, `algorithms` and `datasets` alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

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

    def reached(self, call: Callable[[], Any]) -> int:
        before = len(self._now)
        self._calls += 1
        if MONITORING or self._calls % EVERY:
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


def lines_of(module: str) -> set[int]:
    """Lines of a file that can be reached by calling its functions: those of module and class bodies run at import."""
    path = ROOT / module
    found: set[int] = set()
    waiting = [(compile(path.read_bytes(), str(path), "exec"), False)]
    while waiting:
        code, inside = waiting.pop()
        function = inside or bool(code.co_flags & 0x1 and code.co_flags & 0x2)  # optimized, with locals of its own
        if function:
            found |= {line for _, _, line in code.co_lines() if line and line != code.co_firstlineno}
        waiting += [(each, function) for each in code.co_consts if isinstance(each, CodeType)]
    return found


def share(modules: Iterable[str], lines: Iterable[Line]) -> tuple[int, int]:
    """How many lines of these files were reached, and how many there are."""
    by_file: dict[str, set[int]] = {}
    for file, line in lines:
        by_file.setdefault(str(Path(file).resolve()), set()).add(line)
    reached = total = 0
    for module in modules:
        known = lines_of(module)
        total += len(known)
        reached += len(known & by_file.get(str((ROOT / module).resolve()), set()))
    return reached, total
