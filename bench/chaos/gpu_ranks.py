"""Ranks on one GPU: gloo ranks that share it, beside DDP and healing, and NCCL with the one rank that it takes.

    python -m bench.chaos.gpu_ranks --ranks 3 --seconds 15 --out runs/gpu_ranks.json

NCCL refuses a second rank on the same GPU ("Duplicate GPU detected"), so more NCCL ranks need more GPUs; the part
`nccl twice` shows its error, or that this version takes them. Each part runs its ranks as processes of this module;
`--device cpu` leaves NCCL out. Exits with 1 where a part that should end well does not.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

PARTS = ("ddp", "flexible", "heal", "nccl", "nccl heal", "nccl twice")
MAY_FAIL = ("nccl twice",)
BATCH, COLUMNS, WIDTH = 256, 256, 1024


def rank_main(part: str, rank: int, ranks: int, address: str, options: argparse.Namespace, folder: Path) -> None:
    """One rank until its time is over: its samples a second and a digest of its weights."""
    import torch
    import torch.distributed as dist

    from flegel.torch import FlexibleDDP, join

    device = torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(COLUMNS, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1)).to(device)
    if part.endswith("heal"):
        join(address, ranks=ranks, silence=1.0, backend="nccl" if part.startswith("nccl") else "gloo")
    else:
        kind = "nccl" if part.startswith("nccl") else "gloo"
        dist.init_process_group(kind, init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    plain = part == "ddp"
    model: Any = torch.nn.parallel.DistributedDataParallel(net) if plain else FlexibleDDP(net, endless=True)
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.001)
    if not plain:
        optimizer = model.optimizer(optimizer)
        model.begin()
    x = torch.randn(BATCH, COLUMNS, generator=torch.Generator().manual_seed(rank)).to(device)
    began, steps = time.monotonic(), 0
    while True:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x[:, :1]).backward()
        optimizer.step()
        steps += 1
        if steps == 3:
            (folder / f"trains-{rank}").touch()
        if plain and steps % 20 == 0:
            over = torch.tensor([float(time.monotonic() - began > options.seconds)], device=device)
            dist.all_reduce(over, op=dist.ReduceOp.MAX)
            if over.item():
                break
        if not plain and model.should_stop(seconds=options.seconds):
            break
    seconds = time.monotonic() - began
    digest = 0
    for p in net.parameters():
        digest = zlib.crc32(p.detach().cpu().numpy().tobytes(), digest)
    found = {"rate": steps * BATCH / seconds, "steps": steps, "digest": digest, "ranks": getattr(model, "ranks", ranks)}
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    if part.endswith("heal"):
        model.close()


def run(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """All ranks of a part; where they heal, the last of several is killed in the middle."""
    ranks = {"nccl": 1, "nccl heal": 1, "nccl twice": 2}.get(part, options.ranks)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder, store = Path(name), None
        if part.endswith("heal"):
            store = subprocess.Popen([sys.executable, "-m", "flegel", "ddp-store", "--port", str(port)])
            time.sleep(5.0)  # for the store to import torch; ranks try to connect for ten seconds more
        command = [sys.executable, "-m", "bench.chaos.gpu_ranks", "--device", options.device]
        command += ["--seconds", str(options.seconds), "--address", f"tcp://127.0.0.1:{port}", "--folder", name]
        logs = [(folder / f"errors-{rank}").open("w") for rank in range(ranks)]
        processes = [
            subprocess.Popen([*command, "--ranks", str(ranks), "--rank", str(rank), "--part", part], stderr=log)
            for rank, log in enumerate(logs)
        ]
        killed = part == "heal" and ranks > 1
        try:
            until = time.monotonic() + options.start + options.seconds + 60.0
            while killed and not (folder / f"trains-{ranks - 1}").exists() and time.monotonic() < until:
                time.sleep(0.1)
            if killed:
                time.sleep(options.seconds / 3)
                processes[-1].send_signal(signal.SIGKILL)
            codes = [one.wait(timeout=max(until - time.monotonic(), 0.1)) for one in processes]
        except subprocess.TimeoutExpired:
            codes = [one.poll() for one in processes]
        finally:
            for one in (*processes, *([store] if store else [])):
                one.kill()
                one.wait()
        told = [json.loads(one.read_text()) for one in sorted(folder.glob("rank-*.json"))]
        survivors = codes[:-1] if killed else codes
        well = all(code == 0 for code in survivors) and len({one["digest"] for one in told}) == 1
        errors = [(folder / f"errors-{rank}").read_text()[-600:] for rank in range(ranks) if codes[rank]]
        rate = round(sum(one["rate"] for one in told))
        return {"well": well, "ranks": ranks, "samples_per_s": rate, "codes": codes, "errors": errors, "told": told}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=[])
    parser.add_argument("--ranks", type=int, default=3, help="gloo ranks that share the device")
    parser.add_argument("--seconds", type=float, default=15.0, help="of training, for each part")
    parser.add_argument("--start", type=float, default=20.0, help="seconds until ranks train, at most")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank", type=int, help="of this process, when it is one of the ranks")
    parser.add_argument("--address", default="")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.rank is not None:
        rank_main(options.part[0], options.rank, options.ranks, options.address, options, options.folder)
        return 0
    parts = options.part or [one for one in PARTS if options.device != "cpu" or not one.startswith("nccl")]
    found = {}
    for part in parts:
        found[part] = run(part, options)
        print(part, json.dumps(found[part]), flush=True)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1))
    return int(not all(one["well"] for part, one in found.items() if part not in MAY_FAIL))


if __name__ == "__main__":
    sys.exit(main())
