"""The engine computes what it computed when `records.json` was written: for changes that must not change any result.

Trained parameters are compared bit by bit, with the record of this processor; simulated jobs by their numbers to nine
digits, on every processor. `record.py` beside this file makes records.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from digests import FAULTS, TRAINED, WORKERS, made_with, processor, rounded, simulated_comparison, simulated_faults
from digests import trained as train
from engine_access import COMPARISONS
from record import differing, read

import flegel

COMMAND = "python tests/recorded/record.py"
STEP = 25


@pytest.fixture(scope="module")
def three() -> Iterator[flegel.LocalCluster]:
    with flegel.LocalCluster(workers=max(WORKERS)) as warm:
        yield warm


@pytest.mark.processes
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", TRAINED)
def test_parameters_and_objectives_are_the_recorded_ones_to_the_last_bit(
    request: pytest.FixtureRequest, name: str, workers: int
) -> None:
    own, job = read()["processors"].get(processor()), f"{name} {workers}"
    if own is None or job not in own["bits"]:
        pytest.skip(
            f"no record of {name} for the processor {processor()}, so there is nothing to compare with; make one by "
            f"`{COMMAND}` before a change that must not change results"
        )
    found = {job: train(name, workers, request.getfixturevalue("three"))}
    different = list(differing(found, {job: own["bits"][job]}))
    if different and own["made_with"] != made_with():
        pytest.skip(f"{different} differ, but were recorded with {own['made_with']}; `{COMMAND}` records anew")
    assert not different


@pytest.mark.parametrize(
    ("kind", "first"), [(kind, first) for kind, seeds in FAULTS.items() for first in range(0, seeds, STEP)]
)
def test_jobs_under_faults_take_the_recorded_course(kind: str, first: int) -> None:
    jobs = {f"{kind} {seed}": simulated_faults(kind, seed) for seed in range(first, first + STEP)}
    recorded = read()["simulated"]
    assert not list(differing(jobs, {job: recorded[job] for job in jobs}))


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_on_virtual_time_take_the_recorded_course(name: str) -> None:
    job = f"comparison {name}"
    assert not list(differing({job: simulated_comparison(name)}, {job: read()["simulated"][job]}))


def test_rounding_errors_are_not_hashed_and_anything_larger_is() -> None:
    third = 1 / 3
    assert rounded(third) == rounded(third + 1e-16) != rounded(third + 1e-8)
    assert rounded(1e6 * third) == rounded(1e6 * third + 1e-9) != rounded(1e6 * third + 1e-2)
    assert rounded(0.1 + 0.2 - 0.3) == rounded(-1e-17) == rounded(0.0)
