"""
Stragglers seen
===============

One worker of eight is eight times slower. Under a full barrier (``bsp``) the others wait for it in every pass; under
flexible barriers (``fsp``) a barrier comes by time. Jobs run on virtual time here: rows are trained for real, only the
clock is a model, so the picture is the same on every machine.
"""

import matplotlib.pyplot as plt
import numpy as np

from flegel.algorithms import KMeans
from flegel.compare.candidate import parse_candidates
from flegel.compare.simulation import ClusterModel, SimulationSettings, simulate
from flegel.datasets import open_data

# %%
# Both models train the same rows from the same start to the same objective.

rng = np.random.default_rng(0)
X = rng.normal(size=(12, 6))[rng.integers(12, size=4000)] + rng.normal(size=(4000, 6))
settings = SimulationSettings(
    algorithm=KMeans(k=12),
    data=open_data(X),
    candidates=parse_candidates("bsp,fsp"),
    workers=8,
    repeat=1,
    straggler="0:8x",
    model=ClusterModel(pass_seconds=1.0),
)
found = simulate(settings)
for name in ("bsp", "fsp"):
    print(f"{name}: target after {found.times(name).median:.1f} virtual seconds")

# %%
# Utilization of a worker is the share of its time in which it computes. The wait at the last barrier, at which the job
# ends, is not counted: under ``bsp`` it makes the waits of three passes those of two.

BUSY, IDLE = "compute_seconds", ("wait_seconds", "barrier_seconds")
for name in ("bsp", "fsp"):
    shares = [w[BUSY] / (w[BUSY] + sum(w[kind] for kind in IDLE)) for w in found.pictures[name].workers]
    print(f"{name}: utilization of workers 0 to 7: " + " ".join(f"{share:.0%}" for share in shares))

# %%
# Where the seconds of each worker went. The dashboard (``flegel dashboard RUN``) shows the same over time, with a lane
# for each worker.

figure, panels = plt.subplots(2, 1, figsize=(8, 5), sharex=True, layout="constrained")
for panel, name in zip(panels, ("bsp", "fsp"), strict=True):
    before = np.zeros(8)
    for kind, label in ((BUSY, "computing"), (IDLE[0], "waiting"), (IDLE[1], "answering a barrier")):
        seconds = np.array([w[kind] for w in found.pictures[name].workers])
        panel.barh(range(8), seconds, left=before, label=label)
        before += seconds
    panel.set(ylabel="worker", title=name)
panels[1].set_xlabel("virtual seconds")
panels[1].legend()
plt.show()
