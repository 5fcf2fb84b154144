"""Mixed precision, accumulated gradients, a schedule, clipping and evaluation under FlexibleDDP; changes are marked.

torchrun --nproc-per-node 2 docs/examples/flexible_amp.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flegel.torch import FlexibleDDP as DDP, FlexibleSampler as DistributedSampler  # isort: skip  # changed: was torch's

ACCUMULATE = 2  # batches whose gradients make one step


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    features = torch.randn(4096, 32)
    data = TensorDataset(features, (features[:, :4].sum(1) > 0).long())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2)))
    optimizer = model.optimizer(torch.optim.AdamW(model.parameters(), lr=0.003))  # changed
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    scheduler = model.scheduler(scheduler, samples=64)  # changed: once for 64 samples of all ranks
    scaler = model.scaler(torch.amp.GradScaler("cpu"))  # changed
    for epoch in range(int(os.environ.get("EPOCHS", "3"))):
        sampler.set_epoch(epoch)
        for number, (inputs, labels) in enumerate(loader, 1):
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(inputs).float(), labels) / ACCUMULATE
            scaler.scale(loss).backward()
            if number % ACCUMULATE:
                continue
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
        with torch.no_grad():
            right = (model(features[:512]).argmax(1) == data.tensors[1][:512]).float().mean()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {right:.2f} of 512 are right, {model.barriers} barriers")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
