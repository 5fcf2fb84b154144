"""A script for `sbatch`: a launch inside one allocation that stops with a checkpoint before its time limit and goes on
in the next one. Writes text; submits nothing.

Slurm signals the script (`--signal=B:USR1@…`), the script the launcher, the launcher its job. A job that has stopped
with a checkpoint lets the launcher end with `SUSPENDED`; only then the script puts itself back into the queue. The
same command continues from the checkpoint, because the folder has the number of the Slurm job, which a requeued one
keeps.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flegel.errors import ExitCode, UsageError

OPTIONS_SET_BY_SCRIPT = (
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "cpus-per-task",
    "signal",
    "requeue",
    "no-requeue",
    "array",
    "open-mode",
)
"""Options of sbatch that the script itself sets."""
MAX_FRUITLESS_ALLOCATIONS = 3
"""Allocations that may end before the job has written a checkpoint; then the script does not requeue itself again."""


class SlurmScript(NamedTuple):
    """What the script asks of Slurm and runs. In `words`, `%a` is the number of a task of an array, `%A` the job's."""

    words: Sequence[str]
    slaves: int
    slots: int = 1
    cpus: int | None = None
    memory: str | None = None
    options: Mapping[str, str] = {}
    array: str = ""
    warning: int = 120
    """Seconds before the time limit at which the job is told to stop."""
    checkpoints: str = "checkpoints"

    def text(self) -> str:
        """The whole script."""
        self._check()
        return SCRIPT_TEMPLATE.format(
            directives="\n".join(f"#SBATCH {line}" for line in self._directives()),
            checkpoints=shlex.quote(self.checkpoints),
            command=self._command(),
            suspended=int(ExitCode.SUSPENDED),
            attempts=MAX_FRUITLESS_ALLOCATIONS,
        )

    def _check(self) -> None:
        """Refuse a command that is no `submit`, and options that the script sets itself."""
        if not self.words or self.words[0] != "submit":
            raise UsageError("A script runs one job; give it after --, such as `-- submit kmeans --data higgs`.")
        for word in self.words:
            if word in ("--checkpoint", "--detach", "--master") or word.startswith(("--checkpoint=", "--master=")):
                raise UsageError(f"The script sets {word.partition('=')[0]} itself; omit it (--checkpoints is where).")
        for name in self.options:
            if name.replace("_", "-") in OPTIONS_SET_BY_SCRIPT:
                raise UsageError(f"The script sets {name} itself; see --slaves, --cpus, --array and --warning.")
        if self.warning < 1:
            raise UsageError(f"--warning must be at least 1 second, not {self.warning}.")

    def _directives(self) -> list[str]:
        """The lines after `#SBATCH`; options of the user have precedence over those that the script sets."""
        log = "flegel-%A_%a.log" if self.array else "flegel-%j.log"
        given = {name.replace("_", "-"): value for name, value in self.options.items()}
        found = {
            "job-name": "flegel",
            "output": log,
            "nodes": str(self.slaves),
            "ntasks-per-node": "1",
            "cpus-per-task": str(self.cpus or self.slots),
            "signal": f"B:USR1@{self.warning}",
            "requeue": "",
            "open-mode": "append",
        }
        found |= {"array": self.array} if self.array else {}
        return [f"--{name}={value}" if value else f"--{name}" for name, value in (found | given).items()]

    def _command(self) -> str:
        launch = [sys.executable, "-P", "-m", "flegel", "launch", "slurm", "--slaves", str(self.slaves)]
        launch += ["--slots", str(self.slots), "--cpus", str(self.cpus or self.slots)]
        launch += ["--memory", self.memory] if self.memory else []
        words = [_expanded(word) for word in self.words]
        return " ".join([*map(shlex.quote, launch), "--", *words, '--checkpoint "$state"'])


def _expanded(word: str) -> str:
    """Quoted for the shell, but for the numbers of the job and of its task."""
    pieces = re.split("(%[aA])", word)
    return "".join(ARRAY_VARIABLES.get(piece) or shlex.quote(piece) for piece in pieces if piece) or "''"


ARRAY_VARIABLES = {"%a": '"$SLURM_ARRAY_TASK_ID"', "%A": '"$SLURM_ARRAY_JOB_ID"'}
SCRIPT_TEMPLATE = """#!/bin/bash
{directives}
# Made by `flegel launch slurm --script`; submit it with sbatch.
state={checkpoints}/"${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}"
mkdir -p "$state"
{command} &
launcher=$!
signalled=
trap 'signalled=1; kill -USR1 $launcher' USR1   # before the time limit: write a checkpoint and stop
trap 'signalled=1; kill -TERM $launcher' TERM INT
while :; do
  wait $launcher; code=$?
  [ -n "$signalled" ] && [ $code -gt 128 ] || break   # a signal has ended `wait`, not the launcher
  signalled=
done
if [ $code -eq {suspended} ]; then
  if [ -z "$(ls -A "$state")" ] && [ "${{SLURM_RESTART_COUNT:-0}}" -ge {attempts} ]; then
    echo "flegel: the job has not begun to train in {attempts} allocations; give it more time than --time has"
    exit 1
  fi
  echo "flegel: stopped; back into the queue, to go on from $state"
  scontrol requeue "$SLURM_JOB_ID"   # ends this script
fi
exit $code
"""
