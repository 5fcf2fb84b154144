"""The Trainer of Hugging Face under flexible barriers; changes are marked.

torchrun --nproc-per-node 2 docs/examples/flexible_trainer.py
"""

import os
import tempfile

import torch
from torch import nn
from transformers import TrainingArguments

from flegel.torch.transformers import FlexibleTrainer  # changed: was transformers' Trainer


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(features)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    torch.manual_seed(0)
    features = torch.randn(4096, 32)
    labels = (features[:, :4].sum(1) > 0).long()
    data = [{"features": x, "labels": y} for x, y in zip(features, labels, strict=True)]
    arguments = TrainingArguments(
        tempfile.mkdtemp(), num_train_epochs=int(os.environ.get("EPOCHS", "3")), per_device_train_batch_size=32,
        learning_rate=0.003, use_cpu=True, ddp_backend="gloo", report_to=[], logging_steps=16, save_strategy="no",
        eval_strategy="epoch", disable_tqdm=True,
    )  # fmt: skip
    trainer = FlexibleTrainer(Net(), arguments, train_dataset=data, eval_dataset=data[:512])  # changed
    trainer.train()
    found = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"loss {found['eval_loss']:.3f}, {trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
