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
from flegel.torch.flexible.rank_settings import rank_settings

_left_behind: list[Connection] = []
_lock = threading.Lock()


class GroupMessages:
    """The side of `Connection` that a barrier needs, over a process group whose ranks do not change."""

    def __init__(self, group: Any) -> None:
        self.rank, self.ranks, self._group = dist.get_rank(group), dist.get_world_size(group), group

    def sum(self, values: torch.Tensor) -> Any:
        """Over all ranks, in place, under way."""
        return dist.all_reduce(values, group=self._group, async_op=True)

    def device(self, values: torch.Tensor) -> torch.device:
        return values.device

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor) -> Any:
        return dist.all_to_all_single(received, sent, group=self._group, async_op=True)

    def all_gather(self, gathered: torch.Tensor, content: torch.Tensor) -> Any:
        return dist.all_gather(list(gathered.split(content.numel())), content, group=self._group, async_op=True)

    def wait(self, works: Sequence[Any], check: Callable[[], None]) -> None:
        for work in works:
            work.wait()


class Connection:
    """The connection of this process to all members of a generation."""

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
        """Begin a collective operation and keep it until it has ended; `Broken` where a peer is gone."""
        try:
            work = make()
        except RuntimeError as error:
            raise Broken(str(error)) from None
        self._works = [one for one in self._works if not one.is_completed()]
        self._works.append(work)
        return work

    def sum(self, values: torch.Tensor) -> Any:
        """Over all ranks, in place, under way."""
        return self._begin(lambda: self._carrier(values).allreduce([values]))

    def device(self, values: torch.Tensor) -> torch.device:
        """Where bytes must lie to be sent: gloo's lie on the processor."""
        return values.device if self._nccl is not None else torch.device("cpu")

    def _carrier(self, values: torch.Tensor) -> Any:
        return self._nccl if self._nccl is not None and values.is_cuda else self._backend

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor) -> Any:
        """An equal part to each rank, under way."""
        return self._begin(lambda: self._carrier(sent).alltoall_base(received, sent, [], []))

    def all_gather(self, gathered: torch.Tensor, content: torch.Tensor) -> Any:
        """The same from every rank to all, under way."""
        return self._begin(lambda: self._carrier(content)._allgather_base(gathered, content))

    def send(self, values: torch.Tensor, rank: int) -> Any:
        return self._begin(lambda: self._backend.send([values], rank, 0))

    def receive(self, values: torch.Tensor, rank: int) -> Any:
        return self._begin(lambda: self._backend.recv([values], rank, 0))

    def wait(self, works: Sequence[Any], check: Callable[[], None]) -> None:
        """`check` raises once waiting is of no use."""
        rules = rank_settings()
        for work in works:
            while True:
                try:
                    if self._nccl is None:
                        work.wait(clock.span(rules.generation_check_seconds))
                    elif work.is_completed():
                        work.wait()
                    else:  # a wait for NCCL returns at once, and the GPU waits: it is asked instead
                        clock.sleep(rules.nccl_poll_seconds)
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
