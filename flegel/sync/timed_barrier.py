"""Barriers that do not wait for ever for a slow worker: the timer of dSyncPS (paper 3.1.2). No clock.

The timer starts with the first report of a round. When it is over, workers that have not reported are stopped, and
report what they have done. Nothing of that is lost: the points that they did not reach come first in the next round.
"""

from __future__ import annotations

from flegel.sync.policy import NOTHING, Decision, StopWorkers, SyncModel, View, Wake, names


class TimedBarrier(SyncModel):
    """A model whose barriers wait for all workers, and with `barrier_timeout` only for so long."""

    def __init__(self, barrier_timeout: float | None = None) -> None:
        """`barrier_timeout`: seconds after the first report; None: as long as it takes."""
        self._barrier_timeout = barrier_timeout
        self._timed_round = -1
        """The round whose timer runs."""

    def begin_waiting(self, view: View, now: float) -> Decision:
        """A worker has reported, and others have not."""
        if self._barrier_timeout is None or self._timed_round == view.round:
            return NOTHING
        self._timed_round = view.round
        return Decision((Wake(now + self._barrier_timeout, view.round),))

    def end_waiting(self, tag: int, view: View) -> Decision:
        """The timer of a round is over: stop those who still train, where it is the present round."""
        late = view.training()
        if tag != view.round or not late or self._barrier_timeout is None:
            return NOTHING
        why = f"the barrier has waited {self._barrier_timeout:g} s for workers {names(late)}"
        return Decision((StopWorkers(late),), why)
