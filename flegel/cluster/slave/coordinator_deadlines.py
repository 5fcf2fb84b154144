"""How long a job's coordinator may take for what it does. Pure: told of its reports, asked now and then.

User code runs in the coordinator, and while a hook runs nothing is reported. So silence where the coordinator should
speak is a hook that does not return, whatever that hook does; and `--max-seconds` is kept by somebody whom user code
cannot hold up.
"""

from __future__ import annotations

from dataclasses import dataclass

OVERTIME = 3.0
"""Seconds that a job may take beyond its own limit before it is ended."""
COMPILING = 120.0
"""Seconds that compiling may take beyond that."""


@dataclass
class CoordinatorDeadlines:
    """Of one attempt. Reading has no limit here: the coordinator itself has one for what workers read."""

    max_seconds: float | None = None
    hook_timeout: float = 30.0
    phase: str = ""
    hook: str = ""
    """The one that was entered last, where that is known."""
    since: float = 0.0
    """When the phase began."""
    heard: float = 0.0
    looped: bool = False
    """Its loop has turned in this phase: from then on it is heard twice a second."""

    def told(self, phase: str, hook: str, now: float) -> None:
        """The coordinator begins something."""
        if phase != self.phase:
            self.since, self.looped = now, False
        self.phase, self.hook, self.heard = phase, hook, now

    def turned(self, now: float) -> None:
        """Its loop turns: no hook holds it up."""
        self.heard, self.hook, self.looped = now, "", True

    def verdict(self, now: float, trouble: str = "") -> str:
        """Why it must end; empty while it may go on. `trouble`: how it lost a worker, which may be why it is late."""
        silent, compiling = now - self.heard, self.phase == "compiling"
        more = COMPILING if compiling else OVERTIME
        watched = self.phase in ("init", "compiling", "training", "result") or self.looped
        taken = silent if self.phase == "loading" else now - self.since
        hint = f"before that, {trouble}" if trouble else "does every hook return?"
        where = f"phase: {self.phase}, in {self.hook}" if self.hook else f"phase: {self.phase}"
        if watched and self.max_seconds is not None and taken > self.max_seconds + more:
            return f"did not end within --max-seconds {self.max_seconds:g} and {more:.0f} s more ({where}); {hint}"
        if watched and silent > self.hook_timeout + (COMPILING if compiling else 0.0):
            limit = f"longer than --hook-timeout {self.hook_timeout:g} s"
            return f"was held up by a hook for {silent:.0f} s, {limit} ({where}); {hint}"
        return ""
