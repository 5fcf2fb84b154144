"""Which data sets do the benchmarks train on, beside those of the paper?

Table 1: points and dimensions of the data sets in the paper, and of the cases of this scale.
"""

from __future__ import annotations

from bench.common import suite
from bench.common.record import Table

FIGURE = "Table 1"

PAPER = {
    "puf": ("PUF", 6_000_000, "128"),
    "susy": ("SUSY", 5_000_000, "18"),
    "hepmass": ("MASS", 7_000_000, "27"),
    "higgs": ("HIGGS", 11_000_000, "28"),
    "nbaiot": ("DET", 6_739_534, "116"),
    "ml10m": ("ML10M", 69_877, "10,681"),
    "ml25m": ("ML25M", 162_540, "5,000"),
    "mnist": ("MNIST", 60_000, "28×28"),
    "syn": ("SYN", 120_000, "28×28"),
}
"""By our name: the paper's, its points and dimensions."""
LARGER = {"gmm": "puf", "kmeans": "higgs", "fcm": "higgs", "lr": "nbaiot", "nmf": "ml25m", "cnn": "mnist"}
"""The paper's larger data set of each algorithm."""


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        rows = []
        for case in (*suite.LARGER, *suite.SMALLER):
            if not bench.chosen(case.algorithm):
                continue
            theirs, points, dimensions = PAPER[case.data]
            columns = f"{bench.data(case).columns:,}"
            kind = "larger" if LARGER[case.algorithm] == case.data else "smaller"
            rows.append(
                [
                    case.algorithm,
                    case.data,
                    theirs,
                    kind,
                    f"{points:,}",
                    dimensions,
                    f"{case.rows[bench.scale]:,}",
                    columns,
                ]
            )
        names = [
            "algorithm",
            "set",
            "in the paper",
            "of its two",
            "points",
            "dimensions",
            "points here",
            "columns here",
        ]
        bench.table(Table(title="Data sets (Table 1)", columns=names, rows=rows))
        bench.answer(f"{len(rows)} cases of {len({row[1] for row in rows})} data sets; sizes by scale.")


if __name__ == "__main__":
    main()
