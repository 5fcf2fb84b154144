"""How long a job's coordinator may take for each phase. Pure: it is told of reports and asked for exceeded limits.

User code runs in the coordinator, and while a hook runs nothing is reported. So a coordinator that is silent where it
should report is held up by a hook that does not return; and `--max-seconds` is enforced here, outside the process that
user code can hold up.
"""

from __future__ import annotations

from dataclasses import dataclass

from flegel.configuration.active import active
from flegel.core.hook_limits import COMPILING_SECONDS


@dataclass
class CoordinatorDeadlines:
    """Limits of one attempt. Reading has none here: the coordinator itself limits what workers read."""

    max_seconds: float | None = None
    hook_timeout: float = 30.0
    worker_timeout: float = 10.0
    """After which a silent worker is replaced: a coordinator whose loop runs may wait for one that is frozen."""
    start_extra: float = 0.0
    """Seconds beyond the limit of a hook that the choice of the first parameters may take."""
    phase: str = ""
    hook: str = ""
    """The hook that was entered last, if known."""
    since: float = 0.0
    """When the phase began."""
    last_report: float = 0.0
    loop_runs: bool = False
    """Its loop runs in this phase: from then on it reports twice a second."""
    excused: float = 0.0
    """Seconds that did not count, all together."""

    def phase_changed(self, phase: str, hook: str, now: float) -> None:
        """The coordinator has begun a phase or entered a hook."""
        if phase != self.phase:
            self.since, self.loop_runs = now, False
        self.phase, self.hook, self.last_report = phase, hook, now

    def progress_seen(self, now: float) -> None:
        """Its loop runs: no hook holds it up."""
        self.last_report, self.hook, self.loop_runs = now, "", True

    def excuse(self, seconds: float, now: float) -> None:
        """The coordinator or its slave was stopped for so long: the time counts neither as silence nor for the
        phase."""
        if self.excused < active().cluster.excused_seconds:
            self.excused += seconds
            self.since, self.last_report = min(self.since + seconds, now), min(self.last_report + seconds, now)

    def exceeded(self, now: float, last_loss: str = "") -> str:
        """Why the coordinator's process must end; empty while it may continue. `last_loss`: how it lost a worker,
        perhaps why it is late."""
        silent, compiling = now - self.last_report, self.phase == "compiling"
        rules = active().cluster
        may_wait_for_a_worker = self.loop_runs and silent < rules.overtime_seconds
        replacing = self.worker_timeout + rules.worker_replacement_seconds if may_wait_for_a_worker else 0.0
        grace = COMPILING_SECONDS if compiling else rules.overtime_seconds + replacing
        # In these phases user code runs in the coordinator; reading is limited by the coordinator itself.
        watched = self.phase in ("init", "compiling", "training", "result") or self.loop_runs
        taken = silent if self.phase == "loading" else now - self.since
        hint = f"before that, {last_loss}" if last_loss else "does every hook return?"
        where = f"phase: {self.phase}, in {self.hook}" if self.hook else f"phase: {self.phase}"
        if watched and self.max_seconds is not None and taken > self.max_seconds + grace:
            return f"did not end within --max-seconds {self.max_seconds:g} and {grace:.0f} s more ({where}); {hint}"
        extra = {"compiling": COMPILING_SECONDS, "init": self.start_extra}.get(self.phase, 0.0)
        if watched and silent > self.hook_timeout + extra:
            limit = f"longer than --hook-timeout {self.hook_timeout:g} s"
            return f"was held up by a hook for {silent:.0f} s, {limit} ({where}); {hint}"
        return ""
