"""`FlexibleSampler`: every index once an epoch, whichever rank is fastest. Takes the place of DistributedSampler.

The order is one permutation that all ranks know; who trains which part is `deal.py`'s decision, made anew at every
barrier from all-reduced counts. Never communicates.
"""

from __future__ import annotations

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
from flegel.torch.flexible.deal import Deal, RankProgress, Span
from flegel.torch.flexible.pace import BarrierPace, RankReport

READER_FRAMES = 4  # of the stack, between a sampler and its loader's iterator: the batch sampler, and two calls

_iterated: list[weakref.ref[FlexibleSampler]] = []


def active() -> FlexibleSampler | None:
    """The sampler that is being iterated for training."""
    while _iterated:
        found = _iterated[-1]()
        if found is not None and (found.training or found.has_remainder()):
            return found
        _iterated.pop()
    return None


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
        self.ranks = dist.get_world_size() if num_replicas is None else num_replicas
        self.rank = dist.get_rank() if rank is None else rank
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
        self._takes = (0, 0)
        """Samples that each of the last two iterations of the training loop took from the loader."""
        self._measured = False
        """An iteration has ended, so its samples are known."""
        self._handed_at_begin = 0
        self._rates: tuple[float, ...] = ()
        self._interval, self._ahead, self._batch, self._own_batch, self._least = 0.0, 0, 1, 1, 1
        self._skipped: tuple[Span, ...] = ()

    def set_epoch(self, epoch: int) -> None:
        """Another order. A resumed epoch goes on where it was."""
        if epoch != self.epoch:
            self._skipped, self._finished, self._resumed_finished = (), False, False
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
        left = self.deal.outstanding(self.rank) if self.deal is not None and self.training else 0
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
        positions = samples - (samples % self._batch if self.drop_last else 0)
        self._drawn = self._handed = self._handed_at_begin = self._ended_with = 0
        self._closed = self._finished = False
        self.deal = deal = Deal(positions, self.ranks, self._batch, skipped=self._skipped)
        deal.least = max(self._least, self._own_batch if self.drop_last else 1)
        deal.begin(self._rates, self._interval, self._ahead)
        if deal.done and deal.pool + sum(map(deal.claimed, range(self.ranks))):
            raise UsageError(
                f"{samples} samples are too few: {self.ranks} ranks need {self.ranks * deal.least} for one step, since "
                "the loader drops smaller batches or gradients of several batches are accumulated."
            )
        self.training, self._begun = not deal.done, self._begun + 1
        _iterated.append(weakref.ref(self))
        return deal

    def handed(self) -> int:
        """Samples of this epoch that the script has taken from its loader."""
        reader = self._reader() if self._reader is not None else None
        if reader is not None:
            self._handed = max(self._handed, min(reader._num_yielded * self._own_batch, self._drawn))
        return self._handed

    def has_remainder(self) -> bool:
        """The epoch's last barrier was passed, and the script trains what was left below one iteration."""
        return self._finished and self._begun > 0 and self.handed() > self._ended_with

    def decide(self, count: int, in_time: bool) -> bool:
        """Whether the iteration that begins is the last before a barrier: by time, or because the rank's claims end.

        `count`: samples of the model's micro-batch; the loader's are counted by the loader, where it can be asked."""
        deal = self.deal
        if deal is None:
            return True
        if self._reader is None:
            self._own_batch = max(self._own_batch, count)
            self._handed = min(self._handed + count, self._drawn)
        handed = self.handed()
        if self._handed_at_begin:
            took = handed - self._handed_at_begin
            self._takes, self._measured = (self._takes[1] if self._measured else took, took), True
        # What is left of an iteration that began in the last epoch tells nothing about the next ones.
        self._handed_at_begin = 0 if iteration.running.carried else handed
        if not self.training:
            return False
        window = handed + self._take - self._own_batch - deal.trained[self.rank]
        unread = deal.claimed(self.rank) - self._drawn
        return deal.is_last(self.rank, window, unread, self._take, in_time)

    @property
    def _take(self) -> int:
        """Samples that an iteration takes: more than a batch where gradients are accumulated, or batches left out. One
        that happened to take more tells nothing about the next."""
        return max(min(self._takes), self._own_batch)

    @property
    def _least_own(self) -> int:
        return self._take if self._take > self._own_batch or self.drop_last else 1

    def progress(self) -> LoaderProgress:
        """What this rank reports at a barrier."""
        if self.deal is None or not self.training:
            return LoaderProgress(epoch=self._begun)
        handed = self.handed()
        if not self._measured:  # the first iteration, which may take several batches
            took = handed - self._handed_at_begin + self._own_batch
            self._takes = (took, took)
        return LoaderProgress(
            self._drawn - handed,
            handed - self.deal.trained[self.rank],
            self._take,
            self._least_own,
            self._closed,
            self._begun,
        )

    def barrier(self, reports: Sequence[RankReport], pace: BarrierPace) -> None:
        """Counts and rates of all ranks: claims for the next intervals."""
        if self.deal is None or not self.training:
            return
        self._batch = max(self._batch, int(max(r.take for r in reports)))
        self._ahead = max(self._ahead, int(max(r.ahead for r in reports)))
        self._least = int(max(r.least for r in reports))
        self._rates = tuple(r.taken / r.seconds if r.seconds > 0.0 else 0.0 for r in reports)
        self._interval = pace.interval
        progress = [
            RankProgress(int(r.taken), rate, int(r.ahead), r.closed > 0.0)
            for r, rate in zip(reports, self._rates, strict=True)
        ]
        self.deal.advance(progress, pace.interval, self._batch, self._ahead, self._least)
        if self.deal.done:
            self.training, self._skipped, self._finished, self._ended_with = False, (), True, self.handed()

    def state_dict(self) -> dict[str, Any]:
        """The same on all ranks after a barrier. Another number of ranks may go on with it."""
        spans = self.deal.trained_spans() if self.deal is not None and self.training else list(self._skipped)
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
