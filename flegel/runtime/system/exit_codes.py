"""Exit codes of processes in words. Asks no process."""

from __future__ import annotations

import signal

SIGNALS_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals that come from outside; death by any other signal is the process's own fault."""
DISCONNECTED_EXIT_CODE = 75
"""Exit code of a worker whose coordinator is gone or out of reach (EX_TEMPFAIL of sysexits.h)."""


def describe_exit(code: int) -> tuple[str, bool]:
    """How a process ended, and whether by its own fault: a crash or an exit code, not a signal from outside."""
    if code == DISCONNECTED_EXIT_CODE:
        return "lost its connection to the coordinator", False
    if code >= 0:
        return f"ended with exit code {code}", True
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    return f"was killed by {name}", -code not in SIGNALS_FROM_OUTSIDE
