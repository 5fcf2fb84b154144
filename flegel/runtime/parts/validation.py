"""How good the model is on rows that no worker trains on, while a job runs and at its end. Never influences training.

While the job trains, a part of these rows is evaluated once a pass of the slowest worker, in the coordinator's loop; at
most `termination.validation_share_of_time` goes into that. At the end all of them are, with the θ of the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.algorithm import Algorithm
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Sparse
from flegel.datasets import Scaling
from flegel.datasets.dataset import HeldOut
from flegel.datasets.rows import scale
from flegel.errors import AlgorithmError
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.observation import FOLLOWED_AT
from flegel.params import hook_values
from flegel.params.hooks import call_hook
from flegel.runtime import clock
from flegel.runtime.job.part import Part
from flegel.wording import option

PREFIX = "validation_"


class Validation:
    """The held-out rows of one job."""

    def __init__(self, algorithm: Algorithm, held: HeldOut, scaling: Scaling | None) -> None:
        """`held`: the rows that are not trained, a part of which is evaluated while training. `scaling`: of columns, as
        in training."""
        self._algorithm, self._held_out_rows, self._scaling = algorithm, held, scaling
        self._sampled_rows = self._rows(active().termination.validated_numbers)
        self._next_look_at, self._passes_at_last_look = 0.0, 0
        self.latest: dict[str, float] = {}
        """Figures of the last look, as they are shown."""
        self.course: list[dict[str, float]] = []
        """Seconds of training, iteration and figures at each look; the last one is of all rows and the final θ."""

    def look(self, machine: Coordinator) -> None:
        """Evaluate where the slowest worker has made another pass."""
        passes, now = int(machine.state.totals.slowest_pass), clock.now()
        if (
            machine.phase == "over"
            or not machine.trace
            or passes <= self._passes_at_last_look
            or now < self._next_look_at
        ):
            return
        self._passes_at_last_look = passes
        self._note(machine, *self._sampled_rows, machine.commits.final_parameter())
        took = clock.now() - now
        self._next_look_at = now + took + took / active().termination.validation_share_of_time

    def finish(self, machine: Coordinator, parameter: Tree) -> dict[str, Any]:
        """The figures of all held-out rows under the final θ, and the course, for the result."""
        features, labels = self._rows(active().termination.validated_numbers_at_end)
        self._note(machine, features, labels, parameter)
        self.latest.pop(FOLLOWED_AT)
        return {"rows": len(self._held_out_rows.ids), "course": self.course}

    def _rows(self, numbers: int) -> tuple[Array | Sparse, Array | None]:
        rows = self._held_out_rows.read(max(1, numbers // max(1, self._held_out_rows.whole.columns)))
        if self._scaling is None:
            return rows.features, rows.labels
        own = rows.features if isinstance(rows.features, Sparse) else np.array(rows.features)
        return scale.apply(own, self._scaling), rows.labels

    def _note(self, machine: Coordinator, features: Array | Sparse, labels: Array | None, parameter: Tree) -> None:
        """Evaluate θ on these rows and append the figures to the course; they are shown until the next time."""
        place = machine.state.place
        found = call_hook(self._algorithm, place, "evaluate", features, labels, parameter)
        if found is None:
            raise AlgorithmError(f"evaluate returned None in {place}; {option('validate')} needs an Evaluation.")
        figures = hook_values.figures(dict(found.metrics) or {"objective": found.objective}, "evaluate", place)
        wanted = self._algorithm.figures.followed
        figures = {name: value for name, value in figures.items() if not wanted or name in wanted}
        last = machine.trace[-1]
        self.latest = {**{f"{PREFIX}{name}": value for name, value in figures.items()}, FOLLOWED_AT: last.iteration}
        self.course.append({"seconds": last.seconds, "iteration": float(last.iteration), **figures})


class HeldOutRows(Part):
    """The figures of held-out rows are followed while the job trains, and told with its result."""

    def started(self) -> None:
        held = self.request.data.held_out
        assert held is not None
        self._validation = Validation(self.request.algorithm, held, self.running.scaling)

    def look(self) -> None:
        self._validation.look(self.running.machine)
        self.running.followed.update(self._validation.latest)

    def section(self) -> dict[str, Any]:
        machine = self.running.machine
        parameter = pytree.present(machine.commits.final_parameter())
        if not machine.trace or not pytree.is_finite(parameter):
            return {}
        return {"validation": self._validation.finish(machine, parameter), "metrics": self._validation.latest}
