"""Which workers train and which rest, from speeds and costs of barriers; how rows are dealt to unequal devices."""

from __future__ import annotations

from typing import Any

import pytest

from flegel.plan.active_workers import BarrierCosts, ValueOfVisits, best_active_workers, first_cost, progress
from flegel.plan.devices import Work, first_partition, relative_speeds

GPU, CORE = 4.5e9, 1.56e7  # points a second, k-means with k = 100 on 28 columns
PASS = ValueOfVisits(11e6)


def line(first: float, each: float) -> Any:
    return lambda workers: first + each * (workers - 1)


MIXED = {0: GPU, **dict.fromkeys(range(1, 16), CORE)}


@pytest.mark.parametrize(
    ("rates", "cost", "worth", "working"),
    [
        pytest.param(MIXED, line(2e-3, 4e-4), PASS, 1, id="processors add 5 % and make barriers four times as long"),
        pytest.param(MIXED, line(2e-3, 4e-4), ValueOfVisits(1e12), 16, id="a pass of minutes: barriers hardly matter"),
        pytest.param(MIXED, line(2e-3, 0.0), PASS, 16, id="barriers cost the same with more workers"),
        pytest.param({0: 1e7, **dict.fromkeys(range(1, 16), 1e4)}, line(1e-3, 3e-4), ValueOfVisits(1e6), 1,
                     id="slow cores"),
        pytest.param(dict.fromkeys(range(16), 1e7), line(1e-3, 3e-3), ValueOfVisits(1e4), 16,
                     id="equal workers never rest"),
        pytest.param({0: 4e6, 1: 5e5, 2: 5e5}, line(1e-3, 5e-3), ValueOfVisits(1e4), 3, id="an eighth as fast is fast"),
        pytest.param({0: 3e5, **dict.fromkeys(range(1, 16), 8e3)}, line(3e-3, 4e-4), ValueOfVisits(6e4, noise=900.0), 1,
                     id="a network whose gradient is mostly signal wants many updates"),
        pytest.param({0: 3e5, **dict.fromkeys(range(1, 16), 8e3)}, line(3e-3, 4e-4), ValueOfVisits(6e4, noise=1e9), 16,
                     id="a network whose gradient is noise wants many samples"),
        pytest.param(MIXED, line(2e-3, 4e-4), ValueOfVisits(11e6, interval=0.5), 16, id="the user's interval is long"),
        pytest.param(MIXED, line(2e-3, 4e-4), ValueOfVisits(11e6, interval=0.01), 1, id="the user's interval is short"),
        pytest.param({0: 1e6, 1: 0.0}, line(1e-3, 1e-4), ValueOfVisits(1e5), 1, id="a worker that gets nothing done"),
    ],
)  # fmt: skip
def test_the_workers_with_the_most_progress(rates: Any, cost: Any, worth: ValueOfVisits, working: int) -> None:
    active = best_active_workers(rates, tuple(rates), cost, worth)
    assert active.working == tuple(range(working)) and len(active.resting) == len(rates) - working
    assert (active.gain > 0) == (working < len(rates))
    again = best_active_workers(rates, active.working, cost, worth)
    assert again.working == active.working and abs(again.gain) < 1e-9, "the best workers have nothing to gain"


def test_reasons_name_workers_speed_and_barriers() -> None:
    rest = best_active_workers(MIXED, tuple(MIXED), line(2e-3, 4e-4), PASS)
    assert rest.reason == (
        "15 of 16 workers rest: together they would add 5% to the speed, "
        "and each barrier would cost 6 ms more with them"
    )
    back = best_active_workers({**MIXED, 0: CORE}, (0,), line(2e-3, 4e-4), PASS)
    assert back.reason.startswith("15 of 16 workers are called back: together they add 1500% to the speed")
    assert back.gain > 1.0


def test_thousands_of_workers_are_compared_in_steps() -> None:
    rates = {worker: 1e9 if worker < 3 else 1e3 for worker in range(5000)}
    assert len(best_active_workers(rates, tuple(rates), line(1e-3, 1e-4), ValueOfVisits(1e8)).working) < 100


def test_progress_is_that_of_the_best_interval() -> None:
    rate, phi, scale = 1e5, 4e-3, 500.0
    batches = [b * (1 / (1 + b / scale)) / (b / rate + phi) for b in range(1, 5000)]
    assert progress(rate, phi, ValueOfVisits(6e4, noise=scale)) == pytest.approx(max(batches), rel=1e-4)
    assert progress(0.0, phi, PASS) == 0.0


def test_costs_of_barriers_between_and_beyond_what_was_seen() -> None:
    costs = BarrierCosts()
    assert costs.at(16) == first_cost(16)
    costs.add(16, 8e-3)
    assert costs.at(16) == 8e-3 and costs.at(8) == pytest.approx(6e-3), "half of it is taken to grow with the workers"
    costs.add(1, 2e-3)
    assert costs.at(6) == pytest.approx(4e-3) and costs.at(31) == pytest.approx(14e-3)
    costs.add(1, 1.0)
    costs.add(16, 8e-3)
    assert costs.at(20) == pytest.approx(8e-3), "more workers are never taken to make barriers shorter"


def test_rows_are_dealt_by_expected_speed_and_memory() -> None:
    speeds = relative_speeds({0: "cuda:0"}, 4, network=False)
    work = Work(11_000_000, 11_000_000 * 2800.0)
    deal = first_partition(speeds, work, rest=True)
    assert deal.partition == "shuffle:0=200,1=none,2=none,3=none"
    assert deal.active_workers is not None and deal.active_workers.resting == (1, 2, 3)
    many = relative_speeds({0: "cuda:0"}, 16, network=False)
    for wrong in (0.1, 1.0, 4.0):
        guess = Work(work.rows, wrong * work.multiplications)
        assert first_partition(many, guess, rest=True).active_workers is not None, (
            "the order of magnitude of a pass is enough"
        )
    assert first_partition(speeds, work, rest=False).partition == "shuffle:0=200"
    assert first_partition(speeds, Work(work.rows), rest=True).partition == "shuffle:0=200", (
        "the length of a pass is unknown"
    )
    assert first_partition(speeds, Work(10**9, 1e15), rest=True).partition == "shuffle:0=200", "a pass takes minutes"
    small = first_partition(speeds, Work(work.rows, work.multiplications, {0: 5_500_000}), rest=True)
    assert small.partition == "shuffle:0=3" and small.active_workers is None, "half of the rows fit on the device"
    assert first_partition(relative_speeds({}, 4, network=False), work, rest=True).partition == "shuffle"
    assert (
        first_partition(relative_speeds({0: "cuda:0"}, 2, network=True), Work(60_000), rest=True).partition
        == "shuffle:0=30"
    )
