"""The sampler beside PyTorch's loader, without ranks: what it counts, and what it saves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests import needs

torch = needs.library("torch")

from torch.utils.data import DataLoader, TensorDataset

from flegel.errors import UsageError
from flegel.torch.flexible import iteration
from flegel.torch.flexible.iteration import LoopIteration
from flegel.torch.flexible.pace import BarrierPace, RankReport
from flegel.torch.flexible.sampler import FlexibleSampler, active


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iteration, "running", LoopIteration())


def made(samples: int, **options: Any) -> tuple[FlexibleSampler, Iterator[Any]]:
    data = TensorDataset(torch.arange(samples))
    sampler = FlexibleSampler(data, num_replicas=1, rank=0)
    return sampler, iter(DataLoader(data, sampler=sampler, **options))


def barrier(sampler: FlexibleSampler) -> None:
    one = sampler.progress()
    report = RankReport(
        one.taken, 1.0, 1.0, ahead=one.ahead, taken=one.taken, take=one.take, least=one.least, closed=one.closed
    )
    pace = BarrierPace(fixed=1.0)
    pace.barrier([report], 0.0)
    sampler.barrier([report], pace)


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_that_the_script_has_taken_are_counted_whatever_the_loader_reads_ahead(workers: int) -> None:
    sampler, batches = made(100, batch_size=8, num_workers=workers)
    for _ in range(3):
        next(batches)  # the first two are left out by the script
    sampler.decide(5, in_time=True)
    assert sampler.handed() == 24, "and not the five samples of the model's own batch"
    assert sampler.progress().ahead == (16 if workers else 0)


def test_a_finished_epoch_is_told_from_one_that_has_not_begun() -> None:
    sampler, batches = made(20, batch_size=8)
    untrained = sampler.state_dict()
    assert untrained["trained"] == [] and not untrained["finished"]
    for (indices,) in batches:
        if sampler.decide(len(indices), in_time=True):
            barrier(sampler)
    finished = sampler.state_dict()
    assert finished["trained"] == [(0, 20)] and finished["finished"]
    assert active() is None
    resumed = FlexibleSampler(sampler.dataset, num_replicas=1, rank=0)
    resumed.load_state_dict(finished)
    assert list(resumed) == [] and resumed.state_dict() == finished
    resumed.set_epoch(1)
    assert sorted(resumed) == list(range(20))


def test_the_loader_is_asked_whether_it_drops_its_last_batch() -> None:
    sampler, batches = made(20, batch_size=8, drop_last=True)
    for (indices,) in batches:
        if sampler.decide(len(indices), in_time=True):
            barrier(sampler)
    assert sampler.drop_last and sampler.state_dict()["finished"], "four samples are left out"


def test_an_epoch_whose_last_batches_were_not_stepped_with_is_refused() -> None:
    sampler, batches = made(20, batch_size=8)
    for (indices,) in batches:
        sampler.decide(len(indices), in_time=False)
    with pytest.raises(UsageError, match="without an optimizer step for its last 20 samples on rank 0"):
        next(iter(sampler))


def test_an_epoch_may_be_left_early() -> None:
    sampler, batches = made(100, batch_size=8)
    for _ in range(3):
        sampler.decide(len(next(batches)[0]), in_time=True)
        barrier(sampler)
    next(iter(sampler))
    assert sampler.deal is not None and sampler.deal.trained == [0], "the next one begins at its beginning"


def test_the_rest_of_a_carried_iteration_is_not_taken_for_a_whole_one() -> None:
    """Gradients of two batches are accumulated, three batches an epoch: the second epoch begins with half a group."""
    sampler, batches = made(12, batch_size=4)
    sampler.decide(len(next(batches)[0]), in_time=True)
    next(batches)
    barrier(sampler)
    assert not sampler.decide(len(next(batches)[0]), in_time=True), "half a group waits for no barrier"
    iteration.running.carried = True
    batches = iter(DataLoader(sampler.dataset, batch_size=4, sampler=sampler))
    next(batches)
    iteration.running.carried = True
    sampler.decide(4, in_time=False)
    iteration.running.carried = False
    next(batches)
    sampler.decide(4, in_time=False)
    assert sampler.progress().take == 8


def test_the_smaller_last_batch_of_an_epoch_does_not_make_the_iteration_before_it_smaller() -> None:
    """Gradients of two batches are accumulated, of 8 samples each; the third one has 3."""
    sampler, batches = made(19, batch_size=8)
    sampler.decide(len(next(batches)[0]), in_time=False)
    next(batches)
    sampler.decide(len(next(batches)[0]), in_time=False)
    assert sampler.progress().take == 16, "ranks that disagreed on it made different numbers of barriers"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_had_read_to_its_end_goes_on_with_the_samples_of_a_lost_rank(workers: int) -> None:
    data = TensorDataset(torch.arange(40))
    sampler = FlexibleSampler(data, num_replicas=2, rank=0)
    sampler.reopens = True
    read: list[int] = []
    for (indices,) in DataLoader(data, sampler=sampler, batch_size=8, num_workers=workers):
        read += indices.tolist()
        sampler.decide(len(indices), in_time=False)
        if len(read) == 20:
            sampler.regroup(0, [0], [sampler.drawn()], [sampler.taken()])
            barrier(sampler)
    assert sorted(read) == list(range(40)) and sampler.handed() == 40
    barrier(sampler)
    assert sampler.state_dict()["finished"]


def test_a_rank_that_joins_goes_on_with_the_epoch_of_a_peer() -> None:
    data = TensorDataset(torch.arange(64))
    sampler = FlexibleSampler(data, num_replicas=1, rank=0)
    batches = iter(DataLoader(data, sampler=sampler, batch_size=8))
    read = next(batches)[0].tolist()
    sampler.decide(8, in_time=True)
    barrier(sampler)
    joined = FlexibleSampler(data, num_replicas=1, rank=0)
    joined.load_live_state(sampler.live_state())
    change = [0, None], [sampler.drawn(), 0], [sampler.taken(), 0]
    assert sampler.has_room(*change)
    sampler.regroup(0, *change)
    joined.regroup(1, *change)
    joined.set_epoch(0)
    mine = next(iter(DataLoader(data, sampler=joined, batch_size=8)))[0].tolist()
    read += next(batches)[0].tolist()
    assert len(mine) == 8 and not set(mine) & set(read)
    assert joined.deal is not None and joined.deal.to_state() == sampler.deal.to_state()


def test_a_rank_that_has_begun_the_next_epoch_and_one_that_has_not_make_the_same_deal_when_a_third_is_lost() -> None:
    data = TensorDataset(torch.arange(96))
    early, late = (FlexibleSampler(data, num_replicas=3, rank=rank) for rank in (0, 1))
    for sampler in (early, late):
        sampler.reopens = True
        sampler.regroup(sampler.rank, [None, None, None], [0, 0, 0], [0, 0, 0])
        next(iter(DataLoader(data, sampler=sampler, batch_size=8)))
        reports = [RankReport(32, 1.0, 1.0, batch=8, taken=32, take=8) for _ in range(3)]
        pace = BarrierPace(fixed=1.0)
        pace.barrier(reports, 0.0)
        sampler.barrier(reports, pace)
        assert not sampler.training, "the epoch has ended"
        sampler.set_epoch(1)
    change = [0, 1], [8, 32], [8, 0]  # the late one said what it had read of the last epoch
    next(iter(DataLoader(data, sampler=early, batch_size=8)))
    early.regroup(0, *change)
    late.regroup(1, *change)
    next(iter(DataLoader(data, sampler=late, batch_size=8)))
    assert early.deal is not None and late.deal is not None and early.deal.to_state() == late.deal.to_state()


def test_a_sampler_whose_batches_no_model_trains_with_does_not_take_the_place_of_the_training_s() -> None:
    """A shuffled loader of an evaluation in the middle of an epoch, read to its end, twice."""
    sampler, batches = made(40, batch_size=8)
    sampler.decide(len(next(batches)[0]), in_time=False)
    other, _ = made(20, batch_size=8)
    evaluation = DataLoader(other.dataset, sampler=other, batch_size=8)
    for _ in range(2):
        assert sum(len(indices) for (indices,) in evaluation) == 20
        assert active() is sampler
    del batches
    assert active() is sampler, "a model has been trained with its samples"


def test_one_batch_that_is_trained_again_and_again_is_not_an_epoch() -> None:
    sampler, batches = made(40, batch_size=8)
    next(batches)
    assert active() is sampler
    del batches
    assert active() is not sampler


def test_two_shuffled_samplers_in_one_loop_are_told_and_one_after_the_other_are_not() -> None:
    first, batches = made(100, batch_size=8)
    next(batches)
    first.decide(8, in_time=True)
    for _ in range(2):  # other data are evaluated in the middle of the epoch
        second, others = made(100, batch_size=8)
        next(others)
        del others
        next(batches)
        assert active() is first
        first.decide(8, in_time=True)
    second, others = made(100, batch_size=8)
    next(batches), next(others)
    assert active() is second
    second.decide(8, in_time=True)
    next(batches), next(others)
    with pytest.raises(UsageError, match=r"zip\(loader, other\).*StackDataset"):
        second.decide(8, in_time=True)


def test_a_loader_that_drops_every_batch_is_refused() -> None:
    data = TensorDataset(torch.arange(5))
    loader = DataLoader(data, batch_size=4, sampler=FlexibleSampler(data, num_replicas=3, rank=0), drop_last=True)
    with pytest.raises(UsageError, match="5 samples are too few: 3 ranks need 12 for one step"):
        list(loader)


def test_a_rest_of_an_epoch_below_one_iteration_of_every_rank_is_trained_without_a_barrier() -> None:
    data = TensorDataset(torch.arange(30))
    sampler = FlexibleSampler(data, num_replicas=3, rank=1)
    sampler.load_state_dict({"epoch": 0, "seed": 0, "samples": 30, "trained": [(0, 28)], "finished": False})
    for (indices,) in DataLoader(data, batch_size=4, sampler=sampler):
        assert indices.tolist() == [sampler.order()[29]] and active() is sampler
        assert not sampler.decide(1, in_time=True), "one of three ranks has nothing, so there is no barrier"
    assert sampler.state_dict()["finished"]
