"""Two sites of two ranks each that train one model through a folder. For `test_site_ranks.py`.

    python -m tests.extras.networks.site_ranks FOLDER '{"killed": "leader"}'     "rank", "all", or {"frozen": "leader"}

Every rank writes a line for each barrier: its number, the round that θ holds, and a digest of θ; the last line says how
it ended. Where all ranks of a site are killed, as many are started again, as a supervisor would do it. torch is
imported once: stores and ranks are forked.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
import zlib
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from flegel.torch import FlexibleDDP, FlexibleSampler, LocalStepsDDP, Site, join

SITES, RANKS, ROWS, EPOCHS, BATCH = ("oslo", "paris"), 2, 512, 6, 32
ROUNDS, MOST_EPOCHS = 6, 300  # a site trains on until the bucket has answered so often
KILLED_AT = 7  # barriers, of about eight in an epoch
FROZEN_SECONDS = 20.0  # longer than the others wait for a rank that is silent


def problem() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows with four classes, drawn from one plane each."""
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(2 * ROWS + 1000, 16, generator=draw)
    return rows, (rows @ torch.randn(16, 4, generator=draw)).argmax(1)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 24), torch.nn.BatchNorm1d(24), torch.nn.Tanh(), torch.nn.Linear(24, 4)
    )


def digest(model: Any) -> int:
    values = [value for name, value in model.module.state_dict().items() if not name.endswith("batches_tracked")]
    return zlib.crc32(b"".join(value.numpy().tobytes() for value in values))


def accuracy(net: torch.nn.Module) -> float:
    rows, labels = problem()
    net.eval()
    with torch.no_grad():
        return float((net(rows[2 * ROWS :]).argmax(1) == labels[2 * ROWS :]).float().mean())


def central() -> float:
    """One process with the rows of both sites: as many epochs, with the batch of one site."""
    rows, labels = problem()
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(2 * ROWS).split(BATCH * RANKS):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(rows[chosen]), labels[chosen]).backward()
            optimizer.step()
    return accuracy(net)


def train(folder: Path, place: int, number: int, address: str, options: dict[str, Any]) -> None:
    """One rank, to the end of its site."""
    torch.set_num_threads(1)
    join(address, ranks=RANKS)
    rows, labels = problem()
    data = TensorDataset(rows[place * ROWS : (place + 1) * ROWS], labels[place * ROWS : (place + 1) * ROWS])
    net = network()
    if place:  # θ(0) is that of the site which came first
        torch.nn.init.normal_(net[0].weight)
    site = Site(str(folder / "bucket"), SITES[place], **options.get("site", {}))
    if options.get("local"):
        model: FlexibleDDP = LocalStepsDDP(net, local_steps=2, outer_rate=1.0, outer_momentum=0.0, site=site)
    else:
        model = FlexibleDDP(net, interval=1e-4, lr_rule="none", site=site)  # a barrier for each micro-batch
    sampler = FlexibleSampler(data)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.1 * len(SITES), momentum=0.9))
    doomed = None if number < RANKS else False  # one that was started again stays
    with (folder / f"{SITES[place]}-{number}").open("w", buffering=1) as log:
        for epoch in range(model.begin(sampler), MOST_EPOCHS):
            if epoch >= EPOCHS and model.site is not None and model.site.round >= ROUNDS:
                break  # at the same barrier on all ranks of a site, which have the same round
            sampler.set_epoch(epoch)
            for inputs, target in DataLoader(data, batch_size=BATCH, sampler=sampler):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs), target).backward()
                optimizer.step()
                assert model.site is not None
                if model.stepped:
                    print(json.dumps([model.barriers, model.site.round, digest(model)]), file=log)
                if doomed is None:
                    role = "leader" if model.rank == 0 else "rank"
                    ends = options.get("killed"), options.get("frozen")
                    doomed = place == 0 and (role in ends or "all" in ends)
                if doomed and model.barriers >= KILLED_AT and model.site.round >= 1:
                    if "killed" in options:
                        os.kill(os.getpid(), signal.SIGKILL)
                    freeze(FROZEN_SECONDS)
                    doomed = False
        agreed = model.finish(seconds=120)
        assert model.site is not None
        ended = {"agreed": agreed, "digest": digest(model), "round": model.site.round, "ranks": model.ranks}
        ended["leads"] = model.site.leads
        print(json.dumps({**ended, "accuracy": accuracy(net)}), file=log)
        model.close()


def freeze(seconds: float) -> None:
    """This process, until another one lets it go on."""
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def forked(run: Any, *given: Any) -> int:
    """A process that runs this; its errors go to the parent's."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        run(*given)
        code = 0
    except BaseException:  # noqa: BLE001 - printed, and ends this process only
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    from flegel.torch.flexible.store import serve

    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    ports = []
    for _ in SITES:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    stores = [forked(serve, "127.0.0.1", port) for port in ports]
    ranks = {
        forked(train, folder, place, number, f"tcp://127.0.0.1:{ports[place]}", options): f"{site}-{number}"
        for place, site in enumerate(SITES)
        for number in range(RANKS)
    }
    codes: dict[str, int] = {}
    while ranks:
        pid, status = os.wait()
        if pid in ranks:
            codes[ranks.pop(pid)] = os.waitstatus_to_exitcode(status)
        if options.get("killed") == "all" and all(f"{SITES[0]}-{number}" in codes for number in range(RANKS)):
            options = {**options, "killed": ""}
            for number in range(RANKS, 2 * RANKS):
                again = forked(train, folder, 0, number, f"tcp://127.0.0.1:{ports[0]}", options)
                ranks[again] = f"{SITES[0]}-{number}"
    for pid in stores:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    (folder / "codes.json").write_text(json.dumps({"codes": codes, "central": central()}))


if __name__ == "__main__":
    main()
