"""A training script with Hugging Face Accelerate under flexible barriers; changes are marked.

torchrun --nproc-per-node 2 docs/examples/flexible_accelerate.py
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flegel.torch.accelerate import FlexibleAccelerator  # changed: was accelerate's Accelerator


def main() -> None:
    accelerator = FlexibleAccelerator(cpu=True)  # changed
    torch.manual_seed(0)
    features = torch.randn(4096, 32)
    data = TensorDataset(features, (features[:, :4].sum(1) > 0).long())
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=384)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in range(int(os.environ.get("EPOCHS", "3"))):
        loader.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
        accelerator.print(f"epoch {epoch}: loss {loss.detach():.3f}, {model.barriers} barriers")
    accelerator.end_training()


if __name__ == "__main__":
    main()
