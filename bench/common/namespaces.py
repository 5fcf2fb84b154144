"""Network namespaces on one machine: nodes with links of limited rate to one switch, and partitions between them.

Takes root, `ip` and `tc` on Linux; `unavailable()` says why it cannot be done elsewhere. Namespaces are removed when
the context ends, also after an error, and those of processes that were killed when the next one begins. Nothing here
changes the network of the machine itself but for one bridge with an address of a private range.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Collection, Iterable
from itertools import count, product
from pathlib import Path
from typing import Any, TypeVar

CLONE_NEWNET = 0x40000000
PREFIX = "flegel"
BURST = "128kb"
"""Of the token buckets: 5 ms at 200 Mbit/s; less than a timer tick's worth would hold back more than the rate says."""
QUEUE = "50ms"
"""What waits longer before a bucket is dropped, as in a router."""
NOWHERE = "02:00:00:00:00:01"
"""A hardware address that nobody has."""
OPENING = (
    "11,40 0 0 12,21 0 7 2048,48 0 0 23,21 6 0 17,21 0 4 6,"  # IPv4? drop UDP; TCP?
    "177 0 0 14,80 0 0 27,84 0 0 18,21 1 0 2,6 0 0 0,6 0 0 2"  # drop SYN without ACK
)
"""Classic BPF that drops what opens a connection from outside, for kernels without a packet filter."""
_serial = count()
Found = TypeVar("Found")


def unavailable() -> str:
    """Why this machine cannot do it; empty where it can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces take root; run it as root on Linux"
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            return f"there is no `{tool}` here; install iproute2"
    probe = f"{PREFIX}-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces do not work here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=False)
    return ""


class Network:
    """A switch with a cable to each of several namespaces. This process reaches them, and they reach it at `host`."""

    def __init__(self, nodes: int) -> None:
        if not 1 <= nodes <= 250:
            raise ValueError(f"{nodes} namespaces: 1 to 250 fit into one network")
        serial = next(_serial)
        stem = f"{PREFIX}-{os.getpid()}-{serial}"
        self.names = [f"{stem}-{number}" for number in range(nodes)]
        self.bridge = f"flg{os.getpid() % 1_000_000}{chr(97 + serial % 26)}"
        which = os.getpid() * 7 + serial
        self.prefix = f"10.{100 + which // 250 % 100}.{which % 250}"
        self.host = f"{self.prefix}.254"
        self._parted: set[tuple[int, int]] = set()

    def address(self, number: int) -> str:
        return f"{self.prefix}.{number + 1}"

    def __enter__(self) -> Network:
        remove_stale()
        try:
            _ip("link", "add", self.bridge, "type", "bridge")
            _ip("addr", "add", f"{self.host}/24", "dev", self.bridge)
            _ip("link", "set", self.bridge, "up")
            for number, name in enumerate(self.names):
                plug = self._plug(number)
                _ip("netns", "add", name)
                _ip("link", "add", plug, "type", "veth", "peer", "name", "eth0", "netns", name)
                _ip("link", "set", plug, "master", self.bridge, "up")
                _ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number, name in enumerate(self.names):
            _quietly("ip", "link", "del", self._plug(number))
            _quietly("ip", "netns", "del", name)
        _quietly("ip", "link", "del", self.bridge)

    def _plug(self, number: int) -> str:
        """The end of a cable at the switch."""
        return f"{self.bridge}.{number}"

    def limit(self, megabits: float, nodes: Iterable[int] | None = None, receiving: bool = False) -> None:
        """What each of these nodes (all by default) may send, and with `receiving` also receive; 0: not limited."""
        for number in range(len(self.names)) if nodes is None else nodes:
            ends = [(["tc", "-n", self.names[number], "qdisc"], "eth0")]
            if receiving:
                ends.append((["tc", "qdisc"], self._plug(number)))
            for tool, device in ends:
                _quietly(*tool, "del", "dev", device, "root")
                if megabits:
                    rate = f"{round(megabits * 1000)}kbit"
                    shape = ["tbf", "rate", rate, "burst", BURST, "latency", QUEUE]
                    subprocess.run([*tool, "add", "dev", device, "root", *shape], check=True)

    def partition(self, one: Collection[int], other: Collection[int], both: bool = True) -> None:
        """Nothing passes between these groups until `heal`, and nobody is told: packets are dropped silently. Without
        `both`, only those from `one` to `other` are."""
        for a, b in product(one, other):
            for here, there in ((a, b), (b, a)) if both else ((a, b),):
                way = [self.address(there), "lladdr", NOWHERE, "dev", "eth0", "nud", "permanent"]
                _ip("-n", self.names[here], "neigh", "replace", *way)
                self._parted.add((here, there))

    def outbound_only(self, number: int) -> None:
        """A firewall: nobody opens a connection to this node; those that it opens itself work."""
        tool = ["tc", "-n", self.names[number]]
        subprocess.run([*tool, "qdisc", "add", "dev", "eth0", "clsact"], check=True)
        rule = ["filter", "add", "dev", "eth0", "ingress", "bpf", "da", "bytecode", OPENING]
        subprocess.run([*tool, *rule], check=True)

    def isolate(self, number: int) -> None:
        """Unplug the cable at the switch: the node reaches neither the others nor this process."""
        _ip("link", "set", self._plug(number), "down")

    def heal(self) -> None:
        """End every partition and plug in every cable."""
        for here, there in self._parted:
            _ip("-n", self.names[here], "neigh", "del", self.address(there), "dev", "eth0")
        self._parted.clear()
        for number in range(len(self.names)):
            _ip("link", "set", self._plug(number), "up")

    def command(self, number: int) -> list[str]:
        """Words before a command that make it run in this namespace."""
        return ["ip", "netns", "exec", self.names[number]]

    def inside(self, number: int, work: Callable[[], Found]) -> Found:
        """Do it in a thread that lives in a namespace; processes and sockets that it makes live there too."""
        found: list[Found] = []
        raised: list[BaseException] = []

        def go() -> None:
            try:
                enter(self.names[number])
                found.append(work())
            except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
                raised.append(error)

        thread = threading.Thread(target=go)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]
        return found[0]


def enter(name: str) -> None:
    """Put the calling thread, and what it starts, into a namespace for good."""
    with (Path("/run/netns") / name).open() as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {name}")


def remove_stale() -> None:
    """Namespaces and bridges of processes that ended without removing theirs."""
    folder = Path("/run/netns")
    for path in folder.iterdir() if folder.is_dir() else ():
        mine = re.fullmatch(rf"{PREFIX}-(\d+)-\w+(-\d+)?", path.name)
        if mine and not Path(f"/proc/{mine[1]}").exists():
            _quietly("ip", "netns", "del", path.name)
            _quietly("ip", "link", "del", f"flg{int(mine[1]) % 1_000_000}a")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _quietly(*words: str) -> Any:
    return subprocess.run(words, capture_output=True, check=False)
