"""FlexibleDDP beside PyTorch's DDP: samples a second and time to a loss, with a slow rank, a wandering one, or none.

    python -m bench.figures.flexible_ddp --part slow --images FOLDER --seconds 60 30 --out runs/ddp.json

Each part runs DDP and FlexibleDDP in turns on the same ranks, network, data and order, each with its own learning rate
and each as long as `--seconds` says, so a part ends in time; medians over `--repeats` turns. `sweep` finds the rates:
one process, steps of as many samples as each method's step has, steps to each loss. Times to several losses are told,
since larger steps are worth less at the beginning than later. `gpu` puts rank 0 on a GPU and measures all ranks alone
first, at the same time and on the same micro-batches. `sleep in …` lets one rank sleep in each micro-batch, in its
forward pass, in reading, or between step and forward pass: what makes a rank slow must not matter. `slowness` is five
parts in which one rank is `--factor` times slower, each in another way (SLOWNESS in bench/common/ddp_ranks.py):

    python -m bench.figures.flexible_ddp --part slowness --ranks 8 --network gpt --optimizer adam --rate 0.001 \
        --rule auto --batch 8 --seconds 25 --copies 10 --held 500 --out runs/slowness-gpt.json

takes seven minutes on a core for each rank; `--network lenet --batch 16` the same. `loss` compares the held-out loss of
equal ranks after the same samples (`--epochs`), over seeds that are drawn when it runs, with DDP's own scatter:

    python -m bench.figures.flexible_ddp --part loss --ranks 2 --network lenet --seeds 7 --out runs/loss.json

`virtual` lets one of eight ranks pause on virtual time. `bias` needs no ranks either: it shows what abandoning a
micro-batch, or averaging means of ranks, does to a gradient whose cost depends on its content.
bench/common/ddp_ranks.py says how a rank is made slow. Without Fashion-MNIST (`--images`) a generated set stands in.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.common import ddp_ranks, network_runs
from bench.common.ddp_ranks import Indexed, Setting
from bench.common.virtual_ranks import gains_over_ddp
from flegel.torch.flexible.pace import LEARNING_RATE_RULES

PARTS = (
    "slow",
    "equal",
    "wander",
    "gpu",
    *ddp_ranks.PAUSES,
    *ddp_ranks.SLOWNESS,
    "slowness",
    "bias",
    "sweep",
    "loss",
    "virtual",
)
WITHOUT_RANKS = {"bias", "virtual"}
METHODS = {"gpu": ("alone", "ddp", "flexible")}
TARGETS = (1.8, 1.6, 1.4, 1.2, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6, 0.55, 0.5, 0.45, 0.42, 0.4, 0.38, 0.36)


def images(given: argparse.Namespace) -> tuple[Indexed, Indexed]:
    """Training and held-out images with mean 0 and deviation 1."""
    import torch

    torch.set_num_threads(1)  # forked ranks inherit no threads
    found = network_runs.fashion(given.images, given.samples, given.held)
    parts = []
    mean, deviation = float(found.train[0].mean()), float(found.train[0].std())
    for x, y in (found.train, found.test):
        shaped = torch.from_numpy((x - mean) / deviation).view(-1, 1, 28, 28)
        parts.append(Indexed(shaped, torch.from_numpy(y).long(), 1 if parts else given.times))
    print("Fashion-MNIST" if found.real else "a generated set", len(parts[0]), "images an epoch", flush=True)
    return parts[0], parts[1]


def case(given: argparse.Namespace, kind: str, data: Indexed, held: Indexed) -> dict[str, Any]:
    """One part: its ratios, and its runs."""
    seconds = dict(zip(("ddp", "flexible"), (*given.seconds, given.seconds[-1]), strict=False))
    rates = dict(zip(("ddp", "flexible"), (*given.rate, given.rate[-1]), strict=False))
    timed = kind in ("slow", "wander", *ddp_ranks.SLOWNESS)
    setting = Setting(
        kind, given.network, given.optimizer, given.ranks, given.factor, given.batch, rule=given.rule, warm=given.warm,
        interval=given.interval, change=given.change, pause=given.pause, copies=given.copies if timed else 0,
        device=given.device,
    )  # fmt: skip
    found: dict[str, list[dict[str, Any]]] = {}
    for turn in range(given.repeats):
        for method in METHODS.get(kind, ("ddp", "flexible"))[:: -1 if turn % 2 else 1]:
            used = "ddp" if method == "alone" else method
            one = ddp_ranks.run(replace(setting, seconds=seconds[used], rate=rates[used]), method, data, held)
            found.setdefault(method, []).append(one)
            print(kind, method, {name: value for name, value in one.items() if name != "curve"}, flush=True)
    return {**ratios(found, timed), "setting": vars(setting), "learning rates": rates, "runs": found}


def loss(given: argparse.Namespace, data: Indexed, held: Indexed) -> dict[str, Any]:
    """Held-out loss of both methods after the same samples, for seeds that nobody chose: medians, scatter, and the
    difference of both methods for each seed."""
    draw = random.SystemRandom()
    seeds = [draw.randrange(2**31) for _ in range(given.seeds)]
    rates = dict(zip(("ddp", "flexible"), (*given.rate, given.rate[-1]), strict=False))
    found: dict[str, list[dict[str, Any]]] = {"ddp": [], "flexible": []}
    for turn, seed in enumerate(seeds):
        for method in list(found)[:: -1 if turn % 2 else 1]:
            setting = Setting(
                "loss", given.network, given.optimizer, given.ranks, batch=given.batch, seconds=max(given.seconds),
                rate=rates[method], rule=given.rule, interval=given.interval, copies=0, seed=seed, epochs=given.epochs,
            )  # fmt: skip
            one = ddp_ranks.run(setting, method, data, held)
            found[method].append({**one, "seed": seed, "loss": one.pop("curve")[-1][1]})
            print(
                "loss",
                method,
                seed,
                found[method][-1]["loss"],
                one["samples"],
                "samples",
                one["steps"],
                "steps",
                flush=True,
            )
    losses = {method: [one["loss"] for one in runs] for method, runs in found.items()}
    told: dict[str, Any] = {
        method: {"median": statistics.median(own), "from": min(own), "to": max(own)} for method, own in losses.items()
    }
    differences = [f - d for d, f in zip(losses["ddp"], losses["flexible"], strict=True)]
    shift = statistics.median(losses["flexible"]) - statistics.median(losses["ddp"])
    scatter = statistics.pstdev(losses["ddp"])
    return {
        **told,
        "ddp: standard deviation over seeds": round(scatter, 5),
        "flexible: standard deviation over seeds": round(statistics.pstdev(losses["flexible"]), 5),
        "flexible - ddp: of medians": round(shift, 5),
        "flexible - ddp: by seed": [round(one, 5) for one in differences],
        "medians within ddp's standard deviation": abs(shift) <= scatter,
        "runs": found,
    }


def ratios(found: dict[str, list[dict[str, Any]]], timed: bool) -> dict[str, Any]:
    rate = {method: statistics.median(one["rate"] for one in runs) for method, runs in found.items()}
    told: dict[str, Any] = {"samples a second": {method: round(value, 1) for method, value in rate.items()}}
    told["flexible / ddp"] = round(rate["flexible"] / rate["ddp"], 3)
    if "alone" in rate:
        told["flexible / sum of the ranks alone"] = round(rate["flexible"] / rate["alone"], 3)
        told["ddp / sum of the ranks alone"] = round(rate["ddp"] / rate["alone"], 3)
    if timed:
        told["seconds to a loss: ddp, flexible, ratio"] = times(found)
    return told


def times(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """For each loss that every run reached: medians of both, and their ratio."""
    told = {}
    for target in TARGETS:
        both = [[ddp_ranks.reached(one["curve"], target) for one in found[name]] for name in ("ddp", "flexible")]
        if all(at is not None for runs in both for at in runs):
            slow, fast = (statistics.median(at for at in runs if at is not None) for runs in both)
            told[str(target)] = [round(slow, 2), round(fast, 2), round(slow / fast, 2)]
    return told


def sweep(given: argparse.Namespace, data: Indexed, held: Indexed) -> dict[str, Any]:
    """Steps to each loss at each rate, for steps of all ranks' micro-batches and for those of an interval as long as
    one micro-batch of the slow rank. The ratio of the best is that of times where both make as many steps a second."""
    sizes = {
        "ddp": given.ranks * given.batch,
        "flexible": ((given.ranks - 1) * given.factor + 1) * given.batch,
    }
    found: dict[str, Any] = {"samples a step": sizes}
    for (name, size), steps in zip(sizes.items(), given.steps, strict=True):
        found[name] = {}
        for rate in given.rate:
            curve = alone(Setting("sweep", given.network, given.optimizer, rate=rate), size, steps, data, held)
            reached = {str(t): round(at) for t in TARGETS if (at := ddp_ranks.reached(curve, t)) is not None}
            found[name][str(rate)] = reached
            print("sweep", name, size, "rate", rate, reached, flush=True)
    best = {
        name: {str(t): min((r[str(t)] for r in found[name].values() if str(t) in r), default=None) for t in TARGETS}
        for name in sizes
    }
    both = [t for t, steps in best["flexible"].items() if steps and best["ddp"][t]]
    return {**found, "steps, ddp / flexible": {t: round(best["ddp"][t] / best["flexible"][t], 2) for t in both}}


def alone(setting: Setting, size: int, steps: int, data: Indexed, held: Indexed) -> list[list[float]]:
    """One process that makes so many steps of `size` samples: (steps, held-out loss) at 60 moments."""
    import torch

    net, optimizers = ddp_ranks.made(torch, setting)
    optimizer, order = optimizers(net.parameters()), torch.randperm(len(data))
    curve = []
    for step in range(steps):
        at = step * size % (len(data) - size)
        x, y = data.__getitems__(order[at : at + size])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if step % max(steps // 60, 1) == 0:
            with torch.no_grad():
                loss = float(torch.nn.functional.cross_entropy(net(held.features), held.labels))
            curve.append([float(step + 1), loss])
            if not loss < 10.0:
                break
    return curve


def bias(draws: int = 200_000, interval: float = 6.0) -> dict[str, float]:
    """A sample's gradient equals its cost (mean 1, exponential): the relative error of the mean gradient."""
    draw = random.Random(0)
    sums = {name: [0.0, 0.0] for name in ("abandon the running one", "finish it", "foresee by the past")}
    means = []
    for _ in range(draws // 8):
        at = 0.0
        done: list[float] = []
        while at < interval:
            done.append(draw.expovariate(1.0))
            at += done[-1]
        kept = done[:-1]
        foreseen, at = [], 0.0
        while at + 1.0 <= interval:
            foreseen.append(draw.expovariate(1.0))
            at += foreseen[-1]
        for name, values in zip(sums, (kept, done, foreseen), strict=True):
            sums[name][0] += sum(values)
            sums[name][1] += len(values)
        means.append(sum(foreseen) / len(foreseen))
    errors = {name: total / count - 1.0 for name, (total, count) in sums.items()}
    return {**errors, "average of ranks' means": statistics.fmean(means) - 1.0}


def virtual() -> dict[str, Any]:
    """Eight ranks on virtual time, one eight times slower by pauses of a second: samples a second and progress, which
    is how much sooner a loss is reached, both over DDP's, by milliseconds of a micro-batch and noise scale."""
    return {
        f"{round(1e3 * seconds)} ms, noise scale {noise}": [
            round(one, 2) for one in gains_over_ddp(8, seconds, slow=8, pause=1.0, noise=float(noise))
        ]
        for seconds in (0.02, 0.04, 0.06)
        for noise in (20, 200, 2_000, 20_000)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=["bias", "slow"])
    parser.add_argument("--images", type=Path, default=None, help="folder with the IDX files of Fashion-MNIST")
    parser.add_argument("--network", choices=sorted(ddp_ranks.NETWORKS), default="lenet")
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd", help="sgd has a momentum of 0.9")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--factor", type=int, default=8, help="how many times slower a slow rank is")
    parser.add_argument("--batch", type=int, default=16, help="samples of a micro-batch")
    parser.add_argument("--rate", type=float, nargs="+", default=[0.02], help="of DDP, of FlexibleDDP; all of a sweep")
    parser.add_argument("--rule", choices=LEARNING_RATE_RULES, default="none", help="FlexibleDDP's lr_rule")
    parser.add_argument("--interval", type=float, default=None, help="fixed, in seconds; found by itself otherwise")
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--times", type=int, default=1, help="all samples so many times are one epoch")
    parser.add_argument("--held", type=int, default=1000, help="held-out images")
    parser.add_argument("--seconds", type=float, nargs="+", default=[15.0], help="of a run of DDP, of FlexibleDDP")
    parser.add_argument("--warm", type=float, default=1.0, help="seconds at first without counting samples")
    parser.add_argument("--change", type=float, default=20.0, help="seconds after which other ranks are slow (wander)")
    parser.add_argument(
        "--pause", type=float, default=0.1, help="seconds of sleep in each micro-batch of the slow rank"
    )
    parser.add_argument("--device", default="cuda:0", help="of rank 0 in the part gpu")
    parser.add_argument("--copies", type=int, default=40, help="of the weights by each rank in a run, to be judged")
    parser.add_argument("--steps", type=int, nargs=2, default=[600, 200], help="of a sweep: DDP, FlexibleDDP")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5, help="of the part loss, drawn when it runs")
    parser.add_argument("--epochs", type=int, default=1, help="of a run of the part loss; --seconds bounds it")
    parser.add_argument("--out", type=Path, default=Path("runs/flexible_ddp.json"))
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    data, held = images(given) if set(given.part) - set(WITHOUT_RANKS) else (None, None)
    found: dict[str, Any] = {}
    for kind in (one for part in given.part for one in (ddp_ranks.SLOWNESS if part == "slowness" else (part,))):
        if kind in WITHOUT_RANKS:
            found[kind] = {"bias": bias, "virtual": virtual}[kind]()
        elif kind in ("sweep", "loss"):
            found[kind] = {"sweep": sweep, "loss": loss}[kind](given, data, held)
        else:
            found[kind] = case(given, kind, data, held)
        given.out.write_text(json.dumps(found), encoding="utf-8")
        print(kind, {name: value for name, value in found[kind].items() if name not in ("runs", "setting")}, flush=True)


if __name__ == "__main__":
    main()
