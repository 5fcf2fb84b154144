"""The fold under way and the events that wait for it. Pure; what a fold does is the parameter store's business.

A fold is atomic for the rest of the coordinator: reports, losses, timers, the end or the suspension of a job that come
while the store works are handled after its answer, in their order. So a model never hears of a report between its
`Update` and `Updated`, a worker is never lost in the middle of a fold, and a report is folded once. The price: with a
store that defers its answers one fold is under way at a time. Signs of life are heard at once, a worker that fails ends
the job, and so does a store that does not answer in time. Where the workers themselves do the fold
(`params/replicated.py`) the loss of one undoes it: the reports are held again, and the loss is handled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from flegel.configuration.active import active
from flegel.errors import FlegelError, ProtocolError
from flegel.machine.coordinator.events import (
    Event,
    FoldFinished,
    FromWorker,
    Note,
    SetTimer,
    Timer,
    WorkerDied,
)
from flegel.machine.coordinator.liveness import Liveness, failure
from flegel.machine.coordinator.state import JobState
from flegel.messages import Reduced, WorkerBeat, WorkerFailed
from flegel.params.protocol import Fold, Folded

AfterFold = Callable[[Fold, Folded, float], None]
"""Phase two of an update: the request, the store's answer, the time."""


class FoldQueue:
    """At most one fold, and what happened since it was asked for."""

    def __init__(self, job: JobState, liveness: Liveness, give_back: Callable[[Fold], None]) -> None:
        """`give_back`: takes the reports of a fold that was undone."""
        self._job, self._liveness, self._give_back = job, liveness, give_back
        self.pending: tuple[Fold, AfterFold, float] | None = None
        """The request, what comes after it, and when it was made."""
        self._deferred: deque[Event] = deque()

    def ask(self, request: Fold, then: AfterFold, now: float) -> None:
        """Phase one of an update. A store that answers at once brings about `then` within this call."""
        folded = self._job.store.fold(request)
        if folded is None:
            self.pending = request, then, now
        else:
            then(request, folded, now)

    def hear(self, event: Event, now: float) -> FlegelError | None:
        """An event while a fold is under way; the error, where that ends the job."""
        assert self.pending is not None
        request, _, asked_at = self.pending
        match event:
            case FoldFinished(folded) if folded.number == request.number:
                return self._conclude(folded, now)
            case FoldFinished():
                self.repeated(event)
            case WorkerDied(worker) if self._job.store.interrupted(worker):
                self._undo(event)
            case Timer("watch"):
                self._liveness.look(now)
                if any(self._job.store.interrupted(worker) for worker, _ in self._liveness.silent(now)):
                    self._undo(event)
                    return None
                if (late := self._liveness.stuck(request.place, now)) is not None:
                    return ProtocolError(late[1])
                if now - asked_at > self._job.timeouts.report:
                    self.pending = None
                    waited = f"{now - asked_at:.0f} s"
                    return ProtocolError(
                        f"The parameter store did not fold the reports of {request.place} within {waited}."
                    )
                self._job.out.append(SetTimer(now + active().liveness.silence_check_seconds, Timer("watch")))
            case FromWorker(worker, Reduced() as body, arrays):
                self._liveness.hear(worker, body, now)
                answer = self._job.store.heard(worker, body, arrays)
                return None if answer is None else self._conclude(answer, now)
            case FromWorker(worker, WorkerFailed() as body):
                return failure(worker, body)
            case FromWorker(worker, body):
                self._liveness.hear(worker, body, now)
                if type(body) is not WorkerBeat:
                    self._deferred.append(event)
            case _:
                self._deferred.append(event)
        return None

    def _conclude(self, folded: Folded, now: float) -> FlegelError | None:
        assert self.pending is not None
        request, then, _ = self.pending
        self.pending = None
        if folded.error is None:
            then(request, folded, now)
        return folded.error

    def _undo(self, event: Event) -> None:
        """A worker that the fold needed is lost: that comes first, with all reports as they were."""
        assert self.pending is not None
        self._give_back(self.pending[0])
        self.pending = None
        self._deferred.appendleft(event)

    def defers(self, event: Event) -> bool:
        """A fold is under way, begun in this very event: this comes after it."""
        if self.pending is not None:
            self._deferred.append(event)
        return self.pending is not None

    def next_deferred(self) -> Event | None:
        """The next event that waited; None while a fold is under way."""
        return self._deferred.popleft() if self._deferred and self.pending is None else None

    def repeated(self, event: FoldFinished) -> None:
        """An answer to no question: it changes nothing."""
        self._job.out.append(Note(f"the parameter store answered fold {event.folded.number} again; ignored"))
