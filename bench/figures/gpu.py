"""Is a GPU faster to the same objective than all cores?

How Flegel on the processor's cores stands against Lloyd's algorithm in PyTorch and CuPy on a GPU: k-means from the same
start to the same objective, with and without the time that it takes to bring the rows to the device. A GPU among the
workers (Fig. 16b) is the part mixed-kmeans of bench.figures.networks.
"""

from __future__ import annotations

from bench.common import suite
from bench.figures import peers

FIGURE = "Fig. 16b"
NEEDS = ("device:gpu", "algorithm:kmeans")


def main() -> None:
    options = suite.arguments(__doc__, peers.EXTRA)
    with suite.Suite(__file__, __doc__, options) as bench:
        for size in peers.SIZES[bench.scale][:2]:
            peers.compare_libraries(
                bench, peers.KMEANS._replace(rows={bench.scale: size}), bench.left(), "gpu", options.within or 0.0
            )


if __name__ == "__main__":
    main()
