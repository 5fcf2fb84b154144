"""Whether the processes that start workers get on: a fork server that is stopped, by a signal or a debugger, answers
nothing and does not end. Starts and ends no process.

A start may take long where libraries are read from a slow disk or the host is crowded, so time alone says nothing:
silence is time in which neither the fork server nor a worker without a hello has computed, waited for a processor or
for a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flegel.errors import WorkerLost
from flegel.runtime.processes.fork_server import ForkedProcess
from flegel.runtime.processes.worker_processes import Launcher, Process
from flegel.runtime.system.process_activity import Silence, is_stopped
from flegel.wording import option

LONGEST_STEP_SECONDS = 1.0
"""Between two looks, which are 0.1 s apart: a longer time means that this process was held up itself."""


class StartingProcesses:
    """Looked at now and then while workers start."""

    def __init__(self, launcher: Launcher, limit: float, say: Callable[[str], None]) -> None:
        """`limit`: seconds of silence after which the fork server counts as lost."""
        self._launcher, self._limit, self._say = launcher, limit, say
        self._silence = Silence(LONGEST_STEP_SECONDS)
        self._told = self._replaced = False

    def look(self, late: Mapping[int, Process], now: float) -> bool:
        """Whether the fork server has to be replaced. `late`: workers that have not said hello. Raises `WorkerLost`
        where it was replaced before."""
        server = self._launcher.ancestor()
        if server is None or not late:
            return False  # their processes are elsewhere, or nothing is known of them
        workers = [p.known_pid for p in late.values() if isinstance(p, ForkedProcess) and p.known_pid is not None]
        seconds = self._silence.look([server, *workers], now)
        stopped = next((pid for pid in (server, *workers) if is_stopped(pid)), None)
        why = f"process {stopped} is stopped" if stopped else f"process {server}, which starts them, does nothing"
        waiting = f"workers {sorted(late)} have not started"
        if seconds > self._limit:
            if self._replaced:
                raise WorkerLost(f"{waiting.capitalize()} within {self._limit:g} s, twice: {why}.")
            self._say(f"{waiting}: {why}; others are started in their place")
            self._silence = Silence(LONGEST_STEP_SECONDS)
            self._replaced, self._told = True, False
            return True
        if seconds > self._limit / 2 and not self._told:
            self._told = True
            self._say(f"{waiting}: {why}; it counts as lost after {self._limit:g} s ({option('worker_timeout')})")
        return False
