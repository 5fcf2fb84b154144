"""Ranks one of which ends before the others, for tests/extras/networks/test_ending_ranks.py: a scenario after another.

    python ending_ranks.py FOLDER

Writes FOLDER/ended.json: for each scenario the exit codes of the ranks, and what each wrote to its standard error.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP imports it, and forked ranks would do so one by one
import torch.distributed as dist
from torch import nn

from flegel.torch import FlexibleDDP, LocalStepsDDP

RANKS, LAST = 3, 2
"""The last rank is the one that ends."""


def leave() -> None:
    sys.exit(0)


def fail() -> None:
    raise ValueError("a fault of the script")


def train(rank: int, end: Callable[[], None], where: str, at: int = 6, kind: Any = FlexibleDDP, **options: Any) -> None:
    """The last rank ends after barrier `at`. Places are chosen by barriers, never by a count of batches: ranks that
    share a busy machine are not equally fast, and make different numbers of micro-batches between barriers."""
    if where == "before wrapping" and rank == LAST:
        end()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 1000), nn.BatchNorm1d(1000), nn.Tanh(), nn.Linear(1000, 1))
    model = kind(net, endless=True, **options)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    x = torch.randn(8, 6)
    while model.barriers < at + 100:
        ends = rank == LAST and model.barriers == at
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        if ends and where == "after forward":
            end()
        loss.backward()
        if ends and where == "after backward" and model.barrier.complete:
            end()
        optimizer.step()
        if ends and where == "after step":
            end()
        if where == "before a collective of the script" and model.stepped and model.barriers == at:
            if rank == LAST:
                end()
            dist.barrier()


def caught(rank: int) -> None:
    """A script that catches every error."""
    try:
        train(rank, leave, "after step")
    except Exception as error:  # noqa: BLE001 - that is the scenario
        print("caught:", error, file=sys.stderr)


SCENARIOS: dict[str, Callable[[int], None]] = {
    "an early end": lambda rank: train(rank, leave, "after step"),
    "an error": lambda rank: train(rank, fail, "after forward"),
    "a script that catches all": caught,
    "while buckets are arranged": lambda rank: train(rank, leave, "after backward", at=0, buffers="local"),
    "while buffers are averaged": lambda rank: train(rank, leave, "after backward"),
    "8 bits": lambda rank: train(rank, leave, "after forward", compress="int8"),
    "local steps": lambda rank: train(rank, leave, "after step", at=1, kind=LocalStepsDDP, local_steps=4),
    "before wrapping": lambda rank: train(rank, fail, "before wrapping"),
    "a collective of the script": lambda rank: train(rank, leave, "before a collective of the script"),
}


def rank_main(folder: Path, rank: int, play: Callable[[int], None]) -> None:
    """A forked rank; it ends as the interpreter would end it."""
    os.dup2(os.open(folder / f"errors-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    code = 1
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
        play(rank)
        code = 0
    except SystemExit:
        code = 0
    except BaseException:  # noqa: BLE001 - as the interpreter does with what nobody catches
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    found = {}
    for name, play in SCENARIOS.items():
        folder = Path(sys.argv[1], name.replace(" ", "-"))
        folder.mkdir()
        children = []
        for rank in range(RANKS):
            pid = os.fork()
            if pid == 0:
                rank_main(folder, rank, play)
            children.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        found[name] = {"codes": codes, "told": [(folder / f"errors-{rank}").read_text() for rank in range(RANKS)]}
    Path(sys.argv[1], "ended.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
