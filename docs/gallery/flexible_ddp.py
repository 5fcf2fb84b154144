"""
FlexibleDDP: a slow rank
========================

``DistributedDataParallel`` of PyTorch waits for the slowest rank in every step. With ``FlexibleDDP`` ranks meet by
time: a slow rank brings fewer samples, and the gradient is the mean over all samples. Two lines of a script change.
"""

import inspect
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from flegel.torch import FlexibleDDP, FlexibleSampler

# %%
# The training of one rank. Rank 1 sleeps in each batch, as if its processor were busy with something else.


def train() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    features = torch.randn(2048, 16)
    data = TensorDataset(features, (features[:, :4].sum(1) > 0).long())
    sampler = FlexibleSampler(data)  # changed: was DistributedSampler
    model = FlexibleDDP(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)))
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))  # changed: steps at barriers
    samples = 0
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, labels in DataLoader(data, batch_size=16, sampler=sampler):
            time.sleep(0.02 if dist.get_rank() == 1 else 0.005)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            samples += len(inputs)
    print(f"rank {dist.get_rank()}: {samples} samples, {model.barriers} barriers, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


# %%
# The script starts itself on two ranks, as ``torchrun --nproc-per-node 2`` would. All samples of an epoch are trained,
# most of them by the fast rank; both ranks make the same steps.

if "RANK" in os.environ:
    train()
else:
    script = inspect.getsourcefile(train)  # in a build of the pages there is no __file__
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    print(subprocess.run(ranks, capture_output=True, text=True, check=True).stdout)
