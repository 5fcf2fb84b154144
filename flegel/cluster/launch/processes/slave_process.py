"""A slave as another system starts it, its ticket on standard input or in a file that its argument names.

`python -m flegel.cluster.launch.processes.slave_process`. It ends when standard input ends, when its master is gone for
good, or by a signal as `flegel slave` does. Its folder is private and removed at the end; one that a killed slave has
left is removed by the next slave on the host.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from flegel.cluster.client import own_address
from flegel.cluster.launch.processes import munge
from flegel.cluster.launch.processes import ticket as tickets
from flegel.cluster.launch.processes.lifeline import end_with_input, read_line
from flegel.cluster.launch.processes.ticket import READY_LINE, SlaveTicket
from flegel.cluster.slave.daemon import SlaveDaemon
from flegel.cluster.slave.settings import SlaveSettings
from flegel.cluster.transport.protocol import TO_SLAVE
from flegel.cluster.transport.secure_client import SecureClient, dial
from flegel.configuration.active import using
from flegel.configuration.sources import changes_outside
from flegel.errors import FlegelError
from flegel.runtime import clock, logs
from flegel.runtime.processes.host import host_memory
from flegel.runtime.system.malloc_settings import share_heap
from flegel.runtime.system.private_files import keep_private

SLAVE_FOLDER_PREFIX = "flegel-slave-"
"""Of the folders that slaves make for themselves; `sweep` finds them by it."""
STALE_FOLDER_SECONDS = 60.0
"""A younger folder without a lock may belong to a slave that is starting, and is kept."""


def main() -> None:
    """Entry point."""
    logs.configure(level=logging.INFO)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if len(sys.argv) > 1:
        _run(Path(sys.argv[1]).read_bytes(), lifeline=False)
        return
    job, step = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_STEP_ID", "0")
    print(f"{READY_LINE} {job}.{step}" if job else READY_LINE, flush=True)
    line = read_line()
    if not line:
        sys.exit(0)  # the launcher ended before it had sent anything
    _run(line, lifeline=True)


def _run(line: bytes, lifeline: bool) -> None:
    try:
        with using(changes_outside()):
            serve(tickets.decode(munge.opened(line)), lifeline)
    except FlegelError as error:
        print(f"flegel: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def serve(ticket: SlaveTicket, lifeline: bool) -> None:
    """Run the slave until it is told to end (where `lifeline` is set, also by the end of standard input), then remove
    its folder."""
    share_heap()
    base = Path(ticket.folder or tempfile.gettempdir())
    sweep(base, older=STALE_FOLDER_SECONDS)
    folder = Path(tempfile.mkdtemp(prefix=f"{SLAVE_FOLDER_PREFIX}{ticket.launch}-{ticket.name}-", dir=base))
    settings = SlaveSettings(
        ticket.name,
        ticket.slots,
        own_address(ticket.master),
        folder,
        ticket.memory or host_memory() // max(ticket.slots, 1),
        ticket.drain,
        (),
        ticket.abandon,
    )

    def call() -> SecureClient:
        return dial(ticket.master, TO_SLAVE, pair=ticket.pair, server=ticket.server)

    keep_private(folder)
    if lifeline:
        end_with_input()
    try:
        SlaveDaemon(settings, call).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(base: Path, launch: str = "", older: float = 0.0) -> None:
    """Remove the folders of slaves that were killed: those that no process has locked, and older than `older`
    seconds."""
    for folder in base.glob(f"{SLAVE_FOLDER_PREFIX}{launch}*"):
        with contextlib.suppress(OSError):
            if clock.microseconds() / 1e6 - folder.stat().st_mtime < older:
                continue
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


if __name__ == "__main__":
    main()
