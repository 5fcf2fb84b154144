"""A training whose ranks may be lost, replaced and added while it runs; changes are marked.

flegel ddp-store --port 29400
python docs/examples/healing_ddp.py tcp://127.0.0.1:29400 2    # in as many terminals

It trains for about a minute. Meanwhile end one rank (Ctrl-C) and start it again, or start a third: each line tells how
many ranks there are.
"""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flegel.torch import FlexibleDDP, FlexibleSampler, RankExcluded, TrainingEnded, join


def main() -> None:
    join(sys.argv[1], ranks=int(sys.argv[2]))  # changed: was dist.init_process_group
    torch.manual_seed(0)
    features = torch.randn(4096, 32)
    data = TensorDataset(features, (features[:, :4].sum(1) > 0).long())
    sampler = FlexibleSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = FlexibleDDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2)))
    optimizer = model.optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    while True:
        try:
            for epoch in range(model.begin(sampler), int(os.environ.get("EPOCHS", "200"))):  # changed
                sampler.set_epoch(epoch)
                for inputs, labels in loader:
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(inputs), labels)
                    loss.backward()
                    optimizer.step()
                if model.rank == 0:  # changed: was dist.get_rank()
                    print(f"epoch {epoch}: loss {loss.detach():.3f}, {model.ranks} ranks")
        except RankExcluded as error:  # this process was frozen for a while: it takes part again
            print(error, file=sys.stderr)
        except TrainingEnded:
            break
        else:
            break
    model.close()  # changed


if __name__ == "__main__":
    main()
