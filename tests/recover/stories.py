"""Stories of jobs on real workers: acts that follow each other, such as a kill when training is under way, and what
must hold when the job has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flegel
from flegel import LocalCluster
from flegel.plan.termination import Termination, Verdict
from tests.coordinators import coordinators


class Story:
    """Called now and then with the coordinator; does one thing after the other, each when its time has come."""

    def __init__(self, *acts: Callable[[Any], bool]) -> None:
        self.acts, self.machine = list(acts), None

    def __call__(self, machine: Any) -> None:
        self.machine = machine
        if self.acts and machine.trace and self.acts[0](machine):
            self.acts.pop(0)

    def over(self) -> bool:
        return not self.acts


def kill(cluster: LocalCluster, worker: int, how: int = signal.SIGKILL) -> Callable[[Any], bool]:
    def act(machine: Any) -> bool:
        if worker not in cluster.registry.processes or machine.membership.redistribution.phase or machine.iteration < 3:
            return False
        os.kill(cluster.registry.processes[worker].pid, how)
        return True

    return act


def recovered(losses: int, worker: int | None = None) -> Callable[[Any], bool]:
    """All is well again after so many losses, of this worker or of any, and some rounds have passed since."""
    rounds: list[int] = []

    def act(machine: Any) -> bool:
        found = [i for i in machine.membership.incidents if i.kind == "lost" and i.resumed is not None]
        found = [i for i in found if worker is None or i.worker == worker]
        if len(found) >= losses and not machine.membership.redistribution.phase:
            rounds.append(machine.iteration)
        return bool(rounds) and machine.iteration > rounds[0] + 3

    return act


def train(algorithm: Any, data: Any, cluster: LocalCluster, story: Story, **more: Any) -> tuple[flegel.Result, Any]:
    """Train until the story is told and everything has converged."""
    judge = Termination.judge

    def end(self: Termination, progress: Any, user_says_stop: bool) -> Verdict | None:
        found = judge(self, progress, user_says_stop)
        return found if story.over() and progress.exact else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Termination, "judge", end)
        options = {"workers": 3, "tolerance": 1e-5, "collect_state": True, "resting": "off"} | more
        options = {"worker_timeout": 60.0} | options  # on a busy host nobody else is lost
        with coordinators() as found:
            result = flegel.run(algorithm, data, cluster=cluster, watch=lambda seen: story(found[-1]), **options)
    return result, story.machine


def check_contributions(result: flegel.Result, machine: Any) -> None:
    """The statistics are the sum of what is kept of the points."""
    total = machine.store.statistics
    kept = np.concatenate([np.ravel(total.sums), total.counts, np.ravel(total.far)])
    np.testing.assert_allclose(result.state.sum(axis=0), kept, rtol=1e-9, atol=1e-7)
    assert total.counts.sum() == len(result.state)


def check_kmeans(data: np.ndarray, result: flegel.Result, machine: Any, weights: np.ndarray | None = None) -> None:
    z, total = result.state[:, 0], machine.store.statistics
    often = np.ones(len(data)) if weights is None else weights
    assert (z >= 0).all() and np.array_equal(np.bincount(z, often, minlength=len(total.counts)), total.counts)
    for j in range(len(total.counts)):
        expected = (often[z == j, None] * (data[z == j] - machine.parameter.origin)).sum(axis=0)
        np.testing.assert_allclose(total.sums[j], expected, rtol=1e-10, atol=1e-8)
