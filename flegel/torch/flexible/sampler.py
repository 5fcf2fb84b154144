"""`FlexibleSampler`: every index once an epoch, whichever rank is fastest. Takes the place of DistributedSampler.

The order is one permutation that all ranks know; who trains which part is `deal.py`'s decision, made anew at every
barrier from all-reduced counts. Never communicates.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from flegel.errors import UsageError
from flegel.torch.flexible.deal import Deal, RankProgress, Span
from flegel.torch.flexible.pace import BarrierPace, RankReport

_iterated: list[weakref.ref[FlexibleSampler]] = []


def active() -> FlexibleSampler | None:
    """The sampler that is being iterated for training."""
    while _iterated:
        found = _iterated[-1]()
        if found is not None and found.training:
            return found
        _iterated.pop()
    return None


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
        """`drop_last`: also the loader drops its last, smaller batch; a few positions of an epoch are then left out."""
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
        self._drawn = 0
        self._rates: tuple[float, ...] = ()
        self._interval, self._ahead, self._batch = 0.0, 0, 1
        self._skipped: tuple[Span, ...] = ()

    def set_epoch(self, epoch: int) -> None:
        """Another order. A resumed epoch goes on where it was."""
        if epoch != self.epoch:
            self._skipped = ()
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
        if not self.shuffle:
            yield from range(self.rank, len(self.dataset), self.ranks)
            return
        if self.training and self.deal is not None and self.deal.outstanding(self.rank) > 0 and self.deal.final:
            raise UsageError(
                "The last epoch ended without a barrier: the loader drops its last batch, so pass drop_last=True to "
                "FlexibleSampler too."
            )
        order = self.order()
        positions = len(order) - (len(order) % self._batch if self.drop_last else 0)
        self.deal = deal = Deal(positions, self.ranks, self._batch, skipped=self._skipped)
        deal.begin(self._rates, self._interval, self._ahead)
        self._drawn, self.training = 0, True
        _iterated.append(weakref.ref(self))
        limit, offset, version = 0, 0, -1
        while True:
            number = self._drawn
            if number >= limit or version != deal.version:
                if number >= deal.claimed(self.rank):
                    break
                (limit, offset), version = deal.run(self.rank, number), deal.version
            self._drawn = number + 1
            yield order[number + offset]
        if not deal.final:
            raise UsageError(
                "The loader reads further ahead than this rank has samples dealt: use fewer loader workers, a smaller "
                "prefetch_factor, or a smaller batch."
            )

    def decide(self, window: int, batch: int, in_time: bool) -> bool:
        """Whether the micro-batch that begins is the last before a barrier: by time, or because the rank's claims end.

        `window`: samples since the last barrier, this micro-batch included."""
        deal = self.deal
        if deal is None:
            return True
        if deal.final:
            left = deal.outstanding(self.rank) - window
            return left < (batch if self.drop_last else 1)
        return in_time or deal.claimed(self.rank) - self._drawn < batch

    def ahead(self, window: int) -> int:
        """Samples that the loader has taken and the model has not seen."""
        return 0 if self.deal is None else max(0, self._drawn - self.deal.trained[self.rank] - window)

    def barrier(self, reports: Sequence[RankReport], pace: BarrierPace) -> None:
        """Counts and rates of all ranks: claims for the next intervals."""
        if self.deal is None:
            return
        self._batch = max(self._batch, int(max(r.batch for r in reports)))
        self._ahead = int(max(r.ahead for r in reports))
        self._rates, self._interval = pace.rates, pace.interval
        ended = self.deal.final
        progress = [
            RankProgress(int(r.samples), rate, int(r.ahead)) for r, rate in zip(reports, pace.rates, strict=True)
        ]
        self.deal.advance(progress, pace.interval, self._batch, self._ahead)
        if ended:
            self.training, self._skipped = False, ()

    def state_dict(self) -> dict[str, Any]:
        """The same on all ranks after a barrier. Another number of ranks may go on with it."""
        spans = self.deal.trained_spans() if self.deal is not None and self.training else list(self._skipped)
        return {"epoch": self.epoch, "seed": self.seed, "samples": len(self.dataset), "trained": spans}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["samples"] != len(self.dataset):
            raise UsageError(f"The saved epoch has {state['samples']} samples, this data set {len(self.dataset)}.")
        self.epoch, self.seed = int(state["epoch"]), int(state["seed"])
        self._skipped = tuple((int(start), int(end)) for start, end in state["trained"])
        self.deal, self.training = None, False
