"""Faults of one rank of FlexibleDDP at random moments: kills, freezes, pauses, and a link of 100 kbit/s (tbf).

    python -m bench.chaos.flexible_ddp --times 10 --out runs/flexible_ddp_faults.json

Ranks train without an end and write a digest of their weights after every barrier. A killed or frozen rank must end all
others within `--limit` seconds, with one sentence that names it; a rank that is held up again and again, or whose link
is slow for a while, must end nobody, and barriers must go on afterwards. Whatever happens, digests of the same barrier
must be the same on all ranks. Exits with 1 where that fails. A slow link takes network namespaces (root on Linux);
without these it is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

from bench.common.namespaces import Network, enter, unavailable

FAULTS = ("kill", "freeze", "pauses", "slow link")
SLOW = 0.1  # Mbit/s: a barrier of this network sends some 20 kB to and from each rank


def rank_main(folder: Path, rank: int, ranks: int) -> None:
    """One rank, until somebody ends it."""
    import torch
    import torch.distributed as dist

    from flegel.torch import FlexibleDDP

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = FlexibleDDP(net, endless=True, interval=0.02)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(rank))
    with (folder / f"digests-{rank}").open("w", buffering=1) as log:
        while True:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), x[:, :1]).backward()
            optimizer.step()
            if model.stepped:
                found = 0
                for p in net.parameters():
                    found = zlib.crc32(p.detach().numpy().tobytes(), found)
                print(model.barriers, found, file=log)


def start(folder: Path, ranks: int, network: Network | None = None) -> list[int]:
    """Forks, after torch is imported once; each in a namespace of the network, if there is one."""
    import torch  # noqa: F401

    children = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(folder / f"errors-{rank}", os.O_WRONLY | os.O_CREAT), 2)
            try:
                if network is not None:
                    enter(network.names[rank])
                    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
                rank_main(folder, rank, ranks)
            except BaseException as error:  # noqa: BLE001 - printed, and ends this rank only
                print(error, file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        children.append(pid)
    return children


def digests(folder: Path, rank: int) -> dict[int, str]:
    log = folder / f"digests-{rank}"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return {int(line[0]): line[1] for line in lines if len(line) == 2}


def ended(children: list[int], limit: float) -> dict[int, int]:
    """Exit codes by rank, of those that end within the limit."""
    codes: dict[int, int] = {}
    until = time.monotonic() + limit
    while len(codes) < len(children) and time.monotonic() < until:
        for rank, pid in enumerate(children):
            if rank not in codes and (found := os.waitpid(pid, os.WNOHANG))[0]:
                codes[rank] = os.waitstatus_to_exitcode(found[1])
        time.sleep(0.05)
    return codes


def judge(fault: str, victim: int, codes: dict[int, int], folder: Path, ranks: int) -> list[str]:
    others = [rank for rank in range(ranks) if rank != victim]
    told = {rank: (folder / f"errors-{rank}").read_text() for rank in others}
    wrong = []
    if fault in ("pauses", "slow link"):
        wrong += [f"rank {rank} ended: {told[rank][-200:]}" for rank in others if rank in codes]
    else:
        wrong += [f"rank {rank} did not end" for rank in others if rank not in codes]
        if not any(f"rank {victim}" in text for text in told.values()):
            wrong.append(f"nobody named rank {victim}: {told}")
    known = [digests(folder, rank) for rank in range(ranks)]
    common = set.intersection(*(set(one) for one in known))
    wrong += [f"barrier {at}: weights differ" for at in sorted(common) if len({one[at] for one in known}) > 1][:3]
    return wrong if common else [*wrong, "no barrier was reached"]


def slow_link(network: Network, victim: int, folder: Path) -> list[str]:
    """The victim sends and receives slowly for some seconds. What is wrong: no barrier after that."""
    network.limit(SLOW, [victim], receiving=True)
    time.sleep(6.0)
    network.limit(0, [victim], receiving=True)
    healed = max(digests(folder, victim), default=0)
    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        if max(digests(folder, victim), default=0) > healed + 10:
            return []
        time.sleep(0.2)
    return [f"no barriers within 30 s after the link was slow; the last was {healed}"]


def trial(fault: str, ranks: int, draw: random.Random, limit: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ending:
        folder, victim = Path(name), draw.randrange(ranks)
        network = ending.enter_context(Network(ranks)) if fault == "slow link" else None
        children = start(folder, ranks, network)
        hung: list[str] = []
        codes: dict[int, int] = {}
        try:
            until = time.monotonic() + 120.0
            while not digests(folder, victim) and time.monotonic() < until:
                time.sleep(0.05)
            moment = draw.uniform(0.0, 1.0)
            time.sleep(moment)
            began = time.monotonic()
            if fault == "pauses":
                for _ in range(6):
                    os.kill(children[victim], signal.SIGSTOP)
                    time.sleep(draw.uniform(0.1, 1.0))
                    os.kill(children[victim], signal.SIGCONT)
                    time.sleep(draw.uniform(0.1, 0.5))
                codes = ended(children, 1.0)
            elif network is not None:
                hung = slow_link(network, victim, folder)
                codes = ended(children, 0.1)
            else:
                os.kill(children[victim], signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
                codes = ended([pid for rank, pid in enumerate(children) if rank != victim], limit)
                codes = {rank + (rank >= victim): code for rank, code in codes.items()}
            seconds = time.monotonic() - began
        finally:
            for rank, pid in enumerate(children):
                if rank not in codes:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        wrong = [*hung, *judge(fault, victim, codes, folder, ranks)]
        return {"fault": fault, "rank": victim, "after": round(moment, 3), "seconds": round(seconds, 2), "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--fault", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--limit", type=float, default=90.0, help="seconds until all others must have ended")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/flexible_ddp_faults.json"))
    given = parser.parse_args()
    draw = random.Random(given.seed)
    found = []
    for fault in given.fault:
        if fault == "slow link" and (why := unavailable()):
            print(f"slow link: left out, {why}")
            continue
        for _ in range(given.times):
            found.append(trial(fault, given.ranks, draw, given.limit))
            print(json.dumps(found[-1]), flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=1))
    bad = sum(bool(one["wrong"]) for one in found)
    print(f"{len(found)} faults, {bad} wrong")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
