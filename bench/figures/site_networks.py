"""How long do sites take to the same loss of a network when sites fail, with a quorum in place of waiting for all?

    python -m bench.figures.site_networks --images FOLDER --summary site-networks.json

LeNet and a small GPT (an image as 49 tokens, each seeing those before it) are trained for real on Fashion-MNIST by
eight sites on virtual time (`bench/sites/training.py`): links of 100 Mbit/s, in each interval 5 % of the sites fail and
are away for two intervals. `waiting`: every round waits for all sites, in float64. `quorum`: 60 % of the sites, sites
train on, int4 in sixteen fragments. `central`: one site with all rows and as many visits. Goodput is what results have
counted of the visits, over the same without failures. Bytes are those of contributions and results of one site in a
round. Seeds are drawn. Needs torch.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.network_runs import fashion
from bench.sites.training import Agreement, Place, TrainingWorld, prepared
from flegel.machine.group.quorum import Quorum
from flegel.torch.builtin import MLP, ImageNetwork, LeNet

SITES = 8
LINK = 12.5e6  # bytes a second: 100 Mbit/s
LATENCY = 0.05
PASS_SECONDS = 1.0
EVERY = 2  # passes between two contributions
FAILING = 0.05  # of the sites, in each interval
AWAY_INTERVALS = 2
WAITING = Agreement(EVERY, waits=True, silence=1000.0)
QUORUM = Agreement(EVERY, Quorum(share=0.6), "int4", 16, "visits", silence=1000.0)


class SmallGPT(ImageNetwork):
    """A decoder of one layer over grey levels: 49 tokens of a small image, then the label."""

    def build(self) -> Any:
        import torch
        from torch import nn

        class Decoder(nn.Module):
            def __init__(self, classes: int, width: int = 32) -> None:
                super().__init__()
                self.tokens, self.place = nn.Embedding(32, width), nn.Parameter(torch.zeros(1, 49, width))
                layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
                self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
                self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

            def forward(self, images: Any) -> Any:
                levels = nn.functional.avg_pool2d(images, 4).flatten(1)
                tokens = (levels / levels.amax().clamp(min=1e-6) * 31.0).long().clamp(0, 31)
                later = torch.triu(torch.ones(49, 49, dtype=torch.bool), 1)
                return self.last(self.layers(self.tokens(tokens) + self.place, mask=later).mean(1))

        assert self.classes is not None
        return Decoder(self.classes)


def network(name: str) -> Any:
    recipe: dict[str, Any] = {"batch": None, "local": True, "micro_batch": 16, "epochs": 10_000}
    if name == "tiny":
        return MLP(optimizer="sgd", lr=0.05, hidden=[4], **recipe)
    if name == "gpt":
        return SmallGPT(optimizer="adam", lr=0.003, **recipe)
    return LeNet(optimizer="adam", lr=0.002, **recipe)


def outages(rng: np.random.Generator, seconds: float) -> tuple[tuple[float, float], ...]:
    """When a site is away: 5 % of its intervals begin a failure."""
    interval, now, found = EVERY * PASS_SECONDS, 0.0, list[tuple[float, float]]()
    while now < 10 * seconds:
        now += interval
        if rng.random() < FAILING:
            found.append((now, now + AWAY_INTERVALS * interval))
            now = found[-1][1]
    return tuple(found)


def course(
    name: str, train: Any, test: Any, seed: int, agreement: Agreement, seconds: float, sites: int, fails: bool
) -> tuple[list[tuple[float, float, float]], TrainingWorld]:
    """Virtual seconds, loss and accuracy on the test images, once an interval."""
    algorithm, rng = network(name), np.random.default_rng([seed, 9])
    plan = prepared(algorithm, train, seed)
    rows, labels = train
    places = [
        Place(
            (np.ascontiguousarray(rows[at::sites]), labels[at::sites]), len(rows[at::sites]) / PASS_SECONDS, LINK,
            LATENCY, outages(rng, seconds) if fails else (),
        )
        for at in range(sites)
    ]  # fmt: skip
    world, curve = TrainingWorld(plan, places, agreement, seed), list[tuple[float, float, float]]()
    for now in np.arange(EVERY * PASS_SECONDS, seconds + 0.1, EVERY * PASS_SECONDS):
        world.run_until(float(now))
        found = algorithm.evaluate(*test, world.parameter)
        curve.append((float(now), float(found.objective), float(found.metrics["accuracy"])))
    return curve, world


def goodput(seed: int, seconds: float) -> float:
    """Visits that results have counted with failures, over those without; by a tiny network: θ does not matter."""
    rng = np.random.default_rng([seed, 8])
    rows = rng.normal(size=(16 * SITES, 4)).astype(np.float32), rng.integers(0, 2, 16 * SITES).astype(np.float64)
    worlds = [course("tiny", rows, rows, seed, QUORUM, seconds, SITES, fails)[1] for fails in (True, False)]
    useful = [sum((s.exchange.goodput or 0.0) * s.visits for s in world.sites) for world in worlds]
    return useful[0] / useful[1]


def compared(name: str, train: Any, test: Any, seed: int, seconds: float) -> dict[str, Any]:
    """One seed: the loss that waiting reaches in the end, and how soon the quorum had it."""
    waiting, waited = course(name, train, test, seed, WAITING, seconds, SITES, True)
    quorum, ours = course(name, train, test, seed, QUORUM, seconds, SITES, True)
    central, _ = course(name, train, test, seed, Agreement(EVERY), seconds, 1, False)
    aim = min(loss for _, loss, _ in waiting)
    first = next(now for now, loss, _ in waiting if loss <= aim)
    reached = next((now for now, loss, _ in quorum if loss <= aim), None)
    best = [max(accuracy for *_, accuracy in curve) for curve in (waiting, quorum, central)]
    return {
        "model": name, "seed": seed, "loss": round(aim, 4), "waiting_seconds": first, "quorum_seconds": reached,
        "time_ratio": None if reached is None else round(reached / first, 3),
        "rounds_waiting": waited.results[-1][1], "rounds_quorum": ours.results[-1][1],
        "bytes_waiting": round(waited.bytes_of_a_round), "bytes_quorum": round(ours.bytes_of_a_round),
        "bytes_ratio": round(waited.bytes_of_a_round / max(ours.bytes_of_a_round, 1.0), 1),
        "accuracy_waiting": round(best[0], 4), "accuracy_quorum": round(best[1], 4),
        "accuracy_central": round(best[2], 4), "goodput": round(goodput(seed, 2.0 * seconds), 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--tested", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=48.0, help="virtual seconds of a course")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--networks", default="lenet,gpt")
    parser.add_argument("--summary", type=Path)
    options = parser.parse_args()
    held, lines = fashion(options.images, None, options.tested), list[dict[str, Any]]()
    seeds = [int(seed) % (1 << 31) for seed in np.random.SeedSequence().generate_state(options.seeds)]
    for name in options.networks.split(","):
        for seed in seeds:
            order = np.random.default_rng(seed).permutation(len(held.train[0]))[: options.rows]
            train = (np.ascontiguousarray(held.train[0][order]), held.train[1][order])
            lines.append(compared(name, train, held.test, seed, options.seconds))
            print(json.dumps(lines[-1]), flush=True)
            if options.summary:  # after each seed, so that what was done stays when it is interrupted
                figures = {"seeds": seeds, "lines": lines}
                options.summary.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
