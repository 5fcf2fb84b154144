"""A Lightning module under flexible barriers; changes are marked.

torchrun --nproc-per-node 2 docs/examples/flexible_lightning.py
"""

import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flegel.torch.lightning import FlexibleDDPStrategy  # changed


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        self.log("loss", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.003)


def main() -> None:
    torch.manual_seed(0)
    features = torch.randn(4096, 32)
    data = TensorDataset(features, (features[:, :4].sum(1) > 0).long())
    trainer = lightning.Trainer(
        strategy=FlexibleDDPStrategy(process_group_backend="gloo"),  # changed: was "ddp"
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")), gradient_clip_val=5.0,
        max_epochs=int(os.environ.get("EPOCHS", "3")), logger=False, enable_checkpointing=False,
        enable_progress_bar=False, num_sanity_val_steps=0,
    )  # fmt: skip
    loaders = [DataLoader(data, batch_size=32, shuffle=shuffled) for shuffled in (True, False)]
    trainer.fit(Net(), *loaders)
    if trainer.is_global_zero:
        print(f"loss {float(trainer.callback_metrics['loss']):.3f}, {trainer.global_step} steps")


if __name__ == "__main__":
    main()
