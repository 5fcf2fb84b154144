"""Links between workers: when the sender's kernel should hold little, and how a link is dialled anew meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from flegel.configuration.active import active
from flegel.core.shard import TILE
from flegel.machine.migration.endpoints import MigrationSource, SendBufferTrial, SendWindow
from flegel.runtime.transport.job_sockets import JobSockets
from flegel.runtime.transport.peer_links import Links

DEADLINE = 30_000


def told(
    send_buffer: SendBufferTrial, rate: float, windows: int = active().moves.windows_to_judge_link, now: float = 0.0
) -> SendBufferTrial:
    for _ in range(windows):
        send_buffer.note(1e6, 1e6 / rate, now, now)
    return send_buffer


def test_a_slow_link_is_tried_with_little_in_the_kernel_and_stays_so_where_nothing_is_lost() -> None:
    send_buffer = told(SendBufferTrial(), 6e6)
    assert send_buffer.small_buffer
    told(send_buffer, 5.9e6, now=1.0)
    assert send_buffer.small_buffer
    told(send_buffer, 1e6, now=2.0)
    assert send_buffer.small_buffer, "what is known is not asked again"


def test_a_link_that_large_buffers_make_fast_gets_them_back_for_good() -> None:
    send_buffer = told(told(SendBufferTrial(), 12e6), 1.6e6, now=1.0)
    assert not send_buffer.small_buffer
    assert not told(send_buffer, 1e6, now=2.0).small_buffer


def test_a_fast_link_is_left_alone_until_it_is_slow() -> None:
    send_buffer = told(SendBufferTrial(), 1e9, windows=20)
    assert not send_buffer.small_buffer
    assert told(send_buffer, 6e6).small_buffer


def test_one_late_window_says_nothing() -> None:
    send_buffer = told(SendBufferTrial(), 1e9, windows=2)
    send_buffer.note(1e6, 1.0, 0.0, 0.0)
    assert not send_buffer.small_buffer


def test_windows_that_had_to_share_the_link_with_earlier_ones_are_not_counted() -> None:
    send_buffer = told(SendBufferTrial(), 6e6, now=5.0)
    send_buffer.note(1e6, 0.16, 4.9, 6.0)  # left before the change, answered now
    for _ in range(10):
        send_buffer.note(1e6, 10.0, 5.5, 7.0)  # left while that one was on its way
    assert send_buffer.small_buffer
    assert told(send_buffer, 6e6, now=7.0).small_buffer


def through(rate: float, each: float, moves: int = 1) -> SendBufferTrial:
    """Moves over a link of so many bytes a second, one window after the other."""
    send_buffer = SendBufferTrial()
    for move in range(moves):
        giving, now = MigrationSource(move, 200 * TILE, 4 * TILE, each=each, send_buffer=send_buffer), 0.0
        commands: list[Any] = giving.start()
        while commands:
            command, *commands = commands
            if isinstance(command, SendWindow):
                now += 4 * TILE * each / rate if each else 1.0
                commands += giving.answered(command.transfer[1], False, now)
            elif hasattr(command, "points"):
                commands += giving.was_cut(command.transfer[1], command.points, now)
    return send_buffer


def test_a_move_tells_what_its_link_is_like() -> None:
    assert through(6e6, 100.0).small_buffer
    assert not through(1e9, 100.0).small_buffer
    assert not through(6e6, 0.0).small_buffer, "nothing travelled"


# -- with sockets ------------------------------------------------------------------------------------------


class Town:
    """Two ends on this host."""

    def __init__(self) -> None:
        self.sockets = JobSockets()
        self.listener, self.address = self.sockets.listen("tcp://127.0.0.1:1")
        self.buffers: list[int] = []
        self.links = Links(self.dial)

    def dial(self, address: str, buffer: int) -> Any:
        made = self.sockets.dial(address, buffer)
        self.buffers.append(made.getsockopt(zmq.SNDBUF))
        return made

    def hear(self) -> tuple[bytes, bytes]:
        assert self.listener.poll(DEADLINE)
        name, text = self.listener.recv_multipart()
        return name, text

    def close(self) -> None:
        self.links.close()
        self.listener.close(linger=0)
        self.sockets.close()


@pytest.fixture
def town() -> Iterator[Town]:
    made = Town()
    yield made
    made.close()


def test_a_link_that_becomes_tight_is_dialled_anew_and_answers_still_come_on_the_old_one(town: Town) -> None:
    link = town.links.use(town.address)
    link.socket.send(b"before")
    first, text = town.hear()
    assert text == b"before"
    told(link.send_buffer, 6e6)
    link.socket.send(b"after")
    second, text = town.hear()
    assert text == b"after" and second != first
    assert town.buffers == [-1, active().moves.small_buffer_bytes] and len(town.links.sockets()) == 2
    town.listener.send_multipart([first, b"answer"])
    old = town.links.sockets()[0]
    assert old.poll(DEADLINE) and old.recv() == b"answer"


def test_old_sockets_are_closed_when_no_move_uses_the_link(town: Town) -> None:
    link = town.links.use(town.address)
    told(link.send_buffer, 6e6)
    assert link.socket is town.links.sockets()[1]
    town.links.hang_up({town.address})
    assert len(town.links.sockets()) == 2, "somebody still uses it"
    town.links.hang_up(())
    assert len(town.links.sockets()) == 1 and town.links[town.address] is link
    link.socket.send(b"on")
    assert town.hear()[1] == b"on"


def test_what_is_known_of_a_link_outlives_it(town: Town) -> None:
    told(town.links.use(town.address).send_buffer, 6e6)
    town.links.hang_up((), town.address)
    assert not town.links.sockets()
    town.links.use(town.address)
    assert town.buffers == [-1, active().moves.small_buffer_bytes]


def test_a_few_idle_links_are_kept(town: Town) -> None:
    made = [f"tcp://127.0.0.1:{port}" for port in range(1, active().moves.kept_idle_links + 4)]
    for address in made:
        town.links.use(address)
    town.links.use(made[0])
    town.links.hang_up({made[1]})
    assert len(town.links.sockets()) == active().moves.kept_idle_links + 1
    assert town.links[made[0]] and town.links[made[1]]
    with pytest.raises(KeyError):
        town.links[made[2]]
