"""`FlexibleSampler`: every index once an epoch, whichever rank is fastest. Takes the place of DistributedSampler.

The order is one permutation that all ranks know; who trains which part is `deal.py`'s decision, made anew at every
barrier from all-reduced counts. Never communicates.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from flegel.errors import UsageError
from flegel.torch.flexible import iteration
from flegel.torch.flexible.deal import Deal, NextEpoch, RankProgress, Span
from flegel.torch.flexible.joining import current
from flegel.torch.flexible.pace import BarrierPace, RankReport
from flegel.torch.flexible.rank_settings import rank_settings

READER_FRAMES = 4  # of the stack, between a sampler and its loader's iterator: the batch sampler, and two calls

_iterated: list[weakref.ref[FlexibleSampler]] = []


def active() -> FlexibleSampler | None:
    """The sampler that is being iterated for training."""
    while _iterated:
        found = _iterated[-1]()
        if found is not None and found.is_read_for_training():
            return found
        _iterated.pop()
    return None


def _check_only(found: FlexibleSampler) -> None:
    """Refuse another sampler whose loader hands out batches while a model is trained with those of `found`: barriers
    deal the samples of one, and the other's would be lost or trained on several ranks."""
    for other in {one() for one in _iterated}:
        if other is not None and other is not found and other.is_read_beside(found):
            raise UsageError(
                "Two shuffled FlexibleSamplers are read in one loop, as by zip(loader, other), and barriers can deal "
                "the samples of one only: put both data sets into one that returns a sample of each "
                "(torch.utils.data.StackDataset), or give the second loader another sampler; for evaluation use "
                "FlexibleSampler(data, shuffle=False)."
            )


def _reader() -> Any:
    """The iterator of the loader that reads the sampler whose generator calls this: PyTorch does not tell a sampler who
    reads it, and only the loader knows how many batches the script has taken. None if something else reads it."""
    frame = sys._getframe(2)
    for _ in range(READER_FRAMES):
        owner = frame.f_locals.get("self")
        if isinstance(owner, _BaseDataLoaderIter):
            return owner
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


@dataclass(frozen=True)
class LoaderProgress:
    """Of one rank since the last barrier: the columns of its report that concern the sampler."""

    ahead: int = 0
    taken: int = 0
    take: int = 0
    least: int = 1
    closed: bool = False
    epoch: int = 0


class FlexibleSampler(Sampler[int]):  # type: ignore[misc]
    """Takes the arguments of DistributedSampler. `shuffle=False` is for evaluation: fixed, equal parts in order."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        """`drop_last`: the loader drops its last, smaller batch, so a few positions of an epoch are left out; a loader
        of PyTorch is asked about it."""
        joined = current()  # ranks that heal: numbers are known once they have met
        self.ranks = (joined.ranks if joined else dist.get_world_size()) if num_replicas is None else num_replicas
        self.rank = (0 if joined else dist.get_rank()) if rank is None else rank
        self.dataset, self.shuffle, self.seed, self.drop_last = dataset, shuffle, seed, drop_last
        if not 0 <= self.rank < self.ranks:
            raise UsageError(f"rank={self.rank} is not one of {self.ranks} ranks.")
        if len(dataset) < self.ranks:
            raise UsageError(f"{len(dataset)} samples are too few for {self.ranks} ranks: each needs at least one.")
        self.epoch = 0
        self.deal: Deal | None = None
        self.training = False
        """An epoch is under way."""
        self._finished = self._resumed_finished = False
        self._begun = 0
        """Epochs begun."""
        self._reader: weakref.ref[Any] | None = None
        self._drawn = self._handed = self._ended_with = 0
        self._closed = False
        self._beside = (0, -1)
        """Another sampler that was read meanwhile, and the claims that the loader of this one had read by then."""
        self._last_samples = (0, 0)
        """Samples that each of the last two iterations of the training loop took from the loader."""
        self._decided = False
        """A model has been trained with samples of this epoch."""
        self._measured = False
        """An iteration has ended, so its samples are known."""
        self._handed_at_begin = 0
        self._rates: tuple[float, ...] = ()
        self._interval, self._ahead, self._batch, self._own_batch, self._least = 0.0, 0, 1, 1, 1
        self._skipped: tuple[Span, ...] = ()
        self._next = NextEpoch(self.ranks)
        self._barriers_claimed = 0
        """Barriers for which claims suffice while all ranks train one micro-batch for each: no new ones are made."""
        self._spent: list[float] = []
        self._since: list[int] = []
        """Seconds and samples of each rank since claims were made."""
        self.silent = 0
        """Barriers since the last reports (even_run.py); each rank took one batch for each."""
        self._adopted = False
        """The deal is that of a peer: the next iteration goes on with it."""
        self._segments: list[tuple[int, int]] = []
        """Batches and samples at which the loader had read all claims, before others were added."""
        self._continuing = False
        self.reopens = joined is not None
        """Its loader is asked to go on where it had read to its end: samples of lost ranks come back."""

    def set_epoch(self, epoch: int) -> None:
        """Another order. A resumed epoch goes on where it was."""
        if epoch != self.epoch:
            self._skipped, self._finished, self._resumed_finished, self._adopted = (), False, False, False
        self.epoch = epoch

    def __len__(self) -> int:
        """Samples of this rank in an epoch if all were equally fast; how many it will be is not known."""
        return -(-len(self.dataset) // self.ranks)

    def order(self) -> list[int]:
        """The permutation of this epoch, the same on all ranks."""
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        return torch.randperm(len(self.dataset), generator=generator).tolist()  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[int]:
        """Indices of this rank's claims, which grow and shrink at barriers while they are read."""
        if not self.shuffle:
            yield from range(self.rank, len(self.dataset), self.ranks)
            return
        if self._resumed_finished:  # it was trained to its end before the program was interrupted
            self._resumed_finished = False
            return
        order = self.order()
        if self._continuing and self.deal is not None:
            self._continuing, deal = False, self.deal
        else:
            deal = self._begin(_reader(), len(order))
        limit, offset, version = 0, 0, -1
        while True:
            number = self._drawn
            if number >= limit or version != deal.version:
                if number >= deal.claimed(self.rank):
                    break
                (limit, offset), version = deal.run(self.rank, number), deal.version
            self._drawn = number + 1
            yield order[number + offset]
        self._closed = self.deal is deal

    def _begin(self, reader: Any, samples: int) -> Deal:
        """Another epoch, read by this iterator of a loader."""
        trained = self.training and self._decided and not self._adopted
        left = self.deal.outstanding(self.rank) if self.deal and trained else 0
        self._decided = False
        if self.deal is not None and left >= self.deal.least and self._handed >= self.deal.claimed(self.rank):
            raise UsageError(
                f"The last epoch ended without an optimizer step for its last {left} samples on rank {self.rank}: call "
                "optimizer.step() after every batch, or after every group of batches whose gradients are accumulated."
            )
        self._reader = None
        if reader is not None and (not reader._auto_collation or getattr(reader._index_sampler, "batch_size", None)):
            self._reader = weakref.ref(reader)
            self._own_batch = reader._index_sampler.batch_size if reader._auto_collation else 1
            self.drop_last = self.drop_last or (reader._auto_collation and reader._index_sampler.drop_last)
        iteration.running.reset()
        self._segments = []
        if self._adopted and self.deal is not None:
            self._adopted, self._closed, self.training = False, False, True
            self._drawn = self._handed = self._handed_at_begin = self._ended_with = 0
            _iterated.append(weakref.ref(self))
            return self.deal
        positions = samples - (samples % self._batch if self.drop_last else 0)
        self._drawn = self._handed = self._handed_at_begin = self._ended_with = 0
        self._closed = self._finished = False
        if self.training or not self.reopens:  # the last epoch was left early, or ranks do not change
            self._next.end(self.ranks, self._rates)
        least = max(self._least, self._own_batch if self.drop_last else 1)
        deal = self._next.begin(positions, self._batch, least, self._interval, self._ahead, self._skipped)
        self.deal = deal
        self._barriers_claimed, self._spent, self._since, self.silent = 0, [], [], 0
        left = deal.pool + sum(map(deal.claimed, range(self.ranks)))
        if left and not self._skipped and (deal.done or left < self.ranks * deal.least):
            raise UsageError(
                f"{samples} samples are too few: {self.ranks} ranks need {self.ranks * deal.least} for one step, since "
                "the loader drops smaller batches or gradients of several batches are accumulated."
            )
        self.training, self._begun = not deal.done, self._begun + 1
        if deal.done:  # a run that was interrupted has left less than one iteration of every rank
            self._skipped, self._finished = (), True
        _iterated.append(weakref.ref(self))
        return deal

    def handed(self) -> int:
        """Samples of this epoch that the script has taken from its loader."""
        reader = self._reader() if self._reader is not None else None
        if reader is not None:
            self._handed = max(self._handed, min(self._samples_of(reader._num_yielded), self._drawn))
        return self._handed

    def _samples_of(self, batches: int) -> int:
        """Of so many batches of the loader: only the last one before claims were added may have been smaller."""
        first, samples = 0, 0
        for last, until in self._segments:
            if batches < last:
                break
            first, samples = last, until
        return samples + (batches - first) * self._own_batch

    def is_read_for_training(self) -> bool:
        """Whether batches that a model trains with come from here. Not so where the loader's iterator was dropped
        before any training: the batches of an evaluation, or a single one that is trained again and again."""
        dropped = self._reader is not None and self._reader() is None and not self._decided
        return (self.training and not dropped) or self.has_remainder()

    def is_read_beside(self, other: FlexibleSampler) -> bool:
        """Whether batches were taken from here between two iterations that were trained with those of `other`."""
        if not self.training or self._reader is None or self._reader() is None:
            return False
        before, self._beside = self._beside, (id(other), self._drawn)
        return before[0] == id(other) and self._drawn > before[1] >= 0

    def has_remainder(self) -> bool:
        """The epoch's last barrier was passed, and the script trains what was left below one iteration."""
        return self._finished and self._begun > 0 and self.handed() > self._ended_with

    def handed_by_loader(self) -> int | None:
        """`handed`, if the loader can be asked; otherwise samples are counted when a model is trained with them."""
        return self.handed() if self._reader is not None else None

    def decide(self, count: int, in_time: bool, handed: int | None = None) -> bool:
        """Whether the iteration that begins is the last before a barrier: by time (`in_time`: that is up), or because
        the rank's claims end. Never after the last barrier of an epoch: what is left for a rank is below one iteration
        (`has_remainder`), and the other ranks would wait at a barrier for it.

        `count`: samples of the model's micro-batch; the loader's are counted by the loader, where it can be asked:
        `handed` when the iteration's first forward pass began."""
        deal = self.deal
        if deal is None:
            return True
        self._decided = True
        if len(_iterated) > 1:
            _check_only(self)
        if self._reader is None:
            self._own_batch = max(self._own_batch, count)
            self._handed = min(self._handed + count, self._drawn)
        handed = self.handed() if handed is None else handed
        if self._handed_at_begin:
            samples = self._whole_batches(handed - self._handed_at_begin)  # of the iteration that has just ended
            before = self._last_samples[1] if self._measured else samples
            self._last_samples, self._measured = (before, samples), True
        # What is left of an iteration that began in the last epoch tells nothing about the next ones.
        self._handed_at_begin = 0 if iteration.running.carried else handed
        if not self.training:
            return False
        window = handed + self._iteration_samples - self._own_batch - deal.trained[self.rank]
        unread = deal.claimed(self.rank) - self._drawn
        return deal.is_last(self.rank, window, unread, self._iteration_samples, in_time)

    def _whole_batches(self, samples: int) -> int:
        """Where the first batch of an iteration is the last one of the epoch, and so a smaller one, the samples that
        were taken since the one before it began are fewer than that one took."""
        return -(-samples // self._own_batch) * self._own_batch if self._reader is not None else samples

    @property
    def _iteration_samples(self) -> int:
        """Samples that an iteration takes: more than a batch where gradients are accumulated, or batches left out. One
        that happened to take more tells nothing about the next."""
        return max(min(self._last_samples), self._own_batch)

    @property
    def _least_own(self) -> int:
        return self._iteration_samples if self._iteration_samples > self._own_batch or self.drop_last else 1

    def progress(self, to_come: int = 0) -> LoaderProgress:
        """What this rank reports at a barrier. `to_come`: batches that may follow before the step. They count as taken:
        with too few samples left for another iteration, no barrier may be planned for one."""
        if self.deal is None or not self.training:
            return LoaderProgress(epoch=self._begun)
        handed = self.handed()
        if not self._measured:  # the first iteration, which may take several batches
            samples = handed - self._handed_at_begin + self._own_batch
            self._last_samples = (samples, samples)
        handed = max(handed, min(handed + to_come * self._own_batch, self.deal.claimed(self.rank)))
        return LoaderProgress(
            max(0, self._drawn - handed),
            handed - self.deal.trained[self.rank],
            self._iteration_samples,
            self._least_own,
            self._closed and not self.reopens,
            self._begun,
        )

    def barrier(self, reports: Sequence[RankReport], pace: BarrierPace) -> None:
        """Counts and rates of all ranks: claims for the next intervals."""
        if self.deal is None or not self.training:
            return
        self._interval = pace.interval
        barriers, self.silent = self.silent + 1, 0
        self._barriers_claimed = max(0, self._barriers_claimed - barriers + 1)
        before = self._spent or [0.0] * len(reports)
        self._spent = [barriers * r.seconds + spent for r, spent in zip(reports, before, strict=True)]
        if pace.even and self._barriers_claimed > 0:
            self._barriers_claimed -= 1
            self._since = [int(r.taken) for r in reports]
            return
        self._batch = max(self._batch, int(max(r.take for r in reports)))
        self._ahead = max(self._ahead, int(max(r.ahead for r in reports)))
        self._least = int(max(r.least for r in reports))
        self._rates = tuple(r.taken / s if s > 0.0 else 0.0 for r, s in zip(reports, self._spent, strict=True))
        self._spent, self._since = [], []
        progress = [
            RankProgress(int(r.taken), rate, int(r.ahead), r.closed > 0.0)
            for r, rate in zip(reports, self._rates, strict=True)
        ]
        runs = pace.even and not self.reopens
        rules = rank_settings()
        intervals = rules.claimed_intervals * (rules.even_barriers_claimed if runs else 1)
        self.deal.advance(progress, pace.interval, self._batch, self._ahead, self._least, intervals)
        least = min(self.deal.outstanding(rank) for rank in range(self.ranks)) - self._ahead
        if runs and not self.deal.final and least > (rules.even_barriers_claimed + 1) * self._batch:
            self._barriers_claimed = rules.even_barriers_claimed - 1
        else:
            self._barriers_claimed = 0
        self._reopen()
        if self.deal.done:
            self.training, self._skipped, self._finished, self._ended_with = False, (), True, self.handed()
            self._next.end(self.ranks, self._rates)

    def silent_barriers(self) -> int:
        """Barriers that may follow without reports of this sampler's progress: claims suffice for them, and the loader
        can be asked whether each step takes one batch."""
        return self._barriers_claimed if self.training and self._reader is not None else 0

    def reader(self) -> weakref.ref[Any] | None:
        return self._reader

    def resume(self, batches: int) -> None:
        """So many iterations of one batch each were made since the last decision."""
        if self._handed_at_begin:
            self._handed_at_begin += batches * self._own_batch

    def partly_silent(self, reports: Sequence[RankReport]) -> None:
        """A barrier at which some ranks reported."""
        taken = [
            known + self._own_batch if r.silent else int(r.taken)
            for r, known in zip(reports, self._trained_since(), strict=True)
        ]
        self._barriers_claimed = max(0, self._barriers_claimed - self.silent - 1)
        self._since, self.silent = taken, 0

    def _trained_since(self) -> list[int]:
        """Samples of each rank since claims were made, until the last barrier."""
        return [known + self.silent * self._own_batch for known in self._since or [0] * self.ranks]

    # -- ranks that heal -------------------------------------------------------------------------------------

    def drawn(self) -> int:
        """Claims of this epoch that the loader has read."""
        return self._drawn if self.training else 0

    def taken(self) -> int:
        """Samples of the running interval that the loop has taken."""
        return self.handed() - self.deal.trained[self.rank] if self.deal is not None and self.training else 0

    def regroup(self, rank: int, kept: Sequence[int | None], drawn: Sequence[int], windows: Sequence[int]) -> None:
        """Other ranks from now on; `kept`: which one each was before."""
        rates = [self._rates[old] if old is not None and old < len(self._rates) else 0.0 for old in kept]
        known = [rate for rate in rates if rate > 0.0]
        if self._rates:
            self._rates = tuple(rate or sum(known) / max(len(known), 1) for rate in rates)
        self.rank, self.ranks = rank, len(kept)
        change = (list(kept), list(drawn), list(windows), rates, self._interval, self._ahead)
        if all(old is None for old in kept):
            self._next.end(self.ranks, self._rates)
        elif self.deal is None or not self.training:
            self._next.changes.append(change)
        else:
            self.deal.regroup(*change)
            self._reopen()

    def has_room(self, kept: Sequence[int | None], drawn: Sequence[int], windows: Sequence[int]) -> bool:
        """Whether every rank would have something to train."""
        if self.deal is None or not self.training:
            return True
        deal = Deal.from_state(copy.deepcopy(self.deal.to_state()))
        rates = [self._rates[old] if old is not None and old < len(self._rates) else 0.0 for old in kept]
        deal.regroup(kept, drawn, windows, rates, self._interval, self._ahead)
        return all(deal.outstanding(rank) >= deal.least for rank in range(len(kept)))

    def _reopen(self) -> None:
        """Where the loader had read all claims of this rank, and others were added, it goes on reading."""
        if not self._closed or not self.reopens or self.deal is None or self.deal.claimed(self.rank) <= self._drawn:
            return
        reader = self._reader() if self._reader is not None else None
        if reader is None:
            raise UsageError(
                "A rank was lost at the end of an epoch, and the loader cannot be asked to read its samples: use "
                "PyTorch's DataLoader with batch_size."
            )
        before = self._segments[-1] if self._segments else (0, 0)
        batches, odd = divmod(self._drawn - before[1], self._own_batch)
        self._segments.append((before[0] + batches + (odd > 0 and not self.drop_last), self._drawn))
        self._closed, self._continuing = False, True
        reader._sampler_iter = iter(reader._index_sampler)
        if hasattr(reader, "_try_put_index"):  # worker processes read ahead
            for _ in range(reader._prefetch_factor * reader._num_workers - reader._tasks_outstanding):
                reader._try_put_index()

    def is_last(self) -> bool:
        """Whether the interval ends with the iteration whose gradients are complete, by the claims of now."""
        deal = self.deal
        if deal is None or not self.training:
            return True
        window = self.handed() - deal.trained[self.rank]
        return deal.is_last(self.rank, window, deal.claimed(self.rank) - self._drawn, self._iteration_samples, True)

    LIVE = ("epoch", "seed", "_begun", "_rates", "_interval", "_ahead", "_batch", "_least", "_skipped", "_finished")

    def live_state(self) -> dict[str, Any]:
        """All that a rank needs which joins in the middle of an epoch; `state_dict` holds what a later run needs."""
        state = {name: getattr(self, name) for name in self.LIVE}
        deal = self.deal.to_state() if self.deal is not None and self.training else None
        return {**state, "deal": deal, "next": self._next.to_state()}

    def load_live_state(self, state: dict[str, Any]) -> None:
        """Continue from the state of another rank, as a process that joins does."""
        for name in self.LIVE:
            setattr(self, name, state[name])
        self.deal = Deal.from_state(state["deal"]) if state["deal"] is not None else None
        self._next = NextEpoch(*state["next"])
        self._adopted = self.training = self.deal is not None
        self._resumed_finished, self._continuing = self._finished, False
        self._drawn = self._handed = self._handed_at_begin = self._ended_with = 0
        self._reader, self._closed = None, False

    def state_dict(self) -> dict[str, Any]:
        """The same on all ranks after a barrier. Another number of ranks may go on with it."""
        spans = (
            self.deal.trained_spans(self._trained_since())
            if self.deal is not None and self.training
            else list(self._skipped)
        )
        if self._finished:
            spans = [(0, len(self.dataset))]
        state = {"epoch": self.epoch, "seed": self.seed, "samples": len(self.dataset), "trained": spans}
        return {**state, "finished": self._finished}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A finished epoch yields nothing when it is iterated again; `set_epoch` begins the next."""
        if state["samples"] != len(self.dataset):
            raise UsageError(f"The saved epoch has {state['samples']} samples, this data set {len(self.dataset)}.")
        self.epoch, self.seed = int(state["epoch"]), int(state["seed"])
        self._finished = self._resumed_finished = bool(state.get("finished", False))
        self._skipped = () if self._finished else tuple((int(start), int(end)) for start, end in state["trained"])
        self.deal, self.training = None, False
