"""Ranks of one site that train one model together with ranks at other sites; what healing_ddp.py lacks is marked.

flegel ddp-store --port 29400                                                          # one at each site
python docs/examples/site_ddp.py tcp://127.0.0.1:29400 2 oslo s3://models/job9         # as many times as ranks

The other sites do the same under names of their own, with the same bucket (a folder that all can reach will do).
"""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flegel.torch import FlexibleDDP, FlexibleSampler, Site, join


def main() -> None:
    address, ranks, name, bucket = sys.argv[1:]
    join(address, ranks=int(ranks), run=name)
    torch.manual_seed(sum(name.encode()))  # each site has rows of its own
    features = torch.randn(4096, 32)
    data = TensorDataset(features, (features[:, :4].sum(1) > 0).long())
    sampler = FlexibleSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))
    site = Site(bucket, name, every=20, groups=2, wire="int8")  # new: where sites meet, and how often
    model = FlexibleDDP(net, site=site)  # new: site=
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for epoch in range(model.begin(sampler), int(os.environ.get("EPOCHS", "20"))):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
    together = model.finish()  # new: wait until the other sites have ended; the module is the same at all of them
    if model.rank == 0:
        print(f"{name}: all sites ended with one model: {together}; round {model.site.round} of all sites")
    model.close()


if __name__ == "__main__":
    main()
