"""Workers that slaves start for a coordinator: the cluster that a job on several hosts trains with.

`start` only says which workers are wanted, with what each of them must know; the slave passes it on to the master,
which finds a seat. What becomes of them is told by `lose`, from the thread that listens to the slave.
"""

from __future__ import annotations

from typing import IO

import msgspec

from flegel.cluster.slave import coordinator_protocol
from flegel.cluster.slave.coordinator_pipe import CoordinatorPipe
from flegel.messages import Envelope
from flegel.runtime import clock
from flegel.runtime.processes.remote_cluster import RemoteCluster
from flegel.runtime.worker.process import WorkerConfig

RETELL = 0.5
"""Seconds after which the slave is told that workers have come, whose births nobody needs any more."""


class RemoteProcess:
    """A worker process on some host, as its coordinator knows it."""

    stdin: IO[bytes] | None = None

    def __init__(self, birth: WorkerConfig) -> None:
        self.birth = birth
        self.why: str | None = None
        self.fault = False

    def poll(self) -> int | None:
        return None if self.why is None else 1

    def wait(self, timeout: float | None = None) -> int:
        """Its slave ends it, not this process."""
        return 1

    def terminate(self) -> None:
        """See `wait`."""

    def kill(self) -> None:
        """See `wait`."""


class SlaveWorkers(RemoteCluster):
    """Workers on slaves."""

    def __init__(self, workers: int, host: str, voice: CoordinatorPipe) -> None:
        super().__init__(workers, host, start=self._want)
        self._voice = voice
        self._away: dict[int, RemoteProcess] = {}
        self._trouble = ""
        self._retell_at: float | None = None

    def _want(self, birth: WorkerConfig) -> RemoteProcess:
        away = self._away[birth.worker] = RemoteProcess(birth)
        self._tell()
        return away

    def _tell(self) -> None:
        self._retell_at = None
        births = {worker: away.birth for worker, away in list(self._away.items()) if away.why is None}
        here = set(self._ready)
        told = {w: msgspec.json.encode(birth).decode() for w, birth in births.items() if w not in here}
        lives = {worker: birth.incarnation for worker, birth in births.items()}
        self._voice.tell(coordinator_protocol.WorkersWanted(lives, told, self._trouble))

    def lose(self, worker: int, life: int, why: str, fault: bool = False) -> None:
        """A worker has ended; may be said more than once."""
        away = self._away.get(worker)
        if away is not None and away.birth.incarnation == life and away.why is None:
            away.why, away.fault = why, fault
            self._trouble = f"worker {worker} {why}"
            self._tell()

    def expel(self, worker: int, gently: bool = False) -> None:
        """Nobody wants it any more, so its slave ends it."""
        away = self._away.pop(worker, None)
        super().expel(worker, gently)
        if away is not None:
            away.why = away.why or "has left"
            self._tell()

    def greet(self, envelope: Envelope) -> bool:
        came = super().greet(envelope)
        if came and self._retell_at is None:
            self._retell_at = clock.now() + RETELL
        return came

    def deaths(self) -> list[tuple[int, str, bool]]:
        super().deaths()
        if self._retell_at is not None and clock.now() >= self._retell_at:
            self._tell()
        return [(worker, away.why, away.fault) for worker, away in self._away.items() if away.why is not None]
