"""A cluster for one launch: keys, a master here, slaves that a placer puts on another system's machines.

All of it is made for this launch and gone after it, also after a failure and after Ctrl-C: slaves, master, keys, files.
Slaves end by themselves where this process cannot end them any more. Decides nothing about jobs.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from flegel.cluster.client import Client
from flegel.cluster.connected import ConnectedCluster
from flegel.cluster.launch.processes.master_process import MasterSettings
from flegel.cluster.launch.processes.placer import Placer
from flegel.cluster.launch.processes.slave_process import sweep
from flegel.cluster.launch.processes.ticket import SlaveTicket
from flegel.cluster.transport import keys
from flegel.cluster.transport.keys import KeyEntry
from flegel.core.own_pauses import Deadline
from flegel.errors import FlegelError, UsageError
from flegel.runtime import clock
from flegel.runtime.transport.curve import new_key_pair

REPLACEMENTS_PER_SLAVE = 3
"""Slaves that are started in place of lost ones, for each slave of the launch; more losses mean a broken host."""
PLACED_POLL_SECONDS = 0.5
"""Between two checks whether placed processes have ended."""
MASTER_END_SECONDS = 30.0
"""Time that the master has to write its journal and end; then it is killed."""


class LaunchedCluster(ConnectedCluster):
    """`with LaunchedCluster(placer, slaves=4) as cluster: cluster.run(…)`; nothing is left after the block."""

    def __init__(
        self,
        placer: Placer,
        slaves: int,
        *,
        slots: int = 1,
        memory: int | None = None,
        replace: bool = True,
        timeout: float = 300.0,
        host: str | None = None,
        staging: str | os.PathLike[str] | None = None,
        home: Path | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Start a master here and have `placer` place `slaves` slaves; returns when all have registered.

        `slots`: workers per slave. `memory`: bytes that the jobs of a slave may use; None: no limit. `replace`: place
        another slave for one that has ended. `timeout`: seconds until all slaves must have registered. `host`: this
        host as slaves reach it. `staging`: a folder that all hosts see, for rows of the caller. `home`: a folder for
        keys and results instead of a temporary one. `say` is told what happens, in sentences.
        """
        if slaves < 1 or slots < 1:
            raise UsageError(f"A launch needs at least one slave with one slot, not {slaves} with {slots}.")
        self.launch_id = secrets.token_hex(4)
        self._placer, self._slots, self._memory, self._replace, self._say = placer, slots, memory, replace, say
        self._own_home = home is None
        self.home = Path(tempfile.mkdtemp(prefix=f"flegel-launch-{self.launch_id}-")) if home is None else home
        self._master: subprocess.Popen[bytes] | None = None
        self._tickets: dict[str, SlaveTicket] = {}
        self._leaving: set[str] = set()
        """Slaves that were told to end; nothing is placed for them."""
        self._slaves_placed = 0
        self._replacements_left = REPLACEMENTS_PER_SLAVE * slaves
        """Slaves that may still be placed for lost ones."""
        self._placing = threading.Lock()
        self._closing = threading.Event()
        self.lost: dict[str, str] = {}
        """Slaves that have ended by themselves, and why."""
        try:
            self._start(slaves, timeout, host, staging)
        except BaseException:
            self.close()
            raise

    # -- start -----------------------------------------------------------------------------------------------------

    def _start(self, slaves: int, timeout: float, host: str | None, staging: str | os.PathLike[str] | None) -> None:
        """Make keys, start the master, place all slaves and wait until each has registered."""
        logs = self.home / "logs"
        logs.mkdir(parents=True, mode=0o700, exist_ok=True)
        self._placer.open(logs)
        self._pair = keys.first_start(self.home / "keys")
        self._registry = keys.KeyRegistry(self.home / "keys")
        self.address = self._start_master(host or self._placer.address())
        own = keys.load("submit", self.home / "keys")
        super().__init__(Client(self.address, pair=own, server=self._pair.public), staging)
        self._say(f"master at {self.address}; {slaves} slaves are asked of {self._placer.system}")
        for _ in range(slaves):
            self._place()
        self._wait_for_slaves(slaves, timeout)
        threading.Thread(target=self._replace_ended_slaves, name="launch", daemon=True).start()

    def _start_master(self, host: str) -> str:
        """Start the master's process, which chooses a free port; returns the address where it listens."""
        with (self.home / "logs" / "master.log").open("w+b") as log:
            self._master = subprocess.Popen(
                [sys.executable, "-P", "-m", "flegel.cluster.launch.processes.master_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
            assert self._master.stdin is not None and self._master.stdout is not None
            shown = f"[{host}]" if ":" in host else host
            settings = MasterSettings(f"tcp://{shown}:0", str(self.home), temporary=self._own_home)
            self._master.stdin.write(msgspec.json.encode(settings) + b"\n")
            self._master.stdin.flush()
            address = self._master.stdout.readline().decode().strip()
            if address:
                return address
            log.seek(0)
            said = log.read().decode(errors="replace").strip()
        raise FlegelError(f"The master of this launch did not start at {host}: {said[-500:] or 'it said nothing'}")

    def _place(self) -> None:
        """Ask the placer for one more slave, with a key pair of its own."""
        name = f"{self._placer.system}-{self._slaves_placed}"
        self._slaves_placed += 1
        ticket = SlaveTicket(
            name, self.launch_id, self.address, self._pair.public, new_key_pair(), self._slots, self._memory
        )
        self._registry.write(KeyEntry(ticket.pair.public, "slave", name))
        self._tickets[name] = ticket
        self._placer.place(ticket)

    def _wait_for_slaves(self, slaves: int, timeout: float) -> None:
        """Wait until `slaves` slaves have registered; an error where one ends before, or `timeout` seconds have
        passed."""
        deadline = Deadline(timeout, clock.now())
        while (here := sum(slave.state == "here" for slave in self.slaves())) < slaves:
            for name, why in self._placer.ended().items():
                raise FlegelError(f"Slave {name} of this launch {why}")
            if deadline.passed(clock.now()):
                raise FlegelError(
                    f"{here} of {slaves} slaves have registered within {timeout:.0f} s; {self._placer.system} may be "
                    f"full, or they cannot reach {self.address} (host= says how they reach this host)."
                )
            clock.sleep(PLACED_POLL_SECONDS / 5)  # somebody waits for these slaves

    # -- while it runs ---------------------------------------------------------------------------------------------

    def _replace_ended_slaves(self) -> None:
        """In a thread: revoke the keys of slaves that have ended, and place others, until the cluster closes."""
        while not self._closing.wait(PLACED_POLL_SECONDS):
            with self._placing:
                for name, why in {} if self._closing.is_set() else self._placer.ended().items():
                    self._revoke(name)
                    if name in self._leaving:
                        self._leaving.remove(name)
                        continue
                    self.lost[name] = why
                    self._say(f"slave {name} {why}")
                    if self._replace and self._replacements_left > 0:
                        self._replacements_left -= 1
                        self._place()

    def scale(self, slaves: int) -> None:
        """Place or end slaves until there are `slaves`; the newest go, and drain first where the system has a signal
        for it. A job that runs keeps its number of workers, which `job.scale` changes; jobs that start later count the
        slots of new slaves."""
        if slaves < 1:
            raise UsageError(f"A cluster has at least one slave, not {slaves}.")
        with self._placing:
            now = [name for name in self._tickets if name not in self._leaving]
            for _ in range(slaves - len(now)):
                self._place()
            leaving = now[slaves:]
            self._leaving.update(leaving)
            self._placer.remove(leaving)

    def _revoke(self, name: str) -> None:
        ticket = self._tickets.pop(name, None)
        if ticket is not None:
            with contextlib.suppress(UsageError):
                self._registry.revoke(ticket.pair.public)

    def environment(self) -> dict[str, str]:
        """For commands of this launch: where the master is, and where the keys are."""
        return {**os.environ, "FLEGEL_HOME": str(self.home), "FLEGEL_MASTER": self.address}

    # -- end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End slaves and master, revoke all keys, remove all files. May be called twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        with self._placing:
            try:
                self._placer.close()
            finally:
                for name in list(self._tickets):
                    self._revoke(name)
                self._end_master()
                sweep(Path(tempfile.gettempdir()), self.launch_id)
                if self._own_home:
                    shutil.rmtree(self.home, ignore_errors=True)

    def _end_master(self) -> None:
        """Close its standard input, which ends it; kill it where it does not end within `MASTER_END_SECONDS`."""
        if hasattr(self, "_client"):
            super().close()
        if self._master is None:
            return
        assert self._master.stdin is not None and self._master.stdout is not None
        for pipe in (self._master.stdin, self._master.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            self._master.wait(MASTER_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._master.send_signal(signal.SIGKILL)
            self._master.wait()

    def __enter__(self) -> Any:
        return self
