"""How a coordinator stops and goes on: what it does where checkpoints are taken, and where a resumed job begins. Pure.

When one is due and whose part is awaited is `machine/coordinator/checkpoint_schedule.py`; what is in it is
`machine/coordinator/snapshot.py`.
"""

from __future__ import annotations

from flegel.errors import FlegelError
from flegel.machine.coordinator.checkpoint_schedule import CheckpointSchedule
from flegel.machine.coordinator.events import Command, Suspend, Timer
from flegel.plan.termination import Verdict
from flegel.sync.policy import Event, Updated, View


class SuspendProtocol:
    """The part of the coordinator that keeps its state. The attributes are the coordinator's."""

    phase: str
    view: View
    verdict: Verdict | None
    keeping: CheckpointSchedule | None
    ended: float
    _out: list[Command]
    _resumed: Updated | None
    _last: Updated | None
    _stood_at: float
    _fresh_balance: bool

    def _decide(self, event: Event, now: float) -> None:
        raise NotImplementedError

    def _stop(self, workers: tuple[int, ...], now: float) -> None:
        raise NotImplementedError

    def _steady(self) -> bool:
        raise NotImplementedError

    def _collect(self, now: float) -> None:
        raise NotImplementedError

    def _finish(self, error: FlegelError | None = None) -> None:
        raise NotImplementedError

    def resume_with(self, event: Updated, now: float, fresh_balance: bool) -> None:
        """Go on where the job stood (see machine/coordinator/snapshot.py): once all are loaded, the model hears
        this."""
        self._resumed, self._stood_at, self._fresh_balance = event, now, fresh_balance

    def _proceed(self, event: Updated, now: float) -> None:
        """The model decides what comes next; where a checkpoint is due and nobody trains, that is kept first."""
        if self.keeping is not None:
            self._out += self.keeping.at_rest(self, event, now)  # type: ignore[arg-type]
            if self.keeping.left:
                self.phase = "keeping"
                return
        self._decide(event, now)

    def _keep_event(self, event: Timer | Suspend, now: float) -> None:
        if self.keeping is None or self.phase not in ("loading", "training") or self.verdict is not None:
            return
        self._out += self.keeping.heard(self, event, now)  # type: ignore[arg-type]
        if self.keeping.gave_up or (self.keeping.leaving and self.phase == "loading"):
            self._finish()
        elif not self._steady():
            self.keeping.forced = False  # everybody comes to rest anyway
        elif self.keeping.forced:
            self._stop(tuple(w for w in self.view.training() if not self.view.workers[w].stopping), now)

    def _kept(self, keeping: CheckpointSchedule, now: float) -> None:
        """All parts of the last checkpoint are here."""
        if keeping.left:
            self._finish()
        else:
            self._collect(now)

    def _over(self, now: float) -> None:
        self.ended = now
        if self.keeping is None or self._last is None:
            self._collect(now)
            return
        self.phase = "keeping"
        self._out += self.keeping.begin(self, self._last, now)  # type: ignore[arg-type]
