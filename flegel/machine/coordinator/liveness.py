"""Who has been silent, who is late, who does not get on: every wait has a deadline and names its peer. Pure.

Two signs of life: a worker's messages (its I/O thread beats whatever else it does) and, in its beats, the hook that it
is in and the number of points done. A process that is killed, frozen or cut off gives neither, and counts as lost; one
that beats but stays in the same hook without finishing a single point has code that does not return, which no other
worker would do better. That holds whenever hooks run: while shards are loaded, in training, when points change owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flegel.configuration.active import active
from flegel.core.own_pauses import OwnPauses
from flegel.errors import AlgorithmError, FlegelError, OutOfReach, UsageError
from flegel.machine.coordinator.events import Timeouts
from flegel.messages import CLASS_MODULE_CODE, Answer, WorkerBeat, WorkerFailed
from flegel.wording import option

VISITS = ("contribution", "hidden", "updateDataPoint")
"""Hooks that visit a point."""

OverdueCheck = Callable[[int, float], str]
"""Gets a worker and the seconds since it was last told to do something; answers a sentence, or nothing where all is
well."""

NOWHERE: tuple[tuple[str, int], float, int] = (("", -1), 0.0, 0)


class Liveness:
    """Told of every message and order; asked now and then."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self.asked_at: dict[int, float] = {}
        self._heard_at: dict[int, float] = {}
        self._progress: dict[int, tuple[tuple[str, int], float, int]] = {}
        """Hook and points done by the last beat, since when that is so, and beats that said so."""
        self._pauses = OwnPauses(active().liveness.coordinator_pause_seconds)

    def look(self, now: float) -> None:
        """Called before anybody is judged. Where the coordinator was held up itself, by a long hook or because its host
        slept, it has not listened, and that time counts as silence of no worker."""
        away = self._pauses.look(now)
        if away:
            self.asked_at.update({w: at + away for w, at in self.asked_at.items()})
            self._heard_at = {w: at + away for w, at in self._heard_at.items()}
            self._progress = {w: (mark, at + away, beats) for w, (mark, at, beats) in self._progress.items()}

    def expect(self, worker: int, now: float) -> None:
        """The worker was told to do something."""
        self.expect_all((worker,), now)

    def expect_all(self, workers: Iterable[int], now: float) -> None:
        for worker in workers:
            self.asked_at[worker] = now
            self._heard_at.setdefault(worker, now)
            self._progress[worker] = (self._progress.get(worker, NOWHERE)[0], now, 0)

    def hear(self, worker: int, body: Answer, now: float) -> None:
        self._heard_at[worker] = now
        if type(body) is WorkerBeat:
            mark, since, beats = self._progress.get(worker, NOWHERE)
            same = mark == (body.hook, body.visits)
            self._progress[worker] = (mark, since, beats + 1) if same else ((body.hook, body.visits), now, 0)

    def forget(self, worker: int) -> None:
        for known in (self.asked_at, self._heard_at, self._progress):
            known.pop(worker, None)

    def silent(self, now: float) -> list[tuple[int, str]]:
        """Workers that count as lost, and why."""
        return [
            (worker, f"has been silent for {now - heard:.0f} s")
            for worker, heard in self._heard_at.items()
            if now - heard > self._timeouts.silence
        ]

    def stuck(self, where: str, now: float) -> tuple[int, str] | None:
        """A worker that beats, and does not get out of a hook."""
        settings = active().liveness
        for worker, ((hook, _), since, beats) in self._progress.items():
            limit = self._timeouts.hook * (settings.hook_timeouts_of_module if hook == CLASS_MODULE_CODE else 1)
            if hook and now - since > limit and beats > settings.beats_of_stuck_worker * limit:
                stays = "has not finished a single point" if hook in VISITS else f"has been in {hook}"
                return worker, (
                    f"Worker {worker} is alive, but {stays} for {now - since:.0f} s in {where}; does {hook} return? "
                    f"A longer {option('hook_timeout')} gives it more time."
                )
        return None

    def overdue(self, now: float, checks: Iterable[OverdueCheck]) -> tuple[int, str] | None:
        """The first worker that has kept the job waiting for too long, and what it did not do."""
        asked = list(checks)
        for worker, at in self.asked_at.items():
            for check in asked:
                if text := check(worker, now - at):
                    return worker, text
        return None


def failure(worker: int, body: WorkerFailed) -> FlegelError:
    """A worker's failure as the caller should see it."""
    if body.usage:
        return UsageError(body.error)
    if body.where == OutOfReach.where:
        return OutOfReach(body.error)
    place = f"worker {worker}, round {body.round}" if body.round >= 0 else f"worker {worker}"
    return AlgorithmError(f"{body.where} raised {body.error} ({place})", body.trace)
