"""Which lines of the package an input reached for the first time: the guide of the fuzzing program.

With Python 3.12 `sys.monitoring` reports each line once and then costs nothing; with 3.11 `sys.settrace` follows one
input in sixteen. Both see lines of `flegel` alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import flegel

ROOT = str(Path(flegel.__file__).parents[1])
MONITORING = hasattr(sys, "monitoring")
EVERY = 1 if MONITORING else 16


class LineCoverage:
    """`reached(call)`: run it, and tell how many lines were new."""

    def __init__(self) -> None:
        self.lines: set[tuple[str, int]] = set()
        self._calls = 0
        self.kind = "sys.monitoring" if MONITORING else "sys.settrace, one input in 16"
        if MONITORING:
            self._tool: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
            self._tool.use_tool_id(3, "fuzz")
            self._tool.register_callback(3, self._tool.events.LINE, self._line)
            self._tool.set_events(3, self._tool.events.LINE)

    def _line(self, code: CodeType, number: int) -> Any:
        if code.co_filename.startswith(ROOT):
            self.lines.add((code.co_filename, number))
        return self._tool.DISABLE

    def reached(self, call: Callable[[], Any]) -> int:
        before = len(self.lines)
        self._calls += 1
        if MONITORING or self._calls % EVERY:
            call()
        else:
            sys.settrace(self._trace)
            try:
                call()
            finally:
                sys.settrace(None)
        return len(self.lines) - before

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        if event == "line":
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._trace
