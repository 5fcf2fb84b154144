"""Ports for daemons that tests start by number."""

from __future__ import annotations

import random
import socket

LOWEST, HIGHEST = 20_000, 30_000
"""Below the range from which systems take ports for connections: there, a connection of another test could take a port
between the moment when it is chosen here and the one when its daemon listens, or while a daemon is restarted."""

_random = random.SystemRandom()


def free_port() -> int:
    """A port of this host at which nobody listens; chosen at random, so that two tests choose two."""
    while True:
        port = _random.randrange(LOWEST, HIGHEST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
