"""The network of namespaces that benchmarks use: reachable, cut off, reachable again, gone afterwards."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from bench.common.namespaces import Network, unavailable
from tests import needs


def connects(network: Network, here: int, there: int, seconds: float = 60.0) -> bool:
    with network.inside(there, lambda: socket.create_server((network.address(there), 0))) as server:
        address = server.getsockname()
        try:
            network.inside(here, lambda: socket.create_connection(address, timeout=seconds)).close()
        except TimeoutError:
            return False
        return True


@needs.programs("ip", "tc")
def test_partitions_cut_off_silently_and_heal_and_nothing_is_left_behind() -> None:
    if reason := unavailable():
        pytest.skip(reason)
    with Network(3) as network:
        network.limit(100, receiving=True)
        assert connects(network, 0, 1)
        network.partition([0], [1])
        assert not connects(network, 0, 1, 0.3) and not connects(network, 1, 0, 0.3) and connects(network, 0, 2)
        network.heal()
        assert connects(network, 0, 1)
        network.isolate(2)
        assert not connects(network, 0, 2, 0.3)
        network.heal()
        assert connects(network, 0, 2)
    assert not [name for name in network.names if (Path("/run/netns") / name).exists()]
