"""Workers that slaves start for a coordinator: the cluster that a job on several hosts trains with."""

from __future__ import annotations

import threading
from typing import Any

import zmq

from flegel.cluster import tale
from flegel.runtime.local import LocalCluster
from flegel.runtime.poll import Sleeper
from flegel.runtime.wire import Numbered


class _Away:
    """Stands for a process on another host."""

    stdin = None

    def __init__(self) -> None:
        self.why: str | None = None

    def poll(self) -> int | None:
        return None if self.why is None else 1

    def wait(self, timeout: float) -> int:
        return 0

    def terminate(self) -> None: ...

    kill = terminate


class Hired(LocalCluster):
    def __init__(self, errand: tale.Errand, voice: Any) -> None:
        super().__init__(errand.workers)
        self._errand, self._voice = errand, voice
        self._lock = threading.Lock()
        self._away: dict[int, _Away] = {}

    def start(self) -> None:
        super().start()
        wants = {w: v.incarnation for w, v in self._voices.items()}
        self._voice.tell(tale.Opened(self._address, self.token, ""))
        self._voice.tell(tale.Wanted(wants))

    def _open(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        port = self._socket.bind_to_random_port(f"tcp://{self._errand.host}")
        self._address = f"tcp://{self._errand.host}:{port}"
        self._sleeper = Sleeper(self._socket)

    def _spawn(self, worker: int) -> None:
        life = self._voices[worker].incarnation + 1 if worker in self._voices else 0
        self._processes[worker] = self._away[worker] = _Away()  # type: ignore[assignment]
        self._voices[worker] = Numbered(self.token, 0, worker, life)
        self._ready.discard(worker)

    def lose(self, worker: int, life: int, why: str) -> None:
        if self.incarnations().get(worker) == life:
            self._away[worker].why = why

    def resize(self, workers: int) -> None: ...

    def drain(self, workers: tuple[int, ...]) -> None: ...

    def deaths(self) -> list[tuple[int, str]]:
        return [(w, p.why) for w, p in self._away.items() if p.why is not None]
