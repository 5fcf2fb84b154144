"""Kernels of all built-in algorithms, compiled beside a first job for the jobs that come after it. Trains nothing.

A process of the lowest priority, one for each cache, fills the cache until it is full (`warm_code`). It ends with the
process that started it: a command leaves nothing behind, and the next one goes on where this one was. It takes no turns
(`compile_turns`), so no job ever waits for it; a job that needs the same kernel at the same moment compiles it too.
FLEGEL_WARM=0 in the environment: jobs compile what they need, and nothing else is compiled.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from flegel.algorithms import BUILTINS
from flegel.core import code_folder, native_code
from flegel.datasets.rows import memory
from flegel.runtime.backends.numba.compile_turns import check_memory
from flegel.runtime.processes.fork_server import environment
from flegel.runtime.system.parent_death import die_with_parent, process_starter

MOST_PROCESSOR_SECONDS = 1800
"""Everything takes about 400 s of a processor; the kernel ends a process that takes much longer."""
LEAST_PROCESSORS = 2
"""With one, the job itself would be slower."""
OWN = "flegel.algorithms."  # where the algorithms are whose kernels are compiled here
FIRST_TO_GO = 1000  # where memory is short, the kernel ends this process before all others
LEAST_FREE_BYTES = 1 << 30
"""Memory that must be free: this process takes up to 400 MB, which a job may need that has rows larger than memory."""
_asked: list[subprocess.Popen[bytes]] = []


def full_mark() -> Path:
    """The file that says that everything is in the cache, for this version of the code and this processor."""
    homes = [home.partition(":")[0].removeprefix("flegel.") for home in BUILTINS.values() if OWN in home]
    keys = [code_folder.content_key(file) for home in homes for file in sorted(code_folder._files(home))]
    digest = hashlib.sha256(repr((keys, native_code.processor())).encode()).hexdigest()[:20]
    return code_folder.code_folder() / f"full-{digest}"


@contextlib.contextmanager
def _alone() -> Iterator[IO[bytes] | None]:
    """None where another process fills this cache; otherwise no other one begins to while this block runs."""
    with (code_folder.code_folder() / "filling.lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
            return
        yield file


def wanted() -> bool:
    """Whether the cache is to be filled, and no other process fills it."""
    able = sys.platform == "linux" and len(os.sched_getaffinity(0)) >= LEAST_PROCESSORS and native_code.is_possible()
    if not able or os.environ.get("FLEGEL_WARM", "") == "0" or not code_folder.is_lasting():
        return False
    try:
        if full_mark().exists() or memory.available() < LEAST_FREE_BYTES:
            return False
        with _alone() as turn:
            return turn is not None
    except OSError:
        return False


def start() -> None:
    """Fill the cache from now on, if that is wanted; once in a process."""
    if _asked and _asked[0].poll() is None:
        return
    if not wanted():
        return
    command = [sys.executable, "-P", "-m", "flegel.runtime.job.background_compiler", str(os.getpid())]
    nothing = subprocess.DEVNULL
    with contextlib.suppress(OSError):  # no room for a process
        process = process_starter.start(
            lambda: subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, env=environment())
        )
        if not _asked:
            atexit.register(stop)
        _asked[:] = [process]


def stop() -> None:
    """End it, if it runs."""
    for process in _asked:
        process.kill()
        process.wait()
    _asked.clear()


# -- the process -------------------------------------------------------------------------------------------


def _humble(parent: int) -> None:
    """The lowest priority, limits, and an end with its parent. Idle scheduling as well: threads of OpenMP wait for each
    other at every loop, and a core that a process of low priority holds for some milliseconds stops all of them. It
    stays in the parent's session: Linux shares processors among sessions first, whatever the priorities inside them
    are."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    die_with_parent()
    if os.getppid() != parent:  # it has ended before
        sys.exit(0)
    os.setpriority(os.PRIO_PROCESS, 0, 19)  # the lowest, whatever the parent's is: training comes first
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_PROCESSOR_SECONDS, MOST_PROCESSOR_SECONDS))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(FIRST_TO_GO))


def fill() -> None:
    """Compile everything, what first jobs use most first; what cannot be compiled is left to the job that needs it."""
    from flegel.runtime.job import warm_code

    code_folder.take_turns(lambda path: contextlib.nullcontext(), check_memory)
    for case in warm_code.everything():
        if memory.available() < LEAST_FREE_BYTES:
            return
        with contextlib.suppress(Exception):
            warm_code.compile_case(case)
    full_mark().touch()


def main() -> None:
    _humble(int(sys.argv[1]))
    with _alone() as turn:
        if turn is not None:
            fill()


if __name__ == "__main__":
    main()
