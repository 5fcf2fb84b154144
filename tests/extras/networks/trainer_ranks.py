"""Ranks of trainers that own the loop, and of Accelerate; started under torchrun by `test_trainers.py`.

Rank 0 is slow. Each rank writes which indices it has trained, its weights, and the trainer's own numbers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

SAMPLES, EPOCHS, BATCH, COLUMNS = 403, 2, 8, 6


class Rows(Dataset):  # type: ignore[misc]
    def __init__(self) -> None:
        self.x = torch.randn(SAMPLES, COLUMNS, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": self.x[index, :1], "index": torch.tensor(index)}


class Net(torch.nn.Module):  # type: ignore[misc]
    """Notes what it has trained."""

    def __init__(self, slow: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(COLUMNS, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.slow, self.seen = slow, [[]]  # type: ignore[var-annotated]

    def forward(self, x: torch.Tensor, labels: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
        if torch.is_grad_enabled():
            self.seen[-1] += index.tolist()
            time.sleep(0.006 if self.slow else 0.001)
        return {"loss": torch.nn.functional.mse_loss(self.layers(x), labels)}


def with_accelerate(net: Net, folder: Path) -> dict[str, Any]:
    from flegel.torch.accelerate import FlexibleAccelerator

    accelerator = FlexibleAccelerator(cpu=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.99**step)
    plain = [DataLoader(Rows(), batch_size=BATCH, shuffle=shuffled) for shuffled in (True, False)]
    optimizer, model, loader, judged, schedule = accelerator.prepare(optimizer, net, plain[0], plain[1], schedule)
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        net.seen.append([])
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            accelerator.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            losses = accelerator.gather_for_metrics(torch.stack([model(**batch)["loss"] for batch in judged]))
    accelerator.save_state(str(folder / "state"))
    accelerator.wait_for_everyone()  # the first rank writes
    accelerator.load_state(str(folder / "state"))
    steps = schedule.scheduler.last_epoch
    return {"barriers": model.barriers, "steps": steps, "judged": len(losses)}


def with_trainer(net: Net, folder: Path) -> dict[str, Any]:
    from transformers import TrainerCallback, TrainingArguments

    from flegel.torch.transformers import FlexibleTrainer

    class Epochs(TrainerCallback):  # type: ignore[misc]
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            net.seen.append([])

    def arguments(epochs: int) -> Any:
        return TrainingArguments(
            str(folder), num_train_epochs=epochs, per_device_train_batch_size=BATCH, learning_rate=0.01, use_cpu=True,
            ddp_backend="gloo", report_to=[], logging_steps=4, save_strategy="epoch", eval_strategy="epoch",
            disable_tqdm=True, remove_unused_columns=False, label_names=["labels"],
        )  # fmt: skip

    made = {"train_dataset": Rows(), "eval_dataset": Rows(), "callbacks": [Epochs()]}
    FlexibleTrainer(net, arguments(1), **made).train()
    first = max(int(one.name.split("-")[1]) for one in folder.glob("checkpoint-*"))
    trainer = FlexibleTrainer(net, arguments(2), **made)
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{first}"))
    model = trainer.flexible_model
    assert model is not None
    return {
        "barriers": first + model.barriers, "steps": trainer.state.global_step,
        "judged": sum("eval_loss" in one for one in trainer.state.log_history),
        "rate": trainer.lr_scheduler.get_last_lr()[0],
    }  # fmt: skip


def with_lightning(net: Net, folder: Path) -> dict[str, Any]:
    import lightning

    from flegel.torch.lightning import FlexibleDDPStrategy

    class Wrapped(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.judged, self.ended = net, 0, 0

        def training_step(self, batch: Any, number: int) -> Any:
            return self.net(**batch)["loss"]

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("loss", self.net(**batch)["loss"], sync_dist=True)

        def on_train_epoch_start(self) -> None:
            self.net.seen.append([])

        def on_validation_epoch_end(self) -> None:
            self.judged += 1

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.99**step)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module = Wrapped()
    trainer = lightning.Trainer(
        strategy=FlexibleDDPStrategy(process_group_backend="gloo"), accelerator="cpu", devices=2, max_epochs=EPOCHS,
        logger=False, default_root_dir=str(folder), enable_progress_bar=False, enable_model_summary=False,
        gradient_clip_val=5.0, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(module, *(DataLoader(Rows(), batch_size=BATCH, shuffle=shuffled) for shuffled in (True, False)))
    model: Any = trainer.strategy.model
    schedule = trainer.lr_scheduler_configs[0].scheduler
    return {
        "barriers": trainer.global_step, "steps": schedule.last_epoch, "judged": module.judged,
        "options": type(model).__name__,
    }  # fmt: skip


def main() -> None:
    kind, folder, rank = sys.argv[1], Path(sys.argv[2]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    net = Net(slow=rank == 0)
    found = {"accelerate": with_accelerate, "trainer": with_trainer, "lightning": with_lightning}[kind](net, folder)
    weights = [float(v) for p in net.parameters() for v in p.detach().reshape(-1)]
    seen = [epoch for epoch in net.seen if epoch]
    (folder / f"found-{rank}.json").write_text(json.dumps({**found, "weights": weights, "seen": seen}))


if __name__ == "__main__":
    main()
