"""Is a GPU faster to the same objective than all cores?

Fig. 16b puts a GPU among the workers; Flegel has no GPU kernels, so that part is left out. What can be told is how
Flegel on the processor's cores stands against Lloyd's algorithm in PyTorch and CuPy on a GPU: k-means from the same
start to the same objective, with and without the time that it takes to bring the rows to the device.
"""

from __future__ import annotations

from bench.common import suite
from bench.figures import peers

FIGURE = "Fig. 16b"
NEEDS = ("device:gpu", "algorithm:kmeans")


def main() -> None:
    options = suite.arguments(__doc__, peers.EXTRA)
    with suite.Suite(__file__, __doc__, options) as bench:
        bench.skip("a GPU among the workers", "there are no GPU kernels yet")
        for size in peers.SIZES[bench.scale][:2]:
            peers.compare_libraries(
                bench, peers.KMEANS._replace(rows={bench.scale: size}), bench.left(), "gpu", options.within or 0.0
            )


if __name__ == "__main__":
    main()
