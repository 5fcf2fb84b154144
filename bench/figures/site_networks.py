"""How long do sites take to the same loss of a network when sites fail, with a quorum in place of waiting for all?

    python -m bench.figures.site_networks --images FOLDER --summary site-networks.json

LeNet and a small GPT (an image as 49 tokens, each seeing those before it) are trained for real on Fashion-MNIST by
eight sites on virtual time (`bench/sites/training.py`), with steps of Adam over a few images of a site (`--step`) and a
multiple (`--rate`) of the rate of `central`, whose steps have 16 images; links of 100 Mbit/s; in each interval of two
seconds 5 % of the sites fail and are away for two intervals (`--away 1`: for one, so that 5 % of the sites are away in
a round). `waiting`: every round waits for all sites, nobody trains meanwhile, all of θ in float64, a round after 128
images of each. `quorum`: 60 % of the sites, sites train on, int4 in eight fragments, one of which is sent after each 16
images, so all of them in as many images as `waiting` takes for one round. `central`: one site with all rows and as many
visits. Loss and accuracy are those of θ that all sites have in common. Goodput: visits that results have counted, of
those that they count without failures (with a tiny network: θ does not matter); `there`: the part of the time in which
sites are not away. Bytes are those of contributions and results of one site in a round. Seeds are drawn. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.network_runs import Images, fashion
from bench.sites.training import Agreement, Place, TrainingWorld, prepared
from flegel.core.pytree import Array
from flegel.machine.group.quorum import Quorum
from flegel.torch.builtin import ImageNetwork, LeNet

SITES = 8
LINK = 12.5e6  # bytes a second: 100 Mbit/s
LATENCY = 0.05
SPEED = 64.0  # images a second, of each site
INTERVAL = 2.0  # seconds of training in which all of θ is sent once
BATCH = 16  # images of a step of one site alone, and between two commits
STEP = 4  # images of a step of each of eight
FRAGMENTS = 8
ACCURACY_IMAGES = 2000
FAILING = 0.05  # of the sites, in each interval
STEPS = round(INTERVAL * SPEED / BATCH)  # of a site in an interval
WAITING = Agreement(STEPS, waits=True, silence=1000.0, commit_rows=BATCH)
QUORUM = Agreement(STEPS, Quorum(share=0.6), "int4", FRAGMENTS, silence=1000.0, commit_rows=BATCH)
CENTRAL = Agreement(1 << 30, commit_rows=BATCH)


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


class Tiny(ImageNetwork):
    """Too small to learn much: courses of which only the times count."""

    def build(self) -> Any:
        from torch import nn

        assert self.classes is not None
        return nn.Sequential(nn.AvgPool2d(7), nn.Flatten(), nn.Linear(16, self.classes))


NETWORKS: dict[str, tuple[type[ImageNetwork], float]] = {
    "lenet": (LeNet, 0.002), "gpt": (SmallGPT, 0.003), "tiny": (Tiny, 0.003),
}  # fmt: skip
"""And the learning rate of one site alone."""


@dataclass(frozen=True)
class Steps:
    """Of a site that trains with others."""

    images: int
    rate: float
    """Times that of one site alone."""
    outer: str
    """Of the quorum."""


ALONE = Steps(BATCH, 1.0, "mean")


def network(name: str, steps: Steps) -> Any:
    kind, rate = NETWORKS[name]
    return kind(optimizer="adam", lr=steps.rate * rate, batch=None, micro_batch=steps.images, epochs=10_000)


def outages(rng: np.random.Generator, seconds: float, away: int) -> tuple[tuple[float, float], ...]:
    """When a site is away: 5 % of its intervals begin a failure, for so many of them."""
    now, found = 0.0, list[tuple[float, float]]()
    while now < 10 * seconds:
        now += INTERVAL
        if rng.random() < FAILING:
            found.append((now, now + away * INTERVAL))
            now = found[-1][1]
    return tuple(found)


@dataclass(frozen=True)
class Course:
    """What one way of training came to."""

    curve: list[tuple[float, float]]
    """Virtual seconds, and the loss of the common θ on some test images."""
    accuracy: float
    """At the end, on more of them."""
    world: TrainingWorld

    def reached(self, loss: float) -> float | None:
        return next((now for now, found in self.curve if found <= loss), None)


def course(
    name: str,
    images: Images,
    chosen: Array,
    seed: int,
    agreement: Agreement,
    options: argparse.Namespace,
    away: int,
    steps: Steps | None = None,
) -> Course:
    """`chosen`: images that are trained on. `away`: intervals for which a site that fails is away; 0: none fails.
    `steps`: of each of eight sites; without them, one site has all rows."""
    seconds, sites = options.seconds, SITES if steps else 1
    algorithm, rng = network(name, steps or ALONE), np.random.default_rng([seed, 9])
    rows, labels = np.ascontiguousarray(images.train[0][chosen]), images.train[1][chosen]
    plan = prepared(algorithm, (rows, labels), seed)
    places = [
        Place(
            (np.ascontiguousarray(rows[at::sites]), labels[at::sites]), SPEED * SITES / sites, LINK, LATENCY,
            outages(rng, seconds, away) if away else (),
        )
        for at in range(sites)
    ]  # fmt: skip
    world, curve = TrainingWorld(plan, places, agreement, seed), list[tuple[float, float]]()
    x, y = images.test
    for now in np.arange(INTERVAL, seconds + 0.1, INTERVAL):
        world.run_until(float(now))
        theta = world.common_parameter if sites > 1 else world.parameter
        curve.append((float(now), float(algorithm.evaluate(x[: options.tested], y[: options.tested], theta).objective)))
    found = algorithm.evaluate(x[:ACCURACY_IMAGES], y[:ACCURACY_IMAGES], theta)
    return Course(curve, float(found.metrics["accuracy"]), world)


def there(world: TrainingWorld, seconds: float) -> float:
    """The part of the time in which sites are not away."""
    away = [min(end, seconds) - min(begin, seconds) for site in world.sites for begin, end in site.place.outages]
    return 1.0 - sum(away) / (seconds * len(world.sites))


def compared(
    name: str, images: Images, chosen: Array, seed: int, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """One seed: the loss that waiting reaches in the end, and how soon the quorum had it."""
    took, away, seconds = time.process_time(), options.away, options.seconds
    steps = Steps(options.step, options.rate, options.outer)
    quorum = replace(QUORUM, outer=steps.outer)
    waited = course(name, images, chosen, seed, WAITING, options, away, steps)
    ours = course(name, images, chosen, seed, quorum, options, away, steps)
    central = course(name, images, chosen, seed, CENTRAL, options, 0)
    whole = course("tiny", images, chosen, seed, quorum, options, 0, ALONE)
    aim = min(loss for _, loss in waited.curve)
    first, reached = waited.reached(aim), ours.reached(aim)
    assert first is not None
    sent = [one.world.bytes_of_a_round for one in (waited, ours)]
    without = whole.world.counted_visits
    yield {
        "model": name, "seed": seed, "loss": round(aim, 4), "waiting_seconds": first, "quorum_seconds": reached,
        "time_ratio": None if reached is None else round(reached / first, 3),
        "rounds_waiting": waited.world.results[-1][1], "rounds_quorum": ours.world.results[-1][1],
        "bytes_waiting": round(sent[0]), "bytes_quorum": round(sent[1]), "bytes_ratio": round(sent[0] / sent[1], 1),
        "accuracy_waiting": waited.accuracy, "accuracy_quorum": ours.accuracy, "accuracy_central": central.accuracy,
        "step": steps.images, "rate": steps.rate, "outer": steps.outer, "seconds": seconds,
        "away_intervals": away, "goodput": round(ours.world.counted_visits / without, 3),
        "there": round(there(ours.world, seconds), 3),
        "goodput_waiting": round(waited.world.counted_visits / without, 3),
        "processor_seconds": round(time.process_time() - took, 1),
    }  # fmt: skip


def tuned(name: str, images: Images, chosen: Array, seed: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One seed: central training, then each of several steps with the quorum."""
    began = {"model": name, "seed": seed, "seconds": options.seconds}
    yield {**began, "accuracy_central": course(name, images, chosen, seed, CENTRAL, options, 0).accuracy}
    for words in options.tune.split(","):
        step, rate, outer = words.split("/")
        steps = Steps(int(step), float(rate), outer)
        took, quorum = time.process_time(), replace(QUORUM, outer=outer)
        found = course(name, images, chosen, seed, quorum, options, options.away, steps)
        yield {
            **began, **asdict(steps), "accuracy_quorum": found.accuracy, "loss": round(found.curve[-1][1], 4),
            "processor_seconds": round(time.process_time() - took, 1),
        }  # fmt: skip


def seeds_of(options: argparse.Namespace) -> list[int]:
    drawn = np.random.SeedSequence().generate_state(options.seeds)
    return options.seed or [int(seed) % (1 << 31) for seed in drawn]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--tested", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=96.0, help="virtual seconds of a course")
    parser.add_argument("--away", type=int, default=2, help="intervals for which a site that fails is away")
    parser.add_argument("--step", type=int, default=STEP, help="images of a step of a site")
    parser.add_argument("--rate", type=float, default=4.0, help="of a site, times that of central training")
    parser.add_argument("--outer", default="visits", help="of the quorum, as of `flegel submit`")
    parser.add_argument("--tune", help="in place of the comparison: these steps, as 4/1/visits,2/1/visits:1.5")
    parser.add_argument("--seeds", type=int, default=8, help="how many are drawn")
    parser.add_argument("--seed", type=int, action="append", help="in place of drawn ones; may be given several times")
    parser.add_argument("--networks", default="lenet,gpt")
    parser.add_argument("--summary", type=Path)
    options = parser.parse_args()
    images, lines = fashion(options.images, None), list[dict[str, Any]]()
    seeds = seeds_of(options)
    for name in options.networks.split(","):
        for seed in seeds:
            chosen = np.random.default_rng(seed).permutation(len(images.train[0]))[: options.rows]
            for line in (tuned if options.tune else compared)(name, images, chosen, seed, options):
                lines.append(line)
                print(json.dumps(line), flush=True)
                if options.summary:  # after each line, so that what was done stays when it is interrupted
                    figures = {"seeds": seeds, "lines": lines}
                    options.summary.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
