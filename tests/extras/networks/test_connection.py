"""Messages of a generation whose sums go by NCCL, with a backend that stands in for it: no GPU is needed."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.library("torch")

from flegel.errors import UsageError
from flegel.torch import join
from flegel.torch.flexible.agreement import Broken
from flegel.torch.flexible.connection import Connection


class Work:
    """A message on the GPU, which ends after it was asked some times, or never."""

    def __init__(self, asks: float, fails: bool = False) -> None:
        self.asks, self.fails, self.waited = asks, fails, False

    def is_completed(self) -> bool:
        self.asks -= 1
        return self.asks < 0

    def wait(self) -> None:
        self.waited = True
        if self.fails:
            raise RuntimeError("a peer is gone")


class Aborted:
    """NCCL's side of a connection."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True


def connected() -> tuple[Connection, Any]:
    connection = Connection(torch.distributed.HashStore(), 0, 1, 5.0)
    connection._nccl = backend = Aborted()
    return connection, backend


def test_a_message_of_nccl_is_waited_for_until_it_ends_or_the_generation_is_broken() -> None:
    connection, _ = connected()
    asked: list[int] = []
    done = Work(asks=3)
    connection.wait([done], lambda: asked.append(1))
    assert done.waited and len(asked) == 3

    def broken() -> None:
        raise Broken("the generation was replaced")

    with pytest.raises(Broken, match="replaced"):
        connection.wait([Work(asks=float("inf"))], broken)
    with pytest.raises(Broken, match="peer"):
        connection.wait([Work(asks=-1, fails=True)], lambda: None)


def test_a_generation_that_is_left_aborts_the_messages_of_nccl() -> None:
    connection, backend = connected()
    connection.leave()
    assert backend.aborted


@pytest.mark.parametrize("backend", ["mpi", *([] if torch.distributed.is_nccl_available() else ["nccl"])])
def test_backends_that_cannot_be_used_are_refused(backend: str) -> None:
    with pytest.raises(UsageError, match="backend="):
        join("tcp://127.0.0.1:1", ranks=1, backend=backend)
