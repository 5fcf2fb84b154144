"""The master of a launch: `python -m flegel.cluster.launch.processes.master_process`, its settings on standard input.

Prints its address when it listens, and ends when standard input ends: with its launcher, whatever became of that. A
launcher that was ended by a signal removes nothing, so the master removes the folder of the launch where it is told to.
"""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path

import msgspec

from flegel.cluster.launch.processes.lifeline import end_with_input, read_line
from flegel.cluster.master.daemon import MasterDaemon
from flegel.cluster.transport import keys
from flegel.cluster.transport.protocol import RIGHTS
from flegel.cluster.transport.secure_server import listen
from flegel.configuration.active import using
from flegel.configuration.sources import changes_outside
from flegel.errors import FlegelError
from flegel.runtime import logs
from flegel.runtime.system.malloc_settings import share_heap
from flegel.runtime.system.private_files import keep_private


class MasterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where it listens, and the folder of the launch with its keys."""

    listen: str
    home: str
    temporary: bool = False
    """The folder is removed when the master ends."""


def main() -> None:
    """Entry point."""
    logs.configure(level=logging.INFO)
    settings = msgspec.json.decode(read_line(), type=MasterSettings)
    share_heap()
    home = Path(settings.home)
    pair, registry = keys.load(keys.MASTER, home / "keys"), keys.KeyRegistry(home / "keys")
    try:
        with using(changes_outside()), listen(settings.listen, RIGHTS, pair=pair, registry=registry) as server:
            keep_private(home / "master")
            daemon = MasterDaemon(server, home / "master")
            print(server.address, flush=True)
            end_with_input()
            daemon.run()
    except FlegelError as error:
        print(f"flegel: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    finally:
        if settings.temporary:
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
