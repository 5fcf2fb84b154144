"""Ctrl-C and SIGTERM for a job that keeps checkpoints: the first asks it to stop cleanly, the second ends it."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from flegel.errors import Interrupted

WORDS = {signal.SIGINT: ("interrupted", 130), signal.SIGTERM: ("terminated", 143)}


class Signals:
    """`with Signals() as signals:`; `signals()` says why to stop. Does nothing outside the main thread."""

    def __init__(self) -> None:
        self.why, self.exit_code = "", 0
        self._before: dict[int, Any] = {}

    def __call__(self) -> str:
        return self.why

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._came) for number in WORDS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self.why:
            word, code = WORDS[signal.Signals(number)]
            raise Interrupted(f"{word} twice; stopped at once, without a last checkpoint.", code)
        self.why, self.exit_code = WORDS[signal.Signals(number)]
