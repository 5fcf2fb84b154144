"""The fold under way and the events that wait for it. Pure; what a fold does is the parameter store's business.

A fold is atomic for the rest of the coordinator: reports, losses, timers, the end or the suspension of a job that come
while the store works are handled after its answer, in their order. So a model never hears of a report between its
`Update` and `Updated`, a worker is never lost in the middle of a fold, and a report is folded once. The price: with a
store that defers its answers one fold is under way at a time. Signs of life are heard at once, and a store that does
not answer in time ends the job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from flegel.errors import FlegelError, ProtocolError
from flegel.machine.coordinator.events import Event, FoldFinished, FromWorker, Note, SetTimer, Timer
from flegel.machine.coordinator.liveness import Liveness
from flegel.machine.coordinator.state import JobState
from flegel.messages import WorkerBeat
from flegel.params.protocol import Fold, Folded

TICK = 1.0  # seconds between two looks at who is silent

AfterFold = Callable[[Fold, Folded, float], None]
"""Phase two of an update: the request, the store's answer, the time."""


class FoldQueue:
    """At most one fold, and what happened since it was asked for."""

    def __init__(self, job: JobState, liveness: Liveness) -> None:
        self._job, self._liveness = job, liveness
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
        request, then, asked_at = self.pending
        match event:
            case FoldFinished(folded) if folded.number == request.number:
                self.pending = None
                if folded.error is not None:
                    return folded.error
                then(request, folded, now)
            case FoldFinished():
                self.repeated(event)
            case Timer("watch"):
                self._liveness.look(now)
                if now - asked_at > self._job.timeouts.report:
                    self.pending = None
                    waited = f"{now - asked_at:.0f} s"
                    return ProtocolError(
                        f"The parameter store did not fold the reports of {request.place} within {waited}."
                    )
                self._job.out.append(SetTimer(now + TICK, Timer("watch")))
            case FromWorker(worker, body):
                self._liveness.hear(worker, body, now)
                if type(body) is not WorkerBeat:
                    self._deferred.append(event)
            case _:
                self._deferred.append(event)
        return None

    def next_deferred(self) -> Event | None:
        """The next event that waited; None while a fold is under way."""
        return self._deferred.popleft() if self._deferred and self.pending is None else None

    def repeated(self, event: FoldFinished) -> None:
        """An answer to no question: it changes nothing."""
        self._job.out.append(Note(f"the parameter store answered fold {event.folded.number} again; ignored"))
