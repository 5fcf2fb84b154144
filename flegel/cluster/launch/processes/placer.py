"""What a system that runs processes on many machines has to do for a launch. Interface, and one for commands.

A placer starts one process per ticket, hands the ticket over by the system's own channel, tells which processes have
ended, and ends them. It knows no job and no key but those on tickets.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol

from flegel.cluster.launch.processes import ticket as tickets
from flegel.cluster.launch.processes.ticket import READY_LINE, SlaveTicket

SLAVE_COMMAND = (sys.executable, "-P", "-m", "flegel.cluster.launch.processes.slave_process")
SLAVE_END_SECONDS = 20.0
"""That a slave has to end with all the processes that it runs; then it is killed."""


class Placer(Protocol):
    """One system. Methods may be called from one thread at a time."""

    system: str
    """Its name, of which names of slaves are made."""

    def address(self) -> str:
        """This host as the machines of the system reach it."""
        ...

    def open(self, folder: Path) -> None:
        """Before anything is placed; logs go into the folder. Raises `UsageError` where the system is not there."""
        ...

    def place(self, ticket: SlaveTicket) -> None:
        """Ask for one slave; returns before it runs."""
        ...

    def ended(self) -> dict[str, str]:
        """Slaves that were placed and whose process has ended, by name, and why; each is named once."""
        ...

    def remove(self, names: Sequence[str]) -> None:
        """These slaves drain and end."""
        ...

    def close(self) -> None:
        """End all that is left, at once; afterwards nothing of this launch is on the system. May be called twice."""
        ...


class CommandPlacer:
    """One command per slave, whose standard input reaches the slave: a process here, `mpiexec`, `srun`."""

    system = "local"

    def __init__(self) -> None:
        self._commands: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = Path()
        self.places: dict[str, str] = {}
        """The system's own name of each slave's place, where it tells one."""

    def address(self) -> str:
        return "127.0.0.1"

    def open(self, folder: Path) -> None:
        self._folder = folder

    def command(self, ticket: SlaveTicket) -> list[str]:
        """What is run; nothing in it is secret."""
        return list(SLAVE_COMMAND)

    def seal(self, line: bytes) -> bytes:
        """The ticket as it is sent."""
        return line

    def place(self, ticket: SlaveTicket) -> None:
        """Start the command; a thread waits until the slave asks for its ticket, and writes it to standard input."""
        with (self._folder / f"{ticket.name}.log").open("wb") as log:
            process = subprocess.Popen(
                self.command(ticket),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._commands[ticket.name] = process
        assert process.stdin is not None and process.stdout is not None
        hand_over = threading.Thread(
            target=self._hand_over, args=(ticket, process.stdin, process.stdout), name=ticket.name, daemon=True
        )
        hand_over.start()

    def _hand_over(self, ticket: SlaveTicket, to: IO[bytes], out: IO[bytes]) -> None:
        """When the slave runs, perhaps after hours in a queue, it says so and gets its ticket."""
        with contextlib.suppress(OSError, ValueError):
            for line in out:
                if line.startswith(READY_LINE.encode()):
                    self.places[ticket.name] = line[len(READY_LINE) :].decode(errors="replace").strip()
                    to.write(self.seal(tickets.encode(ticket)))
                    to.flush()
                    break
            for _ in out:
                pass

    def ended(self) -> dict[str, str]:
        found = {}
        for name, process in list(self._commands.items()):
            if process.poll() is not None:
                found[name] = f"ended with {process.returncode}: {self._last_words(name)}"
                self._forget(name)
        return found

    def _last_words(self, name: str) -> str:
        with contextlib.suppress(OSError):
            lines = (self._folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
            return lines[-1] if lines else "it said nothing"
        return "it left no log"

    def _forget(self, name: str) -> None:
        process = self._commands.pop(name)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()
        self.places.pop(name, None)

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            process = self._commands.get(name)
            if process is not None:
                self.drain(name, process)

    def drain(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Tell one slave to hand its work over and end."""
        process.send_signal(signal.SIGTERM)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Tell one slave to end without draining; does not wait for it."""
        if process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                process.stdin.close()

    def close(self) -> None:
        """Close the standard input of each slave, which ends it; kill those that do not end within
        `SLAVE_END_SECONDS`."""
        processes = dict(self._commands)
        for process in processes.values():
            self.stop(process)
        for name, process in processes.items():
            try:
                process.wait(SLAVE_END_SECONDS)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self._forget(name)


def outward_address() -> str:
    """The address of this host on the network of its default route; the loopback where it has none."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # reserved for documentation; nothing is sent
        return str(probe.getsockname()[0])
    return "127.0.0.1"
