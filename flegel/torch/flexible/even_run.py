"""Steps of equally fast ranks between two reports: they are DDP's own, and no rank says anything. Pure.

While ranks are equally fast their reports say the same at every barrier. So most barriers carry none: each rank sends a
row that never changes, and a comparison with the table of such rows tells that all ranks have trained one usual
micro-batch. A rank with anything to tell (another size, the end of its claims, a wish to stop, long waits) sends a full
report in place of the row, at any barrier, which ends the run of silent barriers for all ranks. Decides by numbers that
all ranks have when a run begins, and by a rank's own waiting when that rank ends it. Never reads a clock.
"""

from __future__ import annotations

from typing import Any

from flegel.torch.flexible.pace import RankTimings
from flegel.torch.flexible.rank_settings import rank_settings


class EvenRun:
    """Of one rank and model."""

    def __init__(self) -> None:
        self.left = 0
        """Barriers that follow without reports, as far as this rank knows."""
        self.made = 0
        """Barriers without reports since this rank's timings were opened."""
        self.waited = self.last_wait = self.arrived = 0.0
        """Seconds of waiting at these barriers, and at the last one; when this rank arrived there."""
        self.settled = 0
        """Barriers with reports of equally fast ranks in succession."""
        self.samples = self.total = 0
        """Of a usual micro-batch, of one rank and of all."""
        self.passing = self.pending = False
        """A forward pass of the run was made and not derived; gradients are complete, and not stepped with."""
        self.row: Any = None
        """What this rank sends in place of a report, and the table of all ranks' rows as it arrives."""
        self.table: Any = None
        self.reader: Any = None
        """Weak reference to the loader's iterator, which must hand out one batch for each step; None without one."""
        self.next_batch = 0
        self.waiting_share = rank_settings().uneven_from_ratio - 1.0
        """Of its own time that a rank may wait in a run: with more, it could have made another micro-batch."""

    def reported(self, even: bool, alike: bool, claimed: int | None) -> None:
        """A barrier with reports of all ranks. `alike`: each trained one usual micro-batch. `claimed`: barriers for
        which the claims of samples suffice; None without a sampler. Timings of the last intervals must be known before
        ranks go on without reports."""
        rules = rank_settings()
        self.settled = self.settled + 1 if even and alike else 0
        self.left = 0
        if self.settled >= rules.remembered_intervals:
            longest = rules.even_barriers_per_report - 1
            self.left = longest if claimed is None else min(longest, claimed)

    def disturbed(self) -> None:
        """Some rank had something to tell: reports of all ranks follow."""
        self.settled = self.left = 0

    def passed(self, now: float, opened: float) -> None:
        """A barrier without reports has ended; `opened`: when this rank's timings began. A rank that has waited for
        long says so at the next barrier."""
        self.last_wait = now - self.arrived
        self.waited += self.last_wait
        self.made += 1
        self.left -= 1
        if self.waited > self.waiting_share * (now - opened - self.waited):
            self.left = 0

    def close(self, timings: RankTimings) -> int:
        """The timings take over what was measured; barriers since they were opened, the coming one included."""
        timings.count += self.made
        timings.opened += self.waited
        barriers = self.made + 1
        self.made, self.waited, self.left = 0, 0.0, 0
        return barriers
