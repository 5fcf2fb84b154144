"""Entry point of a job's process: it takes on its limits, then becomes a worker or a coordinator."""

from __future__ import annotations

import select
import sys

import msgspec

from flegel.cluster.slave.process_limits import ProcessLimits, apply_limits, bind_to_parent, read_line
from flegel.runtime.system.standard_streams import protect


def main() -> None:
    """`job_process PARENT ROLE`, where ROLE says what to import in advance (`any`: for both)."""
    bind_to_parent(int(sys.argv[1]))
    protect("stdout", "stderr")
    if sys.argv[2] != "worker":
        from flegel.cluster.slave import slave_workers  # noqa: F401 - imported now, so that a spare process is quick
        from flegel.cluster.slave.coordinator_process import main as coordinate
        from flegel.runtime.job import run  # noqa: F401
    from flegel.runtime.worker.process import main as work

    if sys.argv[2] == "any" and not select.select([0], [], [], 0)[0]:
        from flegel.runtime.backends.numba.compiler import wake_compiler

        wake_compiler()  # half a second that a job would have to wait for
    limits = msgspec.json.decode(read_line(), type=ProcessLimits)
    apply_limits(limits)
    if limits.role == "worker":
        work()
    else:
        coordinate()


if __name__ == "__main__":
    main()
