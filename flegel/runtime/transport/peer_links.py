"""Ways of one worker to others, kept from move to move, and dialled anew where the kernel should hold less of them.

The size of a kernel's buffer is fixed when a connection is made, so a link whose `send_buffer` changes gets a second
socket; what is under way on the first one arrives, and is answered, there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import zmq

from flegel.configuration.active import active
from flegel.machine.migration.endpoints import SendBufferTrial

Socket = zmq.Socket[bytes]


class Link:
    """To one worker."""

    def __init__(self, dial: Callable[[int], Socket], send_buffer: SendBufferTrial) -> None:
        self._dial, self.send_buffer = dial, send_buffer
        self._has_small_buffer = send_buffer.small_buffer
        self.sockets = [self._open()]
        """The last one is sent on; on the others answers are still to come."""
        self.fitting = 0
        """Points of a window that fitted, the last time that something travelled here."""

    def _open(self) -> Socket:
        return self._dial(active().moves.small_buffer_bytes if self._has_small_buffer else 0)

    @property
    def socket(self) -> Socket:
        """To send on."""
        if self.send_buffer.small_buffer != self._has_small_buffer:
            self._has_small_buffer = self.send_buffer.small_buffer
            self.sockets.append(self._open())
        return self.sockets[-1]

    def rest(self) -> None:
        """Every answer has come."""
        while len(self.sockets) > 1:
            self.sockets.pop(0).close(linger=0)

    def close(self) -> None:
        for socket in self.sockets:
            socket.close(linger=0)


class Links:
    """By address, the one that was used last behind the others."""

    def __init__(self, dial: Callable[[str, int], Socket]) -> None:
        self._dial = dial
        self._links: dict[str, Link] = {}
        self._send_buffers: dict[str, SendBufferTrial] = {}
        """What is known of links outlives them."""

    def __getitem__(self, address: str) -> Link:
        return self._links[address]

    def use(self, address: str) -> Link:
        """The link to this address, dialled where there is none."""
        link = self._links.pop(address, None)
        if link is None:
            send_buffer = self._send_buffers.setdefault(address, SendBufferTrial())
            link = Link(lambda buffer: self._dial(address, buffer), send_buffer)
        self._links[address] = link
        return link

    def sockets(self) -> list[Socket]:
        return [socket for link in self._links.values() for socket in link.sockets]

    def hang_up(self, used: Collection[str], silent: str = "") -> None:
        """Close links that no move uses: one whose peer may be gone, and those beyond a few."""
        idle = [address for address in self._links if address not in used]
        for address in idle:
            self._links[address].rest()
        for address in {*idle[: -active().moves.kept_idle_links], *({silent} & set(idle))}:
            self._links.pop(address).close()

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._send_buffers.clear()
