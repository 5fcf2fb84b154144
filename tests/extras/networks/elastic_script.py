"""Trains one epoch under torchrun; in its first life rank 1 is killed in the middle. For `test_flexible_ddp.py`.

Snapshots hold the weights, the optimizer and the sampler after a barrier; a new life goes on from the last one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from flegel.torch import FlexibleDDP, FlexibleSampler

EVERY = 3  # barriers between two snapshots
PAUSE = 0.003  # seconds of a batch, at least: 15 barriers and more in the epoch, however fast the machine is


def main() -> None:
    folder, life = Path(sys.argv[1]), os.environ["TORCHELASTIC_RESTART_COUNT"]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    x = torch.randn(1003, 4)
    data = TensorDataset(x, x[:, :1], torch.arange(1003))
    sampler = FlexibleSampler(data)
    model = FlexibleDDP(torch.nn.Linear(4, 1), interval=0.01)
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    if (folder / "snapshot.pt").exists():
        kept = torch.load(folder / "snapshot.pt", weights_only=True)
        model.module.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        sampler.load_state_dict(kept["sampler"])
    with (folder / f"seen-{life}-{rank}").open("w", buffering=1) as log:
        for features, target, indices in DataLoader(data, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(features), target).backward()
            for index in indices.tolist():
                print(life, model.barriers, index, file=log)
            time.sleep(PAUSE)
            optimizer.step()
            if model.stepped and model.barriers % EVERY == 0 and life == "0" and rank == 0:
                kept = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**kept, "sampler": sampler.state_dict()}, folder / "new.pt")
                (folder / "new.pt").rename(folder / "snapshot.pt")
                (folder / "snapshot.json").write_text(json.dumps({"barriers": model.barriers}))
            if life == "0" and rank == 1 and model.barriers >= 2 * EVERY + 1:
                os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
