"""One wait for a socket and any number of pipes."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest
import zmq

from flegel.runtime.transport import poller
from flegel.runtime.transport.poller import Poller


@pytest.fixture
def pair() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    one, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    one.bind("inproc://sleeper")
    other.connect("inproc://sleeper")
    yield one, other
    one.close(0)
    other.close(0)
    context.term()


@pytest.mark.parametrize("selectable", [1024, 0], ids=["select", "epoll"])
def test_more_pipes_than_select_can_see(pair: tuple, selectable: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "SELECTABLE", selectable)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("too few open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    one, other = pair
    sleeper = Poller(one)
    pipes = [os.pipe() for _ in range(1200)]
    try:
        for read, _ in pipes:
            sleeper.add(read)
        assert sleeper.wait(0.0) == []
        os.write(pipes[-1][1], b"!")
        assert sleeper.wait(5.0) == [pipes[-1][0]]
        sleeper.drop(pipes[-1][0])
        assert sleeper.wait(0.001) == []
        other.send(b"hello")
        sleeper.wait(5.0)
        assert one.recv() == b"hello"
    finally:
        sleeper.close()
        for ends in pipes:
            for end in ends:
                os.close(end)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
