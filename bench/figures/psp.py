"""On workers of unequal speed, does predicting the synchronization help?

The PSP paper's Tables 1 and 2 and Figures 5 to 8: logistic regression on MNIST with 3 and 6 workers of speeds 1 : 2
: 3 under bsp, asp, ssp and psp: time to target, objective against time, utilization. VGG-11 on CIFAR-10 with an eighth
of its kernels and a part of the images, so that it fits; where there is a GPU also with all of its kernels. Time to the
paper's accuracies (92 % and 75 % of held-out rows) with 3 to 12 workers, with a barrier after every iteration as
baseline. The paper's examples, Fig. 1 to 4, on virtual time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import flegel
from bench.common import suite
from bench.common.record import Chart, Series, Table
from bench.common.scripts import lacking
from bench.common.virtual_runs import clustered_rows, compare_virtually
from flegel.api.jobs import resolve
from flegel.compare.simulation import ClusterModel
from flegel.compare.table import seconds
from flegel.sim.coordinator_cost import Costs
from flegel.sim.network import NetworkSpec
from flegel.sim.speeds import recorded

FIGURE = "PSP paper"
NEEDS = ("option:straggler", "sync:psp", "algorithm:lr")

CASE = suite.Case("lr", "mnist", {}, suite.rows(2_000, 20_000, 60_000))
VGG = suite.Case("vgg11", "cifar10", {"width": 8, "epochs": 40.0}, suite.rows(300, 4_000, 50_000), 0.05)
SMOKE_VGG = VGG._replace(settings={"width": 4, "epochs": 40.0, "lr": 0.01})
SMOKE_SECONDS = 900.0  # after which a run to an accuracy is given up: it takes some seconds of a processor
PAPER = {3: {"bsp": 221, "asp": 258, "ssp": 353, "psp": 204}, 6: {"bsp": 208, "asp": 231, "ssp": 445, "psp": 197}}
PAPER_VGG = {
    3: {"bsp": 4511, "asp": 4230, "ssp": 4133, "psp": 3756},
    6: {"bsp": 4225, "asp": 3846, "ssp": 4033, "psp": 3419},
}
"""Seconds of the paper's Table 2 and Table 1, by clients."""
TARGETS = {CASE.name: "92 %", VGG.name: "75 %"}
"""Accuracy at which the paper takes the time."""
SYNC = "bsp,asp,ssp,psp,fsp"
PARTS = ("schedules", "lr", "vgg")
VGG_FIGURES = ("002-table1", "002-fig7", "002-fig5")
LR_FIGURES = ("002-table2", "002-fig8", "002-fig6")
"""Time, use of processors, loss."""
ITERATIONS = 16  # of a pass, where a model has iterations: bsp is then the paper's, with a barrier after each of them
BY_ITERATION = {"bsp": "bsp-mini", "asp": "asp", "ssp": "ssp", "psp": "psp"}
HELD_OUT, MOST_HELD_OUT = 0.1, 1000  # of the rows, and rows at most, on which the accuracy is taken
LOOKS = {"termination.validation_share_of_time": 0.2, "termination.validated_numbers": float(1 << 19)}
"""Held-out rows are looked at so often that the time to an accuracy is known to some seconds, also of networks."""
LOSS = 0.1  # mean log loss; separable images have no optimum to come within a per mille of


def speeds(workers: int) -> str:
    """A third of the workers three times as fast as the slowest, a third one and a half times."""
    third = workers // 3
    slow, middle = f"0-{third - 1}" if third > 1 else "0", f"{third}-{2 * third - 1}" if third > 1 else "1"
    return f"{slow}:3x,{middle}:1.5x"


def schedules(bench: suite.Suite) -> None:
    """Fig. 1 to 4: the paper's examples on virtual time, where messages cost nothing: what part of their time workers
    compute in."""
    rows, seed = clustered_rows(4_096, bench.options.seed), bench.options.seed
    ideal = ClusterModel(learning="real", costs=Costs(0.0, 0.0), network=NetworkSpec(latency=0.0))
    slower = replace(ideal, rates=dict.fromkeys(range(3), 2048.0), courses={2: recorded([0.0, 6.0], [0.5, 0.25])})
    table: list[list[str]] = []
    for sync, model, speed, figure, said in (
        ("ssp:staleness=1", ideal, "0:3x,1:1.5x", "002-fig1", "66.7 %"),
        ("ssp:staleness=5", ideal, "0:3x,1:1.5x", "002-fig2", "100 % in the first round"),
        ("ssp:staleness=2", slower, "", "002-fig3", "no number"),
        ("psp", ideal, "0:3x,1:1.5x", "002-fig4", "100 %"),
    ):
        found = compare_virtually("kmeans", rows, sync, seed, 3, speed, {"k": 4}, model, max_seconds=60.0)
        used = found.lines()[0].utilization
        table.append([figure, sync, speed or "1 : 1 : 2, later 1 : 1 : 4", f"{used:.1%}", said])
        bench.answer(f"{sync} on virtual time: workers compute {used:.1%} of their time.", figure)
    columns = ["figure", "model", "seconds of an iteration", "computing", "in the paper"]
    bench.table(Table(title="Schedules of the paper's Fig. 1 to 4, on virtual time", columns=columns, rows=table))


def races(bench: suite.Suite) -> None:
    """Tables 1 and 2, Fig. 5 to 8: training by real workers."""
    rows: list[list[str]] = []
    loss = {"target": LOSS, "target_note": "a mean log loss"}
    wanted: list[tuple[suite.Case, int, dict[str, Any]]] = []
    wanted += [(CASE, workers, loss) for workers in (3, 6) if "lr" in bench.options.parts]
    wanted += [(VGG, workers, {}) for workers in (3, 6) if "vgg" in bench.options.parts]
    bench.expect(len(wanted))
    for case, workers, more in wanted:
        title = f"{case.name}, {workers} workers"
        found = bench.compare(case, SYNC, speeds(workers), workers=workers, title=title, **more)
        if found is None:
            continue
        times, used, quality = LR_FIGURES if case is CASE else VGG_FIGURES
        for line in found.lines():
            accuracy = [a.metrics["accuracy"] for a in found.of(line.candidate) if "accuracy" in a.metrics]
            said = (PAPER if case is CASE else PAPER_VGG)[workers]
            paper, theirs = said.get(line.candidate), said["psp"]
            ratio = found.ratio(line.candidate, "psp")
            took = seconds(line.time.median) if line.time else line.outcome
            rows.append(
                [
                    f"{case.name}: {line.candidate}, {workers} workers",
                    took,
                    suite.shown(ratio),
                    f"{paper / theirs:.2f} ({paper} s)" if paper else "–",
                    f"{line.utilization:.0%}",
                    f"{accuracy[0]:.2%}" if accuracy else "–",
                    TARGETS[case.name],
                ]
            )
            bench.record.ratios[f"{title}: utilization of {line.candidate}"] = round(line.utilization, 4)
            aim = f", accuracy {accuracy[0]:.1%} (the paper's target: {TARGETS[case.name]})" if accuracy else ""
            bench.answer(f"{title}, {line.candidate}: {took}, {suite.shown(ratio)} times as long as psp{aim}.", times)
            bench.answer(f"{title}: {line.candidate} computes {line.utilization:.0%} of the time.", used)
        series = [
            Series(name=name, points=[(t, v) for t, v, _ in shown.curve if v is not None])
            for name, shown in found.pictures.items()
        ]
        bench.chart(Chart(title=f"Objective against time, {title}", x="seconds", y="objective", series=series))
        for one in series:
            bench.answer(f"{title}: {one.name} ends at {one.points[-1][1]:.4g}.", quality) if one.points else None
    columns = [
        "model",
        "time to target",
        "times as long as psp",
        "in the paper",
        "utilization",
        "accuracy",
        "the paper's target",
    ]
    if rows:
        bench.table(Table(title="Logistic regression on MNIST, VGG-11 on CIFAR-10", columns=columns, rows=rows))


class Aim(NamedTuple):
    """Training to an accuracy of the paper."""

    title: str
    case: suite.Case
    accuracy: float
    paper: dict[int, dict[str, int]]
    figures: tuple[str, str, str]
    """Time, use of processors, loss."""
    device: str = ""


class AccuracyReached(flegel.Callback):
    """Ends a job that is so good on its held-out rows."""

    def __init__(self, accuracy: float) -> None:
        self._accuracy = accuracy
        self.seconds: float | None = None
        self.best = 0.0
        self.losses: list[tuple[float, float]] = []
        """Seconds and objective."""

    def after_barrier(self, snapshot: Any) -> str | None:
        if snapshot.objective is not None:
            self.losses.append((snapshot.seconds, snapshot.objective))
        self.best = max(self.best, snapshot.metrics.get("validation_accuracy", 0.0))
        if self.best < self._accuracy:
            return None
        self.seconds = snapshot.seconds if self.seconds is None else self.seconds
        return "the accuracy is reached"


def aims(bench: suite.Suite) -> list[Aim]:
    found = []
    if "lr" in bench.options.parts:
        found.append(Aim(CASE.name, CASE, 0.92, PAPER, LR_FIGURES))
    if "vgg" in bench.options.parts and bench.has("algorithm:vgg11", for_="VGG-11 to 75 %"):
        part, case = ("a 16th", SMOKE_VGG) if bench.scale == "smoke" else ("an eighth", VGG)
        if not bench.options.all_kernels:
            found.append(Aim(f"{case.name}, {part} of the kernels", case, 0.75, PAPER_VGG, VGG_FIGURES))
        if not (why := lacking("device:gpu")):
            wide = VGG._replace(settings={**VGG.settings, "width": 64})
            found.append(Aim("vgg11-cifar10, all kernels, on a GPU", wide, 0.75, PAPER_VGG, VGG_FIGURES, "cuda:0"))
        else:
            bench.skip("VGG-11 with all kernels", why)
    return found


def to_accuracies(bench: suite.Suite) -> None:
    """Tables 1 and 2 with the paper's own targets, for 3 to 12 workers; what these runs say of Fig. 5 to 8."""
    smoke, options = bench.scale == "smoke", bench.options
    clients, models = ((3,), ("bsp", "psp")) if smoke else ((3, 6, 9, 12), (*BY_ITERATION, "fsp"))
    chosen = aims(bench)
    wanted = [
        (aim, workers, model) for workers in options.clients or clients for aim in chosen
        for model in options.models or models
    ]  # fmt: skip
    ends = 0.0 if smoke or options.all_kernels else 0.5 * bench.left()  # the other half is that of the races
    rows: list[list[str]] = []
    lines: dict[str, list[Series]] = {}
    for number, (aim, workers, model) in enumerate(wanted):
        title = f"{aim.title}, {workers} workers, to {aim.accuracy:.0%}"
        if bench.left() <= ends or bench.over(f"{title}: {model}"):
            bench.late(title, "half of the time for this benchmark was over")
            break
        limit = (
            SMOKE_SECONDS
            if smoke
            else min(suite.LIMIT[bench.scale] / 2, (bench.left() - ends) / (len(wanted) - number))
        )
        reached, used = _to_accuracy(bench, aim, workers, model, limit)
        said = aim.paper.get(workers, {}).get(model)
        shown = (
            f"{reached.seconds:.2f} s" if reached.seconds is not None else f"> {limit:.1f} s, best {reached.best:.1%}"
        )
        rows.append([title, model, shown, f"{said} s" if said else "–", f"{used:.0%}"])
        times, usage, quality = aim.figures
        bench.answer_time(
            f"{title}: {model} {shown}{f' (the paper: {said} s)' if said else ''}.",
            f"{title}: {model} {'reached it' if reached.seconds is not None else shown}.",
            times,
        )
        bench.answer_time(
            f"{title}: {model} computes {used:.0%} of the time.",
            f"{title}: the use of {workers} workers under {model} was taken, as threads of one process.",
            usage,
        )
        if reached.losses:
            bench.answer(f"{title}: the loss of {model} is {reached.losses[-1][1]:.4g} then.", quality)
            lines.setdefault(title, []).append(Series(name=model, points=reached.losses))
            told = f"Loss against time, {title}"
            bench.chart(Chart(title=told, x="seconds", y="mean loss of all rows", series=lines[title]))
        columns = ["training", "model", "time to the accuracy", "in the paper", "utilization"]
        bench.table(Table(title="Time to the paper's accuracies (002, Table 1 and 2)", columns=columns, rows=rows))
        bench.save()


def _to_accuracy(bench: suite.Suite, aim: Aim, workers: int, model: str, limit: float) -> tuple[AccuracyReached, float]:
    """When the accuracy was reached, the best one and the losses until then; what part of the time workers computed."""
    reached = AccuracyReached(aim.accuracy)
    iterations = {"batches": ITERATIONS} if model in BY_ITERATION else {}
    more: dict[str, Any] = {"device": f"0-{workers - 1}={aim.device}"} if aim.device else {}
    if bench.scale == "smoke":  # threads of this process: PyTorch is imported once
        more["processes"] = False
    elif not aim.device:
        more["cluster"] = bench.cluster(workers)
    result = flegel.run(
        type(resolve(aim.case.algorithm))(**aim.case.settings), bench.data(aim.case), workers=workers,
        sync=BY_ITERATION.get(model, model), straggler=speeds(workers), max_seconds=limit, tolerance=0.0,
        validate=min(HELD_OUT, MOST_HELD_OUT / aim.case.rows[bench.scale]), seed=bench.options.seed, settings=LOOKS,
        callbacks=[reached], progress=False, **iterations, **more,
    )  # fmt: skip
    return reached, float(result.utilization)


def main() -> None:
    options = suite.arguments(
        __doc__,
        [
            suite.parts_option(PARTS),
            ("--clients", {"type": lambda text: [int(word) for word in text.split(",")], "help": "numbers of workers"}),
            ("--models", {"type": lambda text: text.split(","), "help": "to the accuracies; all by default"}),
            ("--all-kernels", {"action": "store_true", "help": "VGG-11 on a GPU only, and no races to a loss"}),
        ],
    )
    with suite.Suite(__file__, __doc__, options) as bench:
        if "schedules" in options.parts:
            schedules(bench)
        if {"lr", "vgg"} & set(options.parts):
            to_accuracies(bench)
            if bench.scale != "smoke" and not options.all_kernels:
                races(bench)


if __name__ == "__main__":
    main()
