"""Faults of one rank of FlexibleDDP at random moments, and training loops of many shapes.

    python -m bench.chaos.flexible_ddp --times 10 --out runs/flexible_ddp_faults.json

Faults: kills, freezes, pauses, an exception, and a link of 100 kbit/s (tbf). Ranks train without an end and write a
digest of their weights after every barrier. A killed, frozen or failed rank must end all others within `--limit`
seconds, with one sentence that names it; a rank that is held up again and again, or whose link is slow for a while,
must end nobody, and barriers must go on afterwards.

Loops: two epochs with random numbers of samples, ranks, loader workers and slow ranks. A generator and its
discriminator (`gan`), and less than four batches for each rank (`small`), with gradients accumulated or small batches
dropped in a part of the runs, must end on all ranks, with every index once per epoch. A rank that leaves its epoch
early (`break`), and a generator that is trained by a count of batches (`gan by count`), must end all ranks with a
sentence, unless they happen to agree.

Whatever happens, weights of the same barrier and at the end must be the same on all ranks, and every run has an end.
Exits with 1 where that fails. A slow link takes network namespaces (root on Linux); without these it is left out.
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common.namespaces import Network, enter, unavailable
from flegel.errors import UsageError

FAULTS = ("kill", "freeze", "pauses", "exception", "slow link")
LOOPS = ("gan", "gan by count", "small", "break")
SLOW = 0.1  # Mbit/s: a barrier of this network sends some 20 kB to and from each rank


@dataclass
class Loop:
    """One training loop, drawn at random; the same on all ranks but for the slow one."""

    kind: str
    ranks: int
    samples: int
    batch: int
    workers: int
    slow: int
    accumulate: int = 1
    drop_last: bool = False
    leaves: int = -1
    """The rank that leaves its epoch early."""

    @classmethod
    def drawn(cls, kind: str, draw: random.Random) -> Loop:
        ranks, batch = draw.randint(2, 3), draw.choice([1, 4, 8, 16])
        many = kind != "small"
        loop = cls(
            kind,
            ranks,
            draw.randint(6 * ranks * batch, 30 * ranks * batch) if many else draw.randint(ranks, 4 * ranks * batch),
            batch,
            draw.choice([0, 0, 1, 2]),
            draw.randrange(ranks),
            leaves=draw.randrange(ranks) if kind == "break" else -1,
        )
        if kind == "small" and loop.samples >= 2 * ranks * batch and draw.random() < 0.5:
            if draw.random() < 0.5:
                loop.drop_last = True
            else:
                loop.accumulate = 2
        return loop


def loop_main(loop: Loop, folder: Path, rank: int) -> None:
    """Two epochs of one rank; writes the indices it has seen and a digest of its weights."""
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, TensorDataset

    from flegel.torch import FlexibleDDP, FlexibleSampler

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=loop.ranks)
    torch.manual_seed(0)
    x = torch.randn(loop.samples, 8)
    data = TensorDataset(x, torch.arange(loop.samples))
    sampler = FlexibleSampler(data)
    loader = DataLoader(
        data, batch_size=loop.batch, sampler=sampler, num_workers=loop.workers, drop_last=loop.drop_last
    )
    d = FlexibleDDP(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)), timeout=20.0)
    g = FlexibleDDP(torch.nn.Linear(4, 8), timeout=20.0)
    of_d, of_g = (one.optimizer(torch.optim.SGD(one.parameters(), lr=0.01)) for one in (d, g))
    seen: list[list[int]] = []
    made = 0
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen.append([])
        for batch, indices in loader:
            made += 1
            seen[-1] += indices.tolist()
            time.sleep(0.004 if rank == loop.slow else 0.0)
            if loop.kind.startswith("gan"):
                with torch.no_grad():
                    fake = g(batch[:, :4])
                d(batch).mean().neg().backward()
                d(fake).mean().backward()
                of_d.step()
                if loop.kind == "gan" or made % 3 == 0:
                    d(g(batch[:, :4])).mean().neg().backward()
                    of_g.step()
                    of_g.zero_grad()
                of_d.zero_grad()
            else:
                (d(batch).square().mean() / loop.accumulate).backward()
                if made % loop.accumulate == 0:
                    of_d.step()
                    of_d.zero_grad()
            if rank == loop.leaves and made == 4:
                break
    weights = digest([*d.parameters(), *g.parameters()])
    (folder / f"seen-{rank}").write_text(json.dumps({"seen": seen, "weights": weights, "barriers": d.barriers}))
    dist.barrier()
    dist.destroy_process_group()


def digest(parameters: Iterable[Any]) -> int:
    found = 0
    for p in parameters:
        found = zlib.crc32(p.detach().numpy().tobytes(), found)
    return found


def judge_loop(loop: Loop, codes: dict[int, int], folder: Path) -> list[str]:
    """What is wrong with a loop's end."""
    told = {rank: (folder / f"errors-{rank}").read_text() for rank in range(loop.ranks)}
    wrong = [f"rank {rank} did not end" for rank in range(loop.ranks) if rank not in codes]
    well = all(codes.get(rank) == 0 for rank in range(loop.ranks))
    if not well and loop.kind in ("gan", "small"):
        return [*wrong, f"ended with {codes}: {told}"]
    if not well:
        silent = [rank for rank, code in codes.items() if code and not told[rank].strip()]
        raw = [rank for rank, text in told.items() if "Traceback" in text]
        return [*wrong, *(f"rank {rank} ended without a sentence" for rank in {*silent, *raw})]
    found = [json.loads((folder / f"seen-{rank}").read_text()) for rank in range(loop.ranks)]
    if len({one["weights"] for one in found}) > 1:
        wrong.append("weights differ")
    if not found[0]["barriers"]:
        wrong.append("no barrier was reached")
    for epoch in range(2 if loop.kind != "break" else 0):
        seen = sorted(i for one in found for i in one["seen"][epoch])
        whole = len(seen) > loop.samples - loop.ranks * loop.batch if loop.drop_last else len(seen) == loop.samples
        if not whole or len(set(seen)) != len(seen):
            wrong.append(f"epoch {epoch}: {len(seen)} indices, {len(set(seen))} different ones, of {loop.samples}")
    return wrong


def loop_trial(kind: str, draw: random.Random, limit: float) -> dict[str, Any]:
    loop = Loop.drawn(kind, draw)
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.monotonic()
        children = start(folder, loop.ranks, lambda rank: loop_main(loop, folder, rank))
        codes = ended(children, limit)
        kill_rest(children, codes)
        wrong = judge_loop(loop, codes, folder)
        ending = {rank: (folder / f"errors-{rank}").read_text().strip()[-300:] for rank in codes if codes[rank]}
        return {**vars(loop), "seconds": round(time.monotonic() - began, 2), "said": ending, "wrong": wrong}


def kill_rest(children: list[int], codes: dict[int, int]) -> None:
    for rank, pid in enumerate(children):
        if rank not in codes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def rank_main(folder: Path, rank: int, ranks: int, fails_at: int = -1) -> None:
    """One rank, until somebody ends it, or until it fails by itself."""
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
                print(model.barriers, digest(net.parameters()), file=log)
            if model.barriers == fails_at:
                raise ValueError("a batch that this rank cannot read")


def start(folder: Path, ranks: int, main: Callable[[int], None], network: Network | None = None) -> list[int]:
    """Forks, after torch is imported once; each in a namespace of the network, if there is one."""
    import torch._dynamo  # noqa: F401 - DDP imports it, and ranks would do so one by one

    children = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(folder / f"errors-{rank}", os.O_WRONLY | os.O_CREAT), 2)
            code = 1
            try:
                if network is not None:
                    enter(network.names[rank])
                    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
                main(rank)
                code = 0
            except UsageError as error:
                print(error, file=sys.stderr, flush=True)
            except BaseException:  # noqa: BLE001 - as the interpreter does with what nobody catches
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(code)
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
        fails_at = draw.randint(1, 40) if fault == "exception" else -1
        children = start(
            folder, ranks, lambda rank: rank_main(folder, rank, ranks, fails_at if rank == victim else -1), network
        )
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
                if fault != "exception":
                    os.kill(children[victim], signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
                codes = ended([pid for rank, pid in enumerate(children) if rank != victim], limit)
                codes = {rank + (rank >= victim): code for rank, code in codes.items()}
            seconds = time.monotonic() - began
        finally:
            kill_rest(children, codes)
        wrong = [*hung, *judge(fault, victim, codes, folder, ranks)]
        return {"fault": fault, "rank": victim, "after": round(moment, 3), "seconds": round(seconds, 2), "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--fault", nargs="+", choices=(*FAULTS, *LOOPS), default=[*FAULTS, *LOOPS])
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
            known = loop_trial(fault, draw, given.limit) if fault in LOOPS else None
            found.append(known or trial(fault, given.ranks, draw, given.limit))
            print(json.dumps(found[-1]), flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=1))
    bad = sum(bool(one["wrong"]) for one in found)
    print(f"{len(found)} runs, {bad} wrong")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
