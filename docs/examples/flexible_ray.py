"""The training loop under Ray Train, which starts the processes and their group; changes are marked.

python docs/examples/flexible_ray.py
"""

import os

import torch
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(settings: dict[str, int]) -> None:
    # changed: was PyTorch's sampler, and ray.train.torch.prepare_model and prepare_data_loader
    from flegel.torch import FlexibleDDP, FlexibleSampler

    torch.manual_seed(0)
    features = torch.randn(4096, 32)
    data = TensorDataset(features, (features[:, :4].sum(1) > 0).long())
    sampler = FlexibleSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = FlexibleDDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2)))  # changed
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = model.optimizer(optimizer)  # changed: steps at barriers
    for epoch in range(settings["epochs"]):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
        if get_context().get_world_rank() == 0:
            print(f"epoch {epoch}: loss {loss.detach():.3f}, {model.barriers} barriers")


def main() -> None:
    settings = {"epochs": int(os.environ.get("EPOCHS", "3"))}
    scaling = ScalingConfig(num_workers=2, use_gpu=False)
    storage = RunConfig(storage_path=os.environ.get("RAY_STORAGE"))
    TorchTrainer(
        train, train_loop_config=settings, torch_config=TorchConfig("gloo"), scaling_config=scaling, run_config=storage
    ).fit()


if __name__ == "__main__":
    main()
