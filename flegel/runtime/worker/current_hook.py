"""Which hook of the user's class this process is in, if any: beats carry it, and verdicts name it.

One thread runs hooks, another one reads; nothing here waits or decides. A child process that a hook has forked and that
comes back from the hook is ended: it would go on as a second worker.
"""

from __future__ import annotations

import os

MODULE = "the module of the class"
"""The code around the class, which runs when it is loaded."""

_inside: list[str] = []


class inside:
    """Around a call of user code. What the engine does itself, reading and compiling, stays outside."""

    def __init__(self, hook: str) -> None:
        self._hook = hook

    def __enter__(self) -> None:
        self._pid = os.getpid()
        _inside.append(self._hook)

    def __exit__(self, *_: object) -> None:
        if os.getpid() != self._pid:
            os.write(2, f"flegel: {self._hook} forked, and the child process came back; the child is ended.\n".encode())
            os._exit(1)
        _inside.pop()


def current() -> str:
    """The innermost hook that has been entered and not left; empty where the engine is at work."""
    entered = _inside[-1:]  # one step, so that the other thread may leave meanwhile
    return entered[0] if entered else ""
