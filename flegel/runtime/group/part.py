"""A job that trains one model together with groups at other sites (`--group`, `--bucket`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from flegel.algorithm import Sample
from flegel.configuration.active import active
from flegel.core.pytree import Tree
from flegel.datasets.rows.scale import Scaling
from flegel.job import Job
from flegel.machine.coordinator.events import Event
from flegel.machine.group.events import ToGroup
from flegel.machine.group.option_checks import check_group_options
from flegel.machine.group.part import GroupPart
from flegel.plan.termination import FAILED_OUTCOMES
from flegel.runtime.group.keys import check_keys
from flegel.runtime.group.link import GroupLink
from flegel.runtime.group.session import GroupSession, open_group
from flegel.runtime.job.part import Part
from flegel.wording import option


class GroupOfJob(Part):
    """Scaling and θ(0) are those of the first group; contributions and results go through a thread of their own."""

    forbids_retraining = True
    _session: GroupSession
    _exchange: GroupPart

    @staticmethod
    def check_job(job: Job) -> None:
        check_group_options(job.sites)
        check_keys(job.sites)

    def open(self) -> None:
        self._session = open_group(self.request.job, self.request.algorithm)

    def read(self) -> None:
        self._session.join(self.request.data)
        with contextlib.suppress(OSError):  # nothing depends on it
            if ended := self._session.ended_groups():
                self.request.observers.say(
                    f"joins the training in {self.request.job.sites.bucket}, which {', '.join(ended)} ended before; "
                    f"{option('new_training', True)} begins another one"
                )

    def scaling(self) -> Scaling | None:
        return self._session.scaling()

    def former_parameter(self) -> Tree | None:
        return self._session.parameter()

    def joint_sample(self, sample: Sample) -> Sample:
        return self._session.joint_sample(sample, waits=self._waits)

    def _waits(self, why: str) -> None:
        """Before training: the phase of a job is what its status shows."""
        self.request.observers.phase(why)
        self.request.observers.say(f"this group {why}")

    def agrees(self) -> bool:
        """The package is written, unless another group was first."""
        running, prepared = self.running, self.running.prepared
        return self._session.publish(prepared.parameter, prepared.zero, running.scaling, self.request.data)

    def started(self) -> None:
        prepared = self.running.prepared
        self.running.ending.callback(self._session.close)
        self._session.start(prepared.parameter, prepared.zero)

    @property
    def _link(self) -> GroupLink:
        assert self._session.link is not None
        return self._session.link

    def load_options(self, worker: int) -> dict[str, Any]:
        return {"alone": False, "growing": False}

    def machine(self) -> GroupPart:
        sites = self.request.job.sites
        longest_wait = active().groups.timeouts_waiting_for_result * sites.group_timeout
        self._exchange = GroupPart(self._session.exchange(), sites.group_barrier == "wait", longest_wait)
        return self._exchange

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        yield
        verdict = self.running.machine.verdict
        if self._exchange.exchange.excluded:
            self._session.ended = "excluded"
        elif verdict is not None and verdict.outcome not in FAILED_OUTCOMES:
            self._session.ended = "finished"

    def commands(self) -> Mapping[type, Callable[[Any], None]]:
        return {ToGroup: self._link.take}

    def arrivals(self) -> Iterable[Event]:
        return self._link.arrivals()

    def section(self) -> Mapping[str, Any]:
        """Rounds with other groups, and what is missing in the objective."""
        state = self.running.machine.state
        sites = self._session.summary(self._exchange.exchange)
        found: dict[str, Any] = {"sites": sites, "warnings": about_groups(sites)}
        counted = state.final_count is not None and state.final_count.objective is not None
        if not counted and state.objective is not None:
            found["objective"] = state.objective  # θ of the last result of all groups, which no line of the trace has
        return found


def about_groups(sites: dict[str, Any]) -> list[str]:
    """Groups that were lost or missing, and groups whose rows are in θ and not in the objective."""
    lost = list(sites.get("without", ()))
    if sites.get("withheld"):
        lost.append(
            f"{sites['withheld']} contributions of this group were not sent: they tell of fewer than "
            f"{option('least_rows')} rows"
        )
    missing = sorted(set(sites.get("groups", ())) - set(sites.get("objective_of", ())))
    if not missing:
        return lost
    return [
        *lost,
        f"the objective is that of the rows of {', '.join(sites['objective_of'])}: the model also holds statistics of "
        f"{', '.join(missing)}, which did not evaluate this θ",
    ]
