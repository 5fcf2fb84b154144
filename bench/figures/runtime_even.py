"""Without stragglers, does a flexible barrier cost anything?

Fig. 8: the race of Fig. 7 with all workers alike. The paper runs it on idle machines alone; its Natural scenario, a
second job on some of the machines, makes stragglers and belongs to Fig. 7. Natural here is a second real job of as many
workers as ours: it takes processors from all of ours alike.
"""

from __future__ import annotations

from bench.common import suite
from bench.common.runtime_comparison import compare_runtimes
from bench.common.second_job import second_job

FIGURE = "Fig. 8"
NEEDS = ("sync:fsp",)
WEIGHT = 6

PAPER = "The paper: FSPV runs 1.3 times faster on average than its competitors when there are no stragglers."


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        cases = [suite.KMEANS] if bench.scale == "smoke" else suite.LARGER
        bench.expect(2 * len(cases) + (len(suite.SMALLER) if bench.scale == "paper" else 0))
        compare_runtimes(bench, cases, "", "no stragglers")
        with second_job(bench.workers):
            compare_runtimes(bench, cases, "", "natural, no stragglers")
        if bench.scale == "paper":
            compare_runtimes(bench, suite.SMALLER, "", "no stragglers, other data")
        bench.answer(PAPER)


if __name__ == "__main__":
    main()
