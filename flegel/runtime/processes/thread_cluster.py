"""Workers in threads of this process, for jobs that end before processes would have started. Decides nothing.

They are the same workers as elsewhere, with the same messages; only sockets and arrays stay inside this process. A
thread cannot be killed: a hook that never returns fails the job, but goes on until this process ends. A crash of
compiled code ends this process. So a user's own class runs here only where the user asks for it.
"""

from __future__ import annotations

import os
import subprocess
import threading
import traceback
from typing import IO, Any

import numpy as np
import zmq

from flegel.core.pytree import Array
from flegel.errors import ProtocolError
from flegel.runtime.processes.endpoints import LocalEndpoint
from flegel.runtime.processes.held_arrays import HeldArrays
from flegel.runtime.processes.worker_cluster import WorkerCluster
from flegel.runtime.system.exit_codes import describe_exit
from flegel.runtime.transport import job_sockets
from flegel.runtime.transport.poller import Poller
from flegel.runtime.transport.shared_memory import JobArray
from flegel.runtime.worker.process import WorkerConfig, WorkerLoop

THREAD_END_SECONDS = 30.0  # seconds to wait for a thread that was told to end, where no other limit is given


class ThreadEndpoint(LocalEndpoint):
    """A socket that only threads of this process can reach."""

    def __init__(self) -> None:
        super().__init__()
        self._held_arrays = HeldArrays()

    @property
    def context(self) -> zmq.Context[Any]:
        if self._context is None:
            raise ProtocolError("The endpoint is closed.")
        return self._context

    def _bind(self, listener: zmq.Socket[bytes]) -> str:
        return job_sockets.bind_inside(listener)

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> JobArray:
        return self._held_arrays.hold(np.empty(shape, dtype))

    def lend_array(self, array: Array, readers: int | None) -> JobArray | None:
        return self._held_arrays.hold(array)

    def open_array(self, description: dict[str, Any]) -> Array:
        return self._held_arrays.open(description)


class WorkerThread:
    """A worker as its cluster sees it, with the methods of a process; `kill` can only ask it to end."""

    def __init__(self, config: WorkerConfig, endpoint: ThreadEndpoint) -> None:
        """Start a worker in a thread that looks like a process to its cluster: closing `stdin` ends it."""
        self._stdin_reader, write = os.pipe()
        self.stdin: IO[bytes] | None = os.fdopen(write, "wb")
        self.returncode: int | None = None
        self._thread = threading.Thread(
            target=self._run, args=(config, endpoint), name=f"worker-{config.worker}", daemon=True
        )
        self._thread.start()

    def _run(self, config: WorkerConfig, endpoint: ThreadEndpoint) -> None:
        """In the thread: the loop of a worker; `returncode` is set when it ends."""
        code = 1
        try:
            code = WorkerLoop(config, endpoint).run(self._stdin_reader)
        except Exception:  # noqa: BLE001 - printed, and ends this worker only, as in a process of its own
            traceback.print_exc()
        finally:
            os.close(self._stdin_reader)
            self.returncode = code

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(THREAD_END_SECONDS if timeout is None else timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a worker", timeout or THREAD_END_SECONDS)
        return self.returncode

    def terminate(self) -> None:
        """Its standard input is closed already; nothing else ends a thread."""

    def kill(self) -> None:
        """As `terminate`."""


class ThreadLauncher:
    """Starts workers in threads."""

    def __init__(self, endpoint: ThreadEndpoint) -> None:
        self._endpoint = endpoint

    def open(self, poller: Poller) -> None:
        """No descriptors: the driver looks at its workers ten times a second."""

    def launch(self, config: WorkerConfig) -> WorkerThread:
        return WorkerThread(config, self._endpoint)

    def prepare_spare(self) -> None:
        """Not needed: a thread starts at once."""

    def update(self) -> None:
        """`WorkerThread.poll` is always current."""

    def job_ended(self) -> None:
        """What hooks have started belongs to the caller's own process, which may have started more."""

    def exit_cause(self, worker: int, code: int) -> tuple[str, bool]:
        return describe_exit(code)

    def worker_ready(self, worker: int) -> None:
        """Not needed here."""

    def worker_removed(self, worker: int) -> None:
        """Not needed here."""

    def ancestor(self) -> int | None:
        """They are this process."""
        return None

    def close(self) -> None:
        """Nothing is held."""


class ThreadCluster(WorkerCluster):
    """`with ThreadCluster(workers=2) as cluster: flegel.run(..., cluster=cluster)`."""

    def __init__(self, workers: int = 1) -> None:
        endpoint = ThreadEndpoint()
        super().__init__(workers, endpoint, ThreadLauncher(endpoint))
