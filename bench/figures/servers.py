"""Do parameter servers that know the network finish rounds sooner, and what does knowing it cost?

Fig. 4 to 7 of 003 (adaptive load balancing) and Fig. 5 and 6 of 001 (parameter server), with transfers between
processes in network namespaces behind token-bucket links: schemes on three models, a network that changes, the size of
a slice, the cost of sensing; one worker and many servers, one server and many workers. A derived bound stands beside
the ratios: load distribution alone cannot gain more than 2(N-1)/N over even slices. Takes root, `ip` and `tc` on Linux,
but for training with several servers and workers (001), which runs anywhere.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import flegel
from bench.common import suite
from bench.common.namespaces import Network, unavailable
from bench.common.placement_bounds import even, flat_range, gain_bound
from bench.common.placement_schemes import SCHEMES, Scheme
from bench.common.record import Chart, Series, Table
from bench.common.slice_exchange import Exchange
from bench.common.trained_placement import train_behind_links
from flegel.algorithms.plain_gradient import PlainLR
from flegel.configuration.active import active
from flegel.datasets import open_data
from flegel.plan.placement.published_loads import elastic
from flegel.plan.placement.slice_size import best_size
from flegel.plan.placement.water_filling import colocated, water_filling

FIGURE = "003 Fig. 4–7, 001 Fig. 5–6"
MODELS = {"AlexNet": 57_000_000, "ResNet50": 23_250_000, "MobileNet": 5_250_000}
"""Parameters: 228, 93 and 21 MB of float32 (003, Section 4.2)."""
PAPER = {"AlexNet": (1.23, 1.32), "ResNet50": (1.56, 1.76), "MobileNet": (1.14, 2.68)}
"""Speed-up over even slices that the paper reports: proportional, its own scheme."""
PART = {"smoke": 50, "laptop": 20, "small": 10, "paper": 1}
"""The models are divided by this; the links are not. Rounds shrink in proportion, latencies do not."""
NODES = {"smoke": 4, "laptop": 12, "small": 12, "paper": 12}
ROUNDS = {"smoke": 1, "laptop": 3, "small": 5, "paper": 10}
TRAINED_ROWS = {"smoke": 1_000, "laptop": 4_000, "small": 20_000, "paper": 60_000}
TRAINED_PASSES = {"smoke": 3.0, "laptop": 5.0, "small": 10.0, "paper": 20.0}
TRAINED_RATE = 1e-7
"""Pixels are 0 to 255."""
SLOWEST, FASTEST = 20.0, 220.0
"""Mbit/s."""
MINI_BATCH = 32
Figures = dict[str, Any]


class Bed:
    """The nodes, their links and what was found."""

    def __init__(self, bench: suite.Suite, network: Network) -> None:
        self.bench, self.network = bench, network
        self.nodes = range(NODES[bench.scale])
        self.part, self.rounds = PART[bench.scale], bench.options.repeat or ROUNDS[bench.scale]
        self.figures: Figures = {}

    def links(self, speeds: Sequence[float]) -> None:
        for node, speed in enumerate(speeds):
            self.network.limit(speed, [node], receiving=True)

    def spread(self) -> list[float]:
        """From the slowest to the fastest in equal steps."""
        return [SLOWEST + (FASTEST - SLOWEST) * i / (len(self.nodes) - 1) for i in self.nodes]

    def scheme(self, name: str, total: int, **more: Any) -> Scheme:
        size = best_size(total, active().placement.first_slice_cost / self.part, len(self.nodes), len(self.nodes))
        return Scheme(name, total, more.pop("size", size), self.nodes, **more)

    def medians(self, schemes: Sequence[Scheme], exchange: Exchange, warm: int = 2) -> list[float]:
        """Rounds of all in turn, so that what disturbs the machine disturbs everybody; the first ones do not count."""
        for number in range(warm + self.rounds):
            for scheme in schemes:
                took = scheme.round(exchange)
                self.bench.say(f"round {number + 1}, {scheme.name}: {took:.2f} s")
        return [median(scheme.seconds[warm:]) for scheme in schemes]


def schemes_on_models(bed: Bed, exchange: Exchange) -> None:
    """003, Fig. 4: speed in images a minute."""
    bed.links(bed.spread())
    found: Figures = {}
    rates = {node: speed * 1e6 / 32 for node, speed in enumerate(bed.spread())}
    for model, parameters in list(MODELS.items())[-1 if bed.bench.scale == "smoke" else 0 :]:
        total = parameters // bed.part
        schemes = [bed.scheme(name, total) for name in SCHEMES]
        times = bed.medians(schemes, exchange)
        links = colocated(rates, total)
        ideal = [plan(links, total).seconds for plan in (even, elastic, water_filling)]
        found[model] = {
            "parameters": total,
            "seconds": dict(zip(SCHEMES, (round(t, 3) for t in times), strict=True)),
            "images_a_minute": {
                name: round(60 * MINI_BATCH * len(bed.nodes) / t) for name, t in zip(SCHEMES, times, strict=True)
            },
            "ratio": {name: round(times[0] / t, 2) for name, t in zip(SCHEMES[1:], times[1:], strict=True)},
            "ratio_of_links_alone": {
                name: round(ideal[0] / t, 2) for name, t in zip(SCHEMES[1:], ideal[1:], strict=True)
            },
            "paper": dict(zip(SCHEMES[1:], PAPER[model], strict=True)),
            "reasons": schemes[2].reasons[:2],
            "matrix": _matrix(schemes[2], bed.nodes),
        }
        told = found[model]["ratio"]
        links_alone = found[model]["ratio_of_links_alone"]
        bed.bench.answer_time(
            f"{model}, 1/{bed.part}: rounds {told['aware']} times as fast as with even slices (proportional: "
            f"{told['proportional']}); load alone cannot gain more than {gain_bound(len(bed.nodes)):.2f}.",
            f"{model}, 1/{bed.part}: slices of {len(SCHEMES)} schemes were sent over {len(bed.nodes)} unequal links; "
            f"by their speeds alone rounds are {links_alone['aware']} times as fast with our loads as with even ones "
            f"({links_alone['proportional']} with loads in proportion).",
            "003-fig4",
        )
    bed.figures["schemes"] = found
    names = list(found)
    bed.bench.chart(
        Chart(
            title="Training speed of schemes on models (003, Fig. 4)",
            x="model",
            y="images a minute",
            bars=True,
            groups=names,
            series=[
                Series(name=s, points=[(float(i), float(found[m]["images_a_minute"][s])) for i, m in enumerate(names)])
                for s in SCHEMES
            ],
        )
    )


def _matrix(scheme: Scheme, nodes: Iterable[int]) -> list[float]:
    """Measured rate of each node, Mbit/s."""
    return [round(rate * 32 / 1e6, 1) for rate in scheme.forecast.rates(nodes).values()]


def changing_network(bed: Bed, exchange: Exchange) -> None:
    """003, Fig. 5: seconds of single rounds while the links change now and then."""
    generator = random.Random(bed.bench.options.seed)
    total = MODELS["MobileNet"] // bed.part
    schemes = [bed.scheme(name, total) for name in ("even", "aware")]
    states = 2 if bed.bench.scale == "smoke" else 4
    per = max(2 * bed.rounds, 3)  # the round of a change, the one that plans, and a later one at least
    for state in range(states):
        speeds = bed.spread()
        generator.shuffle(speeds)
        bed.links(speeds)
        for _ in range(per):
            for scheme in schemes:
                scheme.round(exchange)
        bed.bench.say(f"state {state + 1} of the network: {', '.join(f'{s.seconds[-1]:.2f} s' for s in schemes)}")
    bed.figures["changing network"] = {
        "rounds_between_changes": per,
        **{scheme.name: [round(t, 3) for t in scheme.seconds] for scheme in schemes},
        "ratio": round(sum(schemes[0].seconds) / sum(schemes[1].seconds), 2),
        "first_round_after_a_change": round(
            median(t for i, t in enumerate(schemes[1].seconds) if i >= per and i % per == 0), 3
        ),
        "later_rounds": round(median(t for i, t in enumerate(schemes[1].seconds) if i % per > 1), 3),
    }
    bed.bench.chart(
        Chart(
            title="Seconds of a round in a network that changes (003, Fig. 5)",
            x="round",
            y="seconds",
            series=[Series(name=s.name, points=[(float(i), t) for i, t in enumerate(s.seconds)]) for s in schemes],
        )
    )
    told = bed.figures["changing network"]["ratio"]
    bed.bench.answer_time(
        f"Links that change: {told} times as fast as even slices.",
        f"{len(schemes[0].seconds)} rounds of each scheme were timed, between which links were dealt anew.",
        "003-fig5",
    )


def slice_sizes(bed: Bed, exchange: Exchange) -> None:
    """003, Fig. 6: seconds of a round against the size of a slice, and where the formula puts the best one."""
    total = MODELS["ResNet50"] // bed.part
    generator = random.Random(bed.bench.options.seed + 1)
    steps = 2 if bed.bench.scale == "smoke" else 6
    middle = best_size(total, active().placement.first_slice_cost / bed.part, len(bed.nodes))
    sizes = [round(middle * 10 ** ((i - steps / 2) / 3)) for i in range(steps + 1)]
    lines: dict[str, list[tuple[float, float]]] = {}
    alphas: list[float] = []
    for state in ("equal links", "unequal links"):
        speeds = [100.0] * len(bed.nodes)
        if state != "equal links":
            speeds = bed.spread()
            generator.shuffle(speeds)
        bed.links(speeds)
        schemes = [bed.scheme("aware", total, size=size, probes=False) for size in sizes]
        times = bed.medians(schemes, exchange, warm=1 if state == "equal links" else 2)
        lines[state] = [(float(size), round(t, 3)) for size, t in zip(sizes, times, strict=True)]
        mixed = bed.scheme("aware", total)
        for _ in range(2):
            mixed.round(exchange)
        alphas.append(mixed.cost.alpha(len(bed.nodes)))
    alpha = median(alphas)
    low, high = flat_range(total, alpha, len(bed.nodes), 0.05)
    bed.figures["slice size"] = {
        "parameters": total,
        "seconds": lines,
        "fitted_alpha": round(alpha),
        "size_of_the_formula": best_size(total, alpha, len(bed.nodes)),
        "within_5_percent": [round(low), round(high)],
        "with_the_alpha_of_the_paper": middle,
    }
    bed.bench.chart(
        Chart(
            title="Seconds of a round against the size of a slice (003, Fig. 6)",
            x="parameters of a slice",
            y="seconds",
            log_x=True,
            series=[Series(name=name, points=points) for name, points in lines.items()],
        )
    )
    best = best_size(total, alpha, len(bed.nodes))
    fitted = f"Fitted cost of a slice: {alpha:.0f} parameters; the formula then says {best}."
    if best <= 1:
        fitted = "Rounds were too short for a cost of a slice to be fitted: it is within the scatter of transfers."
    bed.bench.answer_time(
        fitted,
        f"Rounds with slices of {', '.join(f'{size:,}' for size in sizes)} parameters were timed on equal and on "
        f"unequal links; Eq. 4 with the paper's α says {middle:,}.",
        "003-fig6",
    )


def cost_of_sensing(bed: Bed, exchange: Exchange) -> None:
    """003, Fig. 7: even slices with and without probes and reports; and our scheme where there is nothing to gain."""
    bed.links([100.0] * len(bed.nodes))
    total = MODELS["ResNet50"] // bed.part
    kinds = {"neither": (False, False), "probes": (True, False), "reports": (False, True), "both": (True, True)}
    schemes = [bed.scheme("even", total, probes=probes, planning=planning) for probes, planning in kinds.values()]
    schemes.append(bed.scheme("aware", total))
    times = bed.medians(schemes, exchange, warm=1)
    named = dict(zip([*kinds, "aware"], times, strict=True))
    cost = named["both"] / named["neither"] - 1
    bed.figures["sensing"] = {
        "seconds": {name: round(t, 4) for name, t in named.items()},
        "cost_of_both": round(cost, 4),
        "equal_links": round(named["neither"] / named["aware"], 3),
        "reasons": schemes[-1].reasons[-1:],
    }
    bed.bench.table(
        Table(
            title="Cost of sensing on equal links (003, Fig. 7)",
            columns=["even slices with", "seconds of a round"],
            rows=[[name, f"{t:.3f}"] for name, t in named.items()],
        )
    )
    bed.bench.answer_time(
        f"Sensing costs {cost:.1%} of a round; on equal links our rounds are {named['neither'] / named['aware']:.3f} "
        f"times as fast as even slices without any sensing.",
        "Rounds without probes and reports, with either and with both were timed on equal links.",
        "003-fig7",
    )


def servers_and_workers(bed: Bed) -> None:
    """001, Fig. 5 and 6: one worker and some servers, one server and some workers; every node behind 100 Mbit/s."""
    bed.links([100.0] * len(bed.nodes))
    total = 4 * MODELS["MobileNet"] // bed.part // 10
    half = len(bed.nodes) // 2
    counts = [n for n in (1, 2, 4, 8) if n <= half]
    found: Figures = {}
    for name, roles in {
        "one worker, servers": [([half], range(n)) for n in counts],
        f"{half} workers, servers": [(range(half, 2 * half), range(n)) for n in counts],
        "one server, workers": [(range(half, half + n), [0]) for n in counts],
    }.items():
        line = {}
        for at, (workers, servers) in enumerate(roles):
            with Exchange(bed.network, list(workers), list(servers), port=23_100 + at) as exchange:
                scheme = Scheme("even", total, max(1, total // (8 * len(servers))), list(servers), probes=False)
                line[str(counts[at])] = round(bed.medians([scheme], exchange, warm=1)[0], 3)
        found[name] = line
    bed.figures["servers and workers"] = {"parameters": total, **found}
    bed.bench.chart(
        Chart(
            title="Seconds of a round against servers and workers (001, Fig. 5 and 6)",
            x="servers, or workers",
            y="seconds",
            series=[Series(name=n, points=[(float(c), t) for c, t in line.items()]) for n, line in found.items()],
        )
    )
    for name, line in found.items():
        told = ", ".join(f"{t} s with {c}" for c, t in line.items())
        bed.bench.answer_time(
            f"{name}: a round takes {told}.",
            f"{name}: rounds were timed with {' and '.join(line)}.",
            "001-fig5",
            *(["001-fig6"] if "one server" in name else []),
        )


def trained_by_servers_and_workers(bench: suite.Suite) -> None:
    """001, Fig. 5 and 6 by training: logistic regression on MNIST by plain gradient steps, one for each report (asp);
    the same number of passes whatever the numbers of servers and workers are."""
    data, passes = f"mnist:{TRAINED_ROWS[bench.scale]}", TRAINED_PASSES[bench.scale]
    rows, counts = open_data(data).read(), (1, 2) if bench.scale == "smoke" else (1, 2, 4, 8)
    algorithm = PlainLR(classes=10, rate=TRAINED_RATE)
    table: list[list[str]] = []
    found: dict[tuple[int, int], tuple[float, Any]] = {}
    for name, pairs in {
        "one worker, servers": [(1, n) for n in counts],
        "one server, workers": [(n, 1) for n in counts],
    }.items():
        told, ran = [], []
        for count, pair in zip(counts, pairs, strict=True):
            if bench.over(f"{name}: {count}"):
                return
            if pair not in found:
                workers, servers = pair
                result = flegel.run(
                    algorithm, data, workers=workers, servers=servers, sync="asp", max_passes=passes, tolerance=0.0,
                    audit="off", resting="off", progress=False, seed=bench.options.seed,
                )  # fmt: skip
                judged = algorithm.evaluate(rows.features, rows.labels, result.parameter)
                found[pair] = judged.metrics["accuracy"], result
            accuracy, result = found[pair]
            table.append([name, str(count), f"{accuracy:.1%}", f"{result.seconds:.2f}", str(result.iterations)])
            told.append(f"{accuracy:.1%} after {result.seconds:.2f} s with {count}")
            ran.append(f"{accuracy:.1%} with {count}")
            bench.record.ratios[f"{name}, {count}: accuracy"] = round(accuracy, 4)
        figures = ("001-fig5", *(["001-fig6"] if "one server" in name else []))
        after = f"trained for {passes:g} passes, {name}: accuracy"
        bench.answer_time(f"trained, {name}: {', '.join(told)}.", f"{after} {', '.join(ran)}.", *figures)
    columns = ["what is varied", "number", "accuracy", "seconds of training", "updates"]
    bench.table(Table(title=f"{passes} passes over {data} (001, Fig. 5 and 6)", columns=columns, rows=table))


PARTS: dict[str, Callable[[Bed, Exchange], None]] = {
    "schemes": schemes_on_models,
    "changes": changing_network,
    "sizes": slice_sizes,
    "sensing": cost_of_sensing,
}


def write_summary(bed: Bed, path: Path) -> None:
    about = bed.bench.record.environment
    summary = {
        "title": "Slices on parameter servers behind unequal links: even, proportional, by water-filling",
        "command": about.command,
        "commit": about.commit[:12],
        "machine": ", ".join(f"{name} {what}" for name, what in about.machine.items()),
        "bound": round(gain_bound(len(bed.nodes)), 3),
        "figures": bed.figures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    options = suite.arguments(
        __doc__,
        [
            suite.parts_option([*PARTS, "roles"]),
            ("--summary", {"type": Path, "default": None, "help": "file for the figures alone"}),
        ],
    )
    wanted = options.parts
    with suite.Suite(__file__, __doc__, options) as bench:
        if "roles" in wanted:
            trained_by_servers_and_workers(bench)
        why = unavailable()
        if why:
            bench.skip("limited links", why)
            return
        for name in wanted:
            train_behind_links(bench, name)
        with Network(NODES[bench.scale]) as network:
            bed = Bed(bench, network)
            with Exchange(network, bed.nodes, bed.nodes) as exchange:
                for name in wanted:
                    if name in PARTS and not bench.over(name):
                        PARTS[name](bed, exchange)
                        bench.save()
            if "roles" in wanted and not bench.over("roles"):
                servers_and_workers(bed)
            if options.summary:
                write_summary(bed, options.summary)


if __name__ == "__main__":
    main()
