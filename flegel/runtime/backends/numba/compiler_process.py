"""A process that compiles a kernel for the cache, while the one that asked for it does something else.

A thread could not: the compiler holds the interpreter's lock, and so does much of what is to be done meanwhile. The
process runs a tiny job of the same algorithm (`flegel.runtime.job.warm_code`), and ends; it ends with its parent, too.
Where it fails, whoever needs the kernel compiles it and meets the error.
"""

from __future__ import annotations

import subprocess
import sys

from flegel.runtime.processes.fork_server import environment
from flegel.runtime.system.parent_death import process_starter


class CompilerProcess:
    """A compiler at work. In a session of its own, so that the scheduler of Linux gives it a fair share beside all
    threads of its parent together."""

    def __init__(self, case: str) -> None:
        """`case` is what `warm_code` is to compile, as JSON."""
        command = [sys.executable, "-P", "-m", "flegel.runtime.job.warm_code", case]
        nothing = subprocess.DEVNULL
        self._process = process_starter.start(
            lambda: subprocess.Popen(
                command, stdin=nothing, stdout=nothing, stderr=nothing, env=environment(), start_new_session=True
            )
        )

    def wait(self) -> None:
        """Until it has ended: its code is in the cache then, or it has failed."""
        self._process.wait()

    def close(self) -> None:
        """End it, if it has not ended: nobody waits for its code any more."""
        self._process.kill()
        self._process.wait()
