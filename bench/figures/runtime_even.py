"""Without stragglers, does a flexible barrier cost anything?

Fig. 8: the race of Fig. 7 with all workers alike.
"""

from __future__ import annotations

from bench.common import suite
from bench.common.runtime_comparison import compare_runtimes

FIGURE = "Fig. 8"
NEEDS = ("sync:fsp",)
WEIGHT = 3

PAPER = "The paper: FSPV runs 1.3 times faster on average than its competitors when there are no stragglers."


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        cases = [suite.KMEANS] if bench.scale == "smoke" else suite.LARGER
        bench.expect(len(cases))
        compare_runtimes(bench, cases, "", "no stragglers")
        if bench.scale == "paper":
            bench.expect(len(suite.SMALLER))
            compare_runtimes(bench, suite.SMALLER, "", "no stragglers, other data")
        bench.answer(PAPER)


if __name__ == "__main__":
    main()
