"""Benchmarks: `figures` of the papers, `micro` measurements of parts, `chaos` under faults, `rivals` other libraries.

Programs are run from the checkout's root as modules: `python -m bench.figures.skew`. No part of the installed package.
"""

import os

os.environ.setdefault("FLEGEL_WARM", "0")  # no compiler beside a measurement
