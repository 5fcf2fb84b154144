"""Fig. 4 to 7 of 003 by training: networks of the paper's sizes on servers behind limited links, real jobs.

Every node is a network namespace with a worker and a server; the coordinator has one of its own. Weights are random
and images made up. Models have a part of their size, and links are faster than the paper's by the same factor at most,
so that rounds fit into the time of a benchmark.
"""

from __future__ import annotations

import random
import threading
from importlib.util import find_spec
from statistics import median
from typing import Any

from bench.common import suite
from bench.common.namespaces import Network
from bench.common.record import Chart, Series, Table
from bench.common.served_job import ServedJob, run_in

LOADS = ("even", "elastic", "network")
PAPER = {"AlexNet": (1.23, 1.32), "ResNet50": (1.56, 1.76), "MobileNet": (1.14, 2.68)}
"""Speed-up over even slices that the paper reports: elastic, its own scheme."""
ROUNDS = {"smoke": 3, "laptop": 12, "small": 12, "paper": 30}
PART = {"smoke": 50.0, "laptop": 20.0, "small": 10.0, "paper": 1.0}
FASTER = {"smoke": 5.0, "laptop": 5.0, "small": 5.0, "paper": 1.0}
"""The paper's links of 20 to 220 Mbit/s, times this."""
NODES = {"smoke": 3, "laptop": 12, "small": 12, "paper": 12}
MINI_BATCH = 32
SILENCE_SECONDS = 600.0
"""That are no loss: heartbeats wait behind large messages on slow links."""
SLICE_COSTS = (1e3, 1e5, 1e7)
"""First cost of a slice, from which Eq. 4 takes its size."""


class Trained:
    """Jobs of one benchmark."""

    def __init__(self, bench: suite.Suite) -> None:
        self.bench, self.nodes = bench, NODES[bench.scale]
        self.rounds, self.part = ROUNDS[bench.scale], PART[bench.scale]
        self._ends = 0.4 * bench.left()

    def _over(self, what: str) -> bool:
        """The rest of the time belongs to transfers of slices alone."""
        if self.bench.left() <= self._ends:
            self.bench.late(what, "the part of the time for training was over")
            return True
        return self.bench.over(what)

    def unequal(self) -> list[float]:
        faster = FASTER[self.bench.scale]
        return [faster * (20 + 200 * node / (self.nodes - 1)) for node in range(self.nodes)]

    def equal(self) -> list[float]:
        return [100.0 * FASTER[self.bench.scale]] * self.nodes

    def seconds(
        self, model: str, load: str, speeds: list[float], settings: dict[str, float] | None = None, changes: float = 0.0
    ) -> list[float]:
        """Of each round. `changes`: seconds after which the links are dealt anew, again and again."""
        with Network(1 + self.nodes) as network:
            for node, speed in enumerate([max(speeds), *speeds]):
                network.limit(speed, [node], receiving=True)
            names = tuple(network.names[1:])
            options: dict[str, Any] = {
                "servers": "colocated", "server_load": load, "replicas": 0, "worker_timeout": SILENCE_SECONDS,
            }  # fmt: skip
            options |= {"settings": settings} if settings else {}
            job = ServedJob(network.address(0), names, names, 0, self.rounds, options, model, self.part)
            over = threading.Event()
            dealer = threading.Thread(target=self._deal, args=(network, speeds, changes, over))
            if changes:
                dealer.start()
            try:
                found = run_in(network, 0, job, SILENCE_SECONDS)
            finally:
                over.set()
                if changes:
                    dealer.join()
        return [float(seconds) for seconds in found["rounds"]]

    def _deal(self, network: Network, speeds: list[float], every: float, over: threading.Event) -> None:
        generator, dealt = random.Random(self.bench.options.seed), list(speeds)
        while not over.wait(every):
            generator.shuffle(dealt)
            for node, speed in enumerate(dealt, start=1):
                network.limit(speed, [node], receiving=True)

    def later(self, rounds: list[float]) -> float:
        """Median of the second half: plans are made in the first."""
        return median(rounds[len(rounds) // 2 :])

    def schemes(self) -> None:
        """Fig. 4: images a minute."""
        rows: list[list[str]] = []
        for model in ("MobileNet",) if self.bench.scale == "smoke" else ("MobileNet", "ResNet50", "AlexNet"):
            took: dict[str, float] = {}
            for load in ("network",) if self.bench.scale == "smoke" else LOADS:
                if self._over(f"{model} trained with {load} slices"):
                    return
                took[load] = self.later(self.seconds(model, load, self.unequal()))
                self.bench.say(f"{model}, {load}: {took[load]:.2f} s a round")
            speed = {load: 60 * MINI_BATCH * self.nodes / seconds for load, seconds in took.items()}
            ratios = {
                load: took["even"] / seconds for load, seconds in took.items() if load != "even" and "even" in took
            }
            told = ", ".join(f"{load} {ratio:.2f}" for load, ratio in ratios.items())
            said = f"{PAPER[model][0]}, {PAPER[model][1]}"
            told = f"times as fast as even slices: {told} (the paper: {said})" if told else ""
            rows += [[model, load, f"{took[load]:.2f}", f"{speed[load]:.0f}"] for load in took]
            made = f"{speed['network']:.0f} images a minute with slices by measured links"
            self.bench.answer_time(
                f"{model} trained, 1/{self.part:g} of its size: {'; '.join(filter(None, (made, told)))}.",
                f"{model} trained, 1/{self.part:g} of its size, on {self.nodes} nodes behind unequal links: "
                f"{self.rounds} rounds with slices by measured links.",
                "003-fig4",
            )
            columns = ["network", "slices", "seconds of a round", "images a minute"]
            self.bench.table(
                Table(title="Networks trained behind unequal links (003, Fig. 4)", columns=columns, rows=rows)
            )
            self.bench.save()

    def changing(self) -> None:
        """Fig. 5: rounds while links are dealt anew."""
        series = []
        first = self.later(self.seconds("MobileNet", "even", self.unequal()))
        for load in ("even", "network"):
            if self._over(f"MobileNet trained with {load} slices on links that change"):
                return
            rounds = self.seconds("MobileNet", load, self.unequal(), changes=first * self.rounds / 3)
            series.append(Series(name=load, points=[(float(i), t) for i, t in enumerate(rounds)]))
        sums = [sum(seconds for _, seconds in one.points[1:]) for one in series]
        title = "Rounds of a trained MobileNet while links change (003, Fig. 5)"
        self.bench.chart(Chart(title=title, x="round", y="seconds", series=series))
        self.bench.answer(f"MobileNet trained, links that change: {sums[0] / sums[1]:.2f} times as fast.", "003-fig5")

    def sizes(self) -> None:
        """Fig. 6: rounds against the size of a slice."""
        told = []
        for cost in SLICE_COSTS:
            if self._over(f"ResNet-50 trained with a slice cost of {cost:g}"):
                return
            rounds = self.seconds("ResNet50", "even", self.equal(), {"placement.first_slice_cost": cost / self.part})
            told.append(f"{self.later(rounds):.2f} s with α = {cost / self.part:g}")
        self.bench.answer(f"ResNet-50 trained, equal links, a round by Eq. 4: {', '.join(told)}.", "003-fig6")

    def sensing(self) -> None:
        """Fig. 7: what measuring links costs where there is nothing to gain."""
        took = []
        for load in ("even", "network"):
            if self._over(f"ResNet-50 trained on equal links with {load} slices"):
                return
            took.append(self.later(self.seconds("ResNet50", load, self.equal())))
        self.bench.answer(
            f"ResNet-50 trained, equal links: rounds with measured links take {took[1] / took[0] - 1:+.1%}.", "003-fig7"
        )


def train_behind_links(bench: suite.Suite, part: str) -> None:
    """The trained form of one part of `bench.figures.servers`."""
    made = Trained(bench)
    forms = {"schemes": made.schemes, "changes": made.changing, "sizes": made.sizes, "sensing": made.sensing}
    if part not in forms or bench.over(f"{part} by training"):
        return
    if find_spec("torch") is None:
        bench.skip(f"{part} by training", "networks need PyTorch")
        return
    if bench.scale == "smoke" and part != "schemes":
        bench.skip(f"{part} by training", "one case is trained at smoke")
        return
    forms[part]()
    bench.save()
