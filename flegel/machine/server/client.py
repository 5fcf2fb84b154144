"""A worker's side of parameter servers: reports cut and pushed, kept until stable; θ put together from slices. Pure.

A report counts as made when every server has its part; then the coordinator hears of it. It is kept until backups hold
it, and pushed again to whoever takes a slice over. Orders to train wait, with all that come behind them, until θ of
their version is complete: all slices of a round have one version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from flegel.core import sharding
from flegel.core.pytree import Array
from flegel.core.sharding import UNCUT
from flegel.machine.server import unit_parts
from flegel.machine.server.holders import Holders
from flegel.machine.server.server import batches
from flegel.messages import Answer, Order, Report, Train
from flegel.server_messages import (
    ParameterSlices,
    PullSlices,
    PushSlices,
    PushStored,
    ServerBetween,
    ServerMap,
)

Message = tuple[Answer, tuple[Array, ...]]


class Push(msgspec.Struct, frozen=True):
    """A message to a server."""

    server: int
    body: ServerBetween
    arrays: tuple[Array, ...] = ()


@dataclass
class KeptReport:
    """A report until it is stable."""

    arrays: tuple[Array, ...]
    stored: dict[int, int] = field(default_factory=dict)
    """By slice: the server that has it."""
    told: bool = False
    """The coordinator has heard of it."""


@dataclass
class Assembly:
    """θ on its way: whole arrays, and the slices that are missing."""

    arrays: list[Array]
    missing: set[int]
    early: bool = False
    """Its fold was not ordered when it was sent: it counts only if the coordinator asks for this version."""


class SliceClient:
    """One worker in one job. What it returns is to be sent; what may go on is taken with `ready_orders`."""

    def __init__(self, parameter: Sequence[Array], version: int) -> None:
        """`parameter`: θ without the fields that workers do not need. `version`: -1 where only its form is known."""
        self.version = version
        self.parameter: tuple[Array, ...] = tuple(parameter)
        self.assembled = version
        """The newest version that is complete here, whether it is asked for or not."""
        self._map: ServerMap | None = None
        self._holders = Holders()
        self._kept_reports: dict[int, KeptReport] = {}
        self._assemblies: dict[int, Assembly] = {}
        self._stable: dict[int, int] = {}
        """By slice: the last round of this worker that backups hold."""
        self._waiting_orders: deque[tuple[Order, tuple[Array, ...]]] = deque()
        self._reports: dict[int, tuple[Answer, tuple[Array, ...]]] = {}
        """By round: reports that the coordinator will hear of when the servers have them."""
        self._new = True
        """No θ has come from servers yet; perhaps no server is about to send one."""

    @property
    def waits(self) -> bool:
        """An order waits for θ, or a report for servers that have not confirmed it."""
        slices = len(self._map.slices) if self._map is not None else 0
        return bool(self._waiting_orders) or any(len(report.stored) < slices for report in self._kept_reports.values())

    @property
    def kept_rounds(self) -> tuple[int, ...]:
        """Rounds whose reports are kept."""
        return tuple(self._kept_reports)

    def kept_reports(self) -> list[tuple[int, tuple[Array, ...]]]:
        """Reports that are not stable yet, by round."""
        return [(round_, report.arrays) for round_, report in self._kept_reports.items()]

    # -- orders --------------------------------------------------------------------------------------------

    def order(self, body: Order, arrays: tuple[Array, ...]) -> list[Push]:
        """An order of the coordinator, to be carried out in turn. A new worker asks for θ at once."""
        self._waiting_orders.append((body, arrays))
        if not self._new or self._map is None:
            return []
        return self._pull_missing(range(len(self._map.slices)))

    def ready_orders(self) -> list[tuple[Order, tuple[Array, ...]]]:
        """Orders that need not wait any more."""
        found = []
        while self._waiting_orders:
            body, arrays = self._waiting_orders[0]
            if isinstance(body, Train) and body.version >= 0:
                ready = self._assemblies.get(body.version)
                if self.version < body.version and ready is not None and not ready.missing:
                    self._use(body.version)
                if self.version < body.version:
                    break
                arrays = self.parameter
            self._waiting_orders.popleft()
            found.append((body, arrays))
        return found

    def _wanted(self) -> int:
        """The version that the first order waits for; -1: none."""
        body = self._waiting_orders[0][0] if self._waiting_orders else None
        return body.version if isinstance(body, Train) and body.version > self.version else -1

    # -- the map -------------------------------------------------------------------------------------------

    def use_map(self, new_map: ServerMap) -> list[Push]:
        """Slices changed owner: their new servers get what may be missing there."""
        if self._map is not None and new_map.version <= self._map.version:
            return []
        if self._map is not None and self._map.cut != new_map.cut:
            self._forget_slices()
        self._map = new_map
        out = [Push(server, PullSlices(-1)) for server in sorted({*new_map.primary})]
        changed = self._holders.use(new_map)
        for round_, report in sorted(self._kept_reports.items()):
            for number in changed:
                report.stored.pop(number, None)
            out += self._push(round_, report, changed)
        return out + self._pull_missing(changed)

    def _forget_slices(self) -> None:
        """θ is cut anew: what is there of a θ that is not complete, and which slices have a report, is not known any
        more."""
        self._stable.clear()
        self._assemblies = {v: assembly for v, assembly in self._assemblies.items() if not assembly.missing}
        for report in self._kept_reports.values():
            report.stored.clear()

    def retry(self) -> list[Push]:
        """Time has passed: ask again for what is missing, push again what no server has confirmed."""
        out = []
        if self._map is not None:
            out += self._pull_missing(range(len(self._map.slices)))
            for round_, report in sorted(self._kept_reports.items()):
                out += self._push(round_, report, [n for n in range(len(self._map.slices)) if n not in report.stored])
        return out

    # -- reports -------------------------------------------------------------------------------------------

    def report(self, body: Report, arrays: tuple[Array, ...]) -> list[Push]:
        """A report: a copy of its arrays goes to the servers, and is kept until backups hold it; the worker goes on
        adding to its own. Its body goes to the coordinator once every server has its part. Nothing is pushed while no
        map is known: `use_map` does that later."""
        kept = KeptReport(tuple(np.array(a) for a in arrays))
        self._kept_reports[body.round] = kept
        self._reports[body.round] = (body, ())
        if self._map is None:
            return []
        return self._push(body.round, kept, range(len(self._map.slices)))

    def _push(self, round_: int, report: KeptReport, numbers: Sequence[int]) -> list[Push]:
        """Messages that carry these slices of a report to the servers that hold them, some slices in each message."""
        assert self._map is not None
        by_server: dict[int, list[int]] = {}
        for number in numbers:
            by_server.setdefault(self._map.primary[number], []).append(number)
        out = []
        for server, mine in sorted(by_server.items()):
            for some in batches({number: self._bytes(report, number) for number in mine}):
                out.append(self._part(round_, report, server, some))
        return out

    def _bytes(self, report: KeptReport, number: int) -> int:
        """Of the cut fields of a slice."""
        assert self._map is not None
        fields = zip(report.arrays, self._map.statistics, strict=True)
        span = self._map.slices[number]
        return sum(sharding.part(a, axis, *span).nbytes for a, axis in fields if axis != UNCUT)

    def _part(self, round_: int, report: KeptReport, server: int, numbers: Sequence[int]) -> Push:
        """A message with these slices of a report. Slices that are zero are only named, sparse ones sent as picked
        units."""
        assert self._map is not None
        fields = list(zip(report.arrays, self._map.statistics, strict=True))
        arrays = [a for a, axis in fields if axis == UNCUT]
        axes = [axis for axis in self._map.statistics if axis != UNCUT]
        full: list[int] = []
        zero: list[int] = []
        picked: list[int] = []
        for number in numbers:
            cut = [sharding.part(a, axis, *self._map.slices[number]) for a, axis in fields if axis != UNCUT]
            part = unit_parts.packed(cut, axes)
            (full if part else zero).append(number)
            if len(part) > len(cut):
                picked.append(number)
            arrays += part
        body = PushSlices(round_, self._map.version, tuple(full), tuple(zero), tuple(picked))
        return Push(server, body, tuple(arrays))

    # -- answers of servers --------------------------------------------------------------------------------

    def hear(self, server: int, body: ServerBetween, arrays: tuple[Array, ...]) -> list[Message]:
        """What a server says; returns what the coordinator is to hear."""
        match body:
            case PushStored(round_, slices, version):
                return self._stored(server, round_, [n for n in slices if self._holders.is_current(n, version)])
            case ParameterSlices():
                self._take_slices(body, arrays)
        return []

    def _stored(self, server: int, round_: int, slices: Sequence[int]) -> list[Message]:
        """A server has stored slices of a report; the report's own message to the coordinator is returned once all
        slices are stored."""
        report = self._kept_reports.get(round_)
        if report is None or self._map is None:
            return []
        report.stored.update((n, server) for n in slices if self._map.primary[n] == server)
        if len(report.stored) < len(self._map.slices) or round_ not in self._reports:
            return []
        return [self._reports.pop(round_)]

    def _take_slices(self, body: ParameterSlices, arrays: tuple[Array, ...]) -> None:
        """Slices of a newer θ: assemble them, drop reports that are stable on all servers, and use θ once complete.
        Those of another cut are dropped; they are asked for again with the map that has it."""
        if self._map is None or body.cut != self._map.cut:
            return
        current = {n for n in body.slices if self._holders.is_current(n, body.map)}
        for number in current:
            self._stable[number] = max(self._stable.get(number, -1), body.stable)
        if len(self._stable) == len(self._map.slices):
            stable = min(self._stable.values())
            for round_ in [r for r in self._kept_reports if r <= stable and r not in self._reports]:
                del self._kept_reports[round_]
        if body.version <= self.version or not current:
            return
        axes = self._map.sent
        assembly = self._assemblies.get(body.version)
        if assembly is None:
            assembly = Assembly([np.empty_like(a) for a in self.parameter], set(range(len(self._map.slices))))
            self._assemblies[body.version] = assembly
        rests = axes.count(UNCUT)
        width = len(axes) - rests
        uncut = [array for array, axis in zip(assembly.arrays, axes, strict=True) if axis == UNCUT]
        for into, rest in zip(uncut, arrays[:rests], strict=True):
            into[...] = rest
        for at, number in enumerate(body.slices):
            if number not in current:
                continue
            parts = arrays[rests + at * width : rests + (at + 1) * width]
            sharding.paste(assembly.arrays, axes, *self._map.slices[number], parts)
            assembly.missing.discard(number)
        assembly.early = assembly.early or body.early
        if not assembly.missing:
            self.assembled = max(self.assembled, body.version)
            if not assembly.early:
                self._use(body.version)

    def _use(self, version: int) -> None:
        """θ of this version is complete: workers train with it from now on."""
        self._new = False
        self.version, self.parameter = version, tuple(self._assemblies[version].arrays)
        for old in [v for v in self._assemblies if v <= version]:
            del self._assemblies[old]

    def _pull_missing(self, numbers: Sequence[int]) -> list[Push]:
        """Ask the servers of these slices for what the first order waits for."""
        wanted = self._wanted()
        if wanted < 0 or self._map is None:
            return []
        target = max([wanted, *(v for v, assembly in self._assemblies.items() if not assembly.early)])
        assembly = self._assemblies.get(target)
        missing = [n for n in numbers if assembly is None or n in assembly.missing]
        by_server: dict[int, list[int]] = {}
        for number in missing:
            by_server.setdefault(self._map.primary[number], []).append(number)
        return [Push(server, PullSlices(target, tuple(mine))) for server, mine in sorted(by_server.items())]
