"""The messages of one generation: a gloo backend, with waits that end when the generation is broken.

gloo cannot abort a message. A backend that is left behind is kept until its last message has failed by itself, since
dropping it earlier would block the process. With NCCL, which can, sums on a GPU go by a second backend. Decides
nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from flegel.runtime import clock
from flegel.torch.flexible.agreement import Broken

ASK_SECONDS = 0.0005  # between two questions whether a message of NCCL has ended
WAIT_STEP = clock.span(0.05)  # after which a wait looks whether the generation is still whole

_left_behind: list[Connection] = []
_lock = threading.Lock()


class Connection:
    """Of this process to all members of a generation."""

    def __init__(
        self, store: dist.Store, rank: int, ranks: int, seconds: float, device: torch.device | None = None
    ) -> None:
        """Blocks until all members have come; no message may take longer than `seconds`. `device`: a GPU whose sums go
        by NCCL."""
        self.rank, self.ranks = rank, ranks
        self._nccl: Any = None
        self._backend: Any = dist.ProcessGroupGloo(store, rank, ranks, clock.span(seconds))
        self._works: list[Any] = []
        if device is not None:
            self._connect_gpu(dist.PrefixStore("nccl", store), device, seconds)

    def _connect_gpu(self, store: dist.Store, device: torch.device, seconds: float) -> None:
        """NCCL connects with its first message: here, where waiting for a rank that is lost meanwhile stops nobody."""
        torch.cuda.set_device(device)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = clock.span(seconds)
        self._nccl = dist.ProcessGroupNCCL(store, self.rank, self.ranks, options)
        first = torch.zeros(1, device=device)
        self._nccl.allreduce([first]).wait()
        torch.cuda.synchronize(device)

    def _begin(self, make: Callable[[], Any]) -> Any:
        try:
            work = make()
        except RuntimeError as error:
            raise Broken(str(error)) from None
        self._works = [one for one in self._works if not one.is_completed()]
        self._works.append(work)
        return work

    def sum(self, values: torch.Tensor) -> Any:
        """Over all ranks, in place, under way."""
        backend = self._nccl if self._nccl is not None and values.is_cuda else self._backend
        return self._begin(lambda: backend.allreduce([values]))

    def send(self, values: torch.Tensor, rank: int) -> Any:
        return self._begin(lambda: self._backend.send([values], rank, 0))

    def receive(self, values: torch.Tensor, rank: int) -> Any:
        return self._begin(lambda: self._backend.recv([values], rank, 0))

    def wait(self, works: Sequence[Any], check: Callable[[], None]) -> None:
        """`check` raises once waiting is of no use."""
        for work in works:
            while True:
                try:
                    if self._nccl is None:
                        work.wait(WAIT_STEP)
                    elif work.is_completed():
                        work.wait()
                    else:  # a wait for NCCL returns at once, and the GPU waits: it is asked instead
                        clock.sleep(ASK_SECONDS)
                        check()
                        continue
                    break
                except RuntimeError as error:
                    if work.is_completed():
                        raise Broken(str(error)) from None
                check()

    def leave(self) -> None:
        """It is not used any more. NCCL's messages are aborted, so the GPU does not wait for a lost rank."""
        if self._nccl is not None:
            with contextlib.suppress(RuntimeError, dist.DistError):
                self._nccl.abort()
            self._nccl = None
        with _lock:
            _left_behind.append(self)
        reap()

    def _is_idle(self) -> bool:
        return all(work.is_completed() for work in self._works)


def reap() -> None:
    """Drops connections whose messages have all ended."""
    with _lock:
        _left_behind[:] = [one for one in _left_behind if not one._is_idle()]


def keep_until_exit() -> None:
    """The process ends: what is left behind is not dropped, which would wait for its messages."""
    for one in list(_left_behind):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one._backend))
