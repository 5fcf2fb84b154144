"""Plain DDP that is watched: one rank reads slowly, one computes slowly; started under torchrun by test_watching.py."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from flegel.torch import watch

READING, COMPUTING = 0.12, 0.06  # seconds that the slow ranks sleep in each batch
BATCHES, BATCH = 30, 4


class Rows(Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(READING / BATCH if dist.get_rank() == 1 else 0.0)
        return torch.ones(8)


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(COMPUTING if dist.get_rank() == 2 else 0.0)
        return self.layer(x)


def main() -> None:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watching = watch(model, sys.argv[1], every=0.5)
    for batch in DataLoader(Rows(), batch_size=BATCH):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    watching.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
