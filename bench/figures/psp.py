"""On workers of unequal speed, does predicting the synchronization help?

The PSP paper's Tables 1 and 2 and Figures 5 to 8: logistic regression on MNIST with 3 and 6 workers of speeds 1 : 2
: 3 under bsp, asp, ssp and psp: time to target, objective against time, utilization. VGG-11 on CIFAR-10 with an eighth
of its kernels and a part of the images, so that it fits.
"""

from __future__ import annotations

from bench.common import suite
from bench.common.record import Chart, Series, Table
from flegel.compare.table import seconds

FIGURE = "PSP paper"
NEEDS = ("option:straggler", "sync:psp", "algorithm:lr")

CASE = suite.Case("lr", "mnist", {}, suite.rows(2_000, 20_000, 60_000))
VGG = suite.Case("vgg11", "cifar10", {"width": 8, "epochs": 40.0}, suite.rows(200, 4_000, 50_000), 0.05)
PAPER = {3: {"bsp": 221, "asp": 258, "ssp": 353, "psp": 204}, 6: {"bsp": 208, "asp": 231, "ssp": 445, "psp": 197}}
SYNC = "bsp,asp,ssp,psp,fsp"
LOSS = 0.1  # mean log loss; separable images have no optimum to come within a per mille of


def speeds(workers: int) -> str:
    """A third of the workers three times as fast as the slowest, a third one and a half times."""
    third = workers // 3
    slow, middle = f"0-{third - 1}" if third > 1 else "0", f"{third}-{2 * third - 1}" if third > 1 else "1"
    return f"{slow}:3x,{middle}:1.5x"


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        rows: list[list[str]] = []
        sizes = (3,) if bench.scale == "smoke" else (3, 6)
        loss = {"target": LOSS, "target_note": "a mean log loss"}
        races = [(CASE, workers, loss) for workers in sizes]
        races += [] if bench.scale == "smoke" else [(VGG, 3, {})]
        bench.expect(len(races))
        for case, workers, more in races:
            title = f"{case.name}, {workers} workers"
            found = bench.compare(case, SYNC, speeds(workers), workers=workers, title=title, **more)
            if found is None:
                continue
            for line in found.lines():
                accuracy = [a.metrics["accuracy"] for a in found.of(line.candidate) if "accuracy" in a.metrics]
                paper = PAPER[workers].get(line.candidate) if case is CASE else None
                theirs = PAPER[workers]["psp"]
                ratio = found.ratio(line.candidate, "psp")
                rows.append(
                    [
                        f"{case.name}: {line.candidate}, {workers} workers",
                        seconds(line.time.median) if line.time else line.outcome,
                        suite.shown(ratio),
                        f"{paper / theirs:.2f}" if paper else "–",
                        f"{line.utilization:.0%}",
                        f"{accuracy[0]:.2%}" if accuracy else "–",
                    ]
                )
                bench.record.ratios[f"{title}: utilization of {line.candidate}"] = round(line.utilization, 4)
            series = [
                Series(name=name, points=[(t, v) for t, v, _ in shown.curve if v is not None])
                for name, shown in found.pictures.items()
            ]
            chart = Chart(title=f"Objective against time, {title}", x="seconds", y="objective", series=series)
            bench.chart(chart)
        columns = ["model", "time to target", "times as long as psp", "in the paper", "utilization", "accuracy"]
        bench.table(Table(title="Logistic regression on MNIST, VGG-11 on CIFAR-10", columns=columns, rows=rows))


if __name__ == "__main__":
    main()
