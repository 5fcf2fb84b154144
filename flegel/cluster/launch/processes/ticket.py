"""What a slave that is placed by another system has to know, on one line. Holds a secret: never logged or in argv."""

from __future__ import annotations

import msgspec

from flegel.errors import UsageError
from flegel.runtime.transport.curve import KeyPair

READY_LINE = "flegel: ready for a ticket"
"""What a slave prints when it waits for its ticket, followed by the other system's own name for it."""


class SlaveTicket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One slave of one launch. Its pair is made for it alone and revoked when it ends."""

    name: str
    launch: str
    """Name of the launch."""
    master: str
    """Address of the master."""
    server: str
    """The master's public key."""
    pair: KeyPair
    slots: int = 1
    memory: int | None = None
    """Bytes that a process may use; an even part of the host's where None."""
    drain: float = 20.0
    folder: str = ""
    """Where the slave's own folder is made; the host's folder for temporary files where empty."""
    abandon: float = 60.0
    """Seconds without an answer of the master after which the slave ends: its launcher is gone."""

    def __repr__(self) -> str:
        return f"<ticket of slave {self.name}>"


def encode(ticket: SlaveTicket) -> bytes:
    """One line."""
    return msgspec.json.encode(ticket) + b"\n"


def decode(line: bytes) -> SlaveTicket:
    """A wrong one is refused without showing what it holds."""
    try:
        return msgspec.json.decode(line, type=SlaveTicket)
    except msgspec.MsgspecError:
        raise UsageError(
            "The ticket of this slave cannot be read; launcher and slave may be of different versions."
        ) from None
