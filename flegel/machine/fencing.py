"""Fencing: a message counts only if its job, epoch and incarnation are current and its number is new.

Pure bookkeeping. A worker that was declared dead comes back as a new incarnation, so nothing that it sent in
its former life is ever applied; a message that arrives twice is applied once.
"""

from __future__ import annotations

from flegel.messages import Envelope


class Fence:
    """Accepts or refuses envelopes; a refusal carries its reason."""

    def __init__(self, job: str, epoch: int = 0) -> None:
        self.job = job
        self.epoch = epoch
        self._incarnation: dict[int, int] = {}
        self._highest: dict[int, int] = {}

    def admit(self, worker: int, incarnation: int) -> None:
        """From now on this incarnation, and no earlier one, speaks for the worker."""
        self._incarnation[worker] = incarnation
        self._highest[worker] = -1

    def expel(self, worker: int) -> None:
        """Refuse all messages of this worker until another incarnation is admitted."""
        self._incarnation.pop(worker, None)

    def speaker(self, worker: int) -> int | None:
        """The incarnation whose messages are accepted now."""
        return self._incarnation.get(worker)

    def refuse(self, envelope: Envelope) -> str | None:
        """None where the message counts (and its number is remembered), else why it does not."""
        if envelope.job != self.job:
            return f"it belongs to job {envelope.job!r}"
        if envelope.epoch != self.epoch:
            return f"it is of epoch {envelope.epoch}, now is {self.epoch}"
        current = self._incarnation.get(envelope.worker)
        if current is None:
            return f"worker {envelope.worker} is not known"
        if envelope.incarnation != current:
            return f"worker {envelope.worker} sent as incarnation {envelope.incarnation}, the current one is {current}"
        if envelope.sequence <= self._highest[envelope.worker]:
            return f"number {envelope.sequence} of worker {envelope.worker} was seen already"
        self._highest[envelope.worker] = envelope.sequence
        return None
