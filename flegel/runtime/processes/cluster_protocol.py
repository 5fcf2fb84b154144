"""What a job needs of the processes that work for it, on this host or on others. Interface only, no behaviour.

`flegel.run` and the driver use nothing else of a cluster. `LocalCluster` and the cluster that slaves
provide (`SlaveWorkers`) implement it; `check_cluster` in the tests says what every implementation must do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from flegel.core.pytree import Array
from flegel.job import Job
from flegel.machine.coordinator.events import LeaveJob, ScaleTo
from flegel.messages import Envelope, Order
from flegel.runtime.transport.codec import EMPTY, PackedArrays
from flegel.runtime.transport.shared_memory import JobArray

DEFAULT_SILENCE_SECONDS = Job().worker_timeout
"""Of a cluster that starts before it has a job, which could say otherwise."""


def ignore(text: str) -> None:
    """For callers with nobody to tell."""


class WorkerDeath(NamedTuple):
    """A worker whose process has ended."""

    worker: int
    why: str
    fault: bool
    """By its own doing (a crash, an exit code), not by a signal from outside."""


class Cluster(Protocol):
    """Worker processes for one job at a time. `scale` and `drain` may be called from any thread, the rest from one."""

    @property
    def workers(self) -> int:
        """How many there should be."""
        ...

    # -- life cycle ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every worker that is not running, and return at once."""
        ...

    def wait_ready(self, silence: float = DEFAULT_SILENCE_SECONDS, say: Callable[[str], None] = ignore) -> None:
        """Until every worker has said hello; raises `WorkerLost` with the name of one that died or is late. What starts
        them is replaced once where it does nothing for `silence` seconds, which `say` is told of before."""
        ...

    def close(self) -> None:
        """End all workers; afterwards no process, socket or memory of the cluster is left. May be called twice."""
        ...

    # -- one job ---------------------------------------------------------------------------------------------------

    def new_job(self) -> str:
        """A name that fences this job's messages from those of earlier ones."""
        ...

    def end_job(self) -> None:
        """Workers drop the data of the job."""
        ...

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> JobArray:
        """An array that all workers can read."""
        ...

    def lend_array(self, array: Array) -> JobArray | None:
        """The array itself, where all workers can read ranges of it in place; None: it has to be copied."""
        ...

    def crowded(self, workers: int) -> bool:
        """Whether so many workers have to share processors, as far as that is known."""
        ...

    def send(self, worker: int, body: Order, arrays: PackedArrays = EMPTY) -> None:
        """Raises `WorkerLost` where the worker cannot be reached."""
        ...

    def receive(self, timeout: float) -> Iterator[tuple[Envelope, tuple[Array, ...]]]:
        """Messages that have arrived; waits for the first one until the timeout or the end of a process."""
        ...

    # -- membership ------------------------------------------------------------------------------------------------

    def incarnations(self) -> dict[int, int]:
        """The current incarnation of each worker that was ever started."""
        ...

    def start_worker(self, worker: int) -> bool:
        """Start this worker unless it runs; True if it is ready. Raises `WorkerLost` where it cannot be started."""
        ...

    def accept_hello(self, envelope: Envelope) -> bool:
        """Whether this is the hello of a worker that was just started; it is ready from then on."""
        ...

    def deaths(self) -> list[WorkerDeath]:
        """Workers whose process has ended, until they are evicted."""
        ...

    def evict(self, worker: int, gently: bool = False) -> None:
        """End this worker; messages of this incarnation no longer count. `gently`: let it end by itself."""
        ...

    def dismiss(self, envelope: Envelope) -> None:
        """Tell the sender, which was evicted, to end."""
        ...

    def prepare_spare(self) -> None:
        """Make the next start quick, where that is possible."""
        ...

    def scale(self, workers: int) -> None:
        """Have so many workers from now on, in the running job and in later ones."""
        ...

    def drain(self, worker: int) -> None:
        """This worker hands its points over and ends; raises `UsageError` where no job runs."""
        ...

    def hosts(self) -> dict[int, str]:
        """The host of each worker that has said hello, by its own name for it."""
        ...

    def take_requests(self) -> list[ScaleTo | LeaveJob]:
        """Calls of `scale` and `drain` since the last look."""
        ...
