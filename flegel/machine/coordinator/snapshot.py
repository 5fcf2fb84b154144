"""The whole state of a job between two commits as plain data, and back. Pure: no file, no clock.

What is kept: θ, statistics by owner, round, iteration, the model's own memory (interval, search, δ), balance,
termination, the time account of each worker, generators of random numbers that an algorithm holds. Plain data are
numbers, text, bytes and lists; `pack` makes MessagePack of them. Reading makes only objects of the classes listed in
`KINDS`, and never runs code.

Points belong to the workers' side: each worker tells what it holds (`messages.Kept`), and `redeal` hands the same
points, with their states and passes, to another number of workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

import msgpack
import msgspec
import numpy as np

from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.errors import StorageError
from flegel.machine.coordinator.balance_control import BalanceControl
from flegel.machine.coordinator.migrations import Migrations
from flegel.messages import CheckpointPart
from flegel.plan.balance.planner import Balance, MoveCost
from flegel.plan.balance.remaining_time import ProgressSample, RemainingTime
from flegel.plan.balance.settings import BalanceSettings
from flegel.plan.balance.speed_estimate import DecayingMean, DutyCycle, Speed
from flegel.plan.interval.multi_stage import MultiStage, Recent
from flegel.plan.interval.search import BinarySearch, FixedInterval, Search, Step
from flegel.plan.termination import Termination, Verdict
from flegel.sync.asp import ASP
from flegel.sync.bsp import BSP
from flegel.sync.bsp_mini import BSPMini
from flegel.sync.fsp import FSP
from flegel.sync.local_timers import LocalTimers
from flegel.sync.policy import Updated, View, WorkerView
from flegel.sync.psp import PSP
from flegel.sync.rebuild_statistics import RebuildStatistics
from flegel.sync.ssp import SSP

if TYPE_CHECKING:
    from flegel.machine.coordinator.coordinator import Coordinator

VERSION = 3

KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        ASP, BSP, BSPMini, FSP, PSP, SSP, LocalTimers, BinarySearch, FixedInterval, MultiStage, Recent, Search, Step,
        Balance, BalanceControl, MoveCost, DutyCycle, RemainingTime, DecayingMean, ProgressSample, Migrations,
        BalanceSettings, Speed, Termination, Updated, Verdict,
        View, WorkerView,
    )
}  # fmt: skip
"""Everything that may be made from a file."""

LEFT_OUT = {
    "Migrations": {"open"}, "RemainingTime": {"_criteria"}, "Termination": {"_criteria"}, "Balance": {"rules", "even"},
    "BalanceControl": {"_crowded"},
    "ASP": {"_clocks"}, "SSP": {"_clocks"}, "View": {"_awaited"},
}  # fmt: skip
"""Not kept: points under way stay with their source, criteria may change when a job is resumed, and what only repeats
something else is counted anew; how dear a move is, the host says on which the job goes on."""

PLAIN = (type(None), bool, float, str, bytes)
WORD = 1 << 63


@dataclass(frozen=True)
class GeneratorState:
    """A generator of random numbers that was kept; the runtime makes one of it again."""

    state: dict[str, Any]


# -- objects to plain data and back ------------------------------------------------------------------------


def freeze(value: Any) -> Any:
    """Plain data that `thaw` understands. Raises `TypeError` for what is of no known kind."""
    match value:
        case _ if isinstance(value, PLAIN):
            return value
        case int():
            return value if -WORD <= value < WORD else ["int", hex(value)]
        case np.ndarray():
            return ["array", value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]
        case np.generic():
            return ["number", value.dtype.str, value.tobytes()]
        case deque():
            return ["queue", value.maxlen, [freeze(v) for v in value]]
        case set() | frozenset():
            return ["set", [freeze(v) for v in sorted(value)]]
        case list():
            return ["list", [freeze(v) for v in value]]
        case tuple() if not pytree.is_bundle(value):
            return ["tuple", [freeze(v) for v in value]]
        case dict():
            return ["dict", [[freeze(k), freeze(v)] for k, v in value.items()]]
    if hasattr(value, "bit_generator"):
        return ["dice", freeze(value.bit_generator.state)]
    name = type(value).__name__
    if KINDS.get(name) is not type(value):
        raise TypeError(f"{name} cannot be kept in a checkpoint")
    left_out = LEFT_OUT.get(name, ())
    inside = msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else vars(value)
    return ["object", name, [[k, freeze(v)] for k, v in inside.items() if k not in left_out]]


def thaw(data: Any, like: Any = None) -> Any:
    """What was frozen. An object fills `like` where that is of the same kind; what a file lacks keeps its default."""
    if not isinstance(data, list):
        return data
    match data:
        case ["int", text]:
            return int(text, 16)
        case ["array", dtype, shape, content]:
            return np.frombuffer(content, dtype=np.dtype(dtype)).reshape(shape).copy()
        case ["number", dtype, content]:
            return np.frombuffer(content, dtype=np.dtype(dtype))[0]
        case ["dice", state]:
            return GeneratorState(thaw(state))
        case ["queue", maxlen, items]:
            return deque((thaw(v) for v in items), maxlen)
        case ["set", items]:
            return {thaw(v) for v in items}
        case ["list", items]:
            return [thaw(v) for v in items]
        case ["tuple", items]:
            return tuple(thaw(v) for v in items)
        case ["dict", items]:
            return {thaw(k): thaw(v) for k, v in items}
        case ["object", name, items] if name in KINDS:
            return _object(KINDS[name], items, like)
    raise StorageError(f"The checkpoint holds {str(data[:2])[:60]}, which this version does not know.")


def _object(kind: type, items: list[Any], like: Any) -> Any:
    if issubclass(kind, msgspec.Struct):
        try:
            return kind(**{name: thaw(value) for name, value in items})
        except TypeError as error:
            raise StorageError(f"The checkpoint does not fit this version: {error}.") from None
    known = type(like) is kind
    made = copy(like) if known and _frozen(kind) else like if known else object.__new__(kind)
    inside = vars(made)
    for name, value in items:
        if known and name not in inside:
            raise StorageError(f"The checkpoint holds {kind.__name__}.{name}, which this version does not know.")
        inside[name] = thaw(value, inside.get(name))
    return made


def _frozen(kind: type) -> bool:
    """Such an object may be somebody else's, too."""
    return is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def pack(data: Any) -> bytes:
    return bytes(msgpack.packb(data, use_bin_type=True))


def unpack(content: bytes) -> Any:
    """Raises `StorageError` and nothing else where the bytes are no plain data."""
    try:
        return msgpack.unpackb(content, raw=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise StorageError(f"not readable ({error})") from None


# -- the coordinator ---------------------------------------------------------------------------------------

PLAIN_FIELDS = (
    "iteration", "objective", "began", "_updated_at", "_estimate", "_gain", "_reason", "_diverged", "staleness",
)  # fmt: skip


def take(job: Coordinator, event: Updated, now: float) -> dict[str, Any]:
    """The coordinator's side, at a moment when every worker has committed and `event` is what the model hears next."""
    policy = job.policy.model if isinstance(job.policy, RebuildStatistics) else job.policy
    accounts, account_of = job.ledger.books()
    return {
        "version": VERSION,
        "now": now,
        "fields": freeze({name: getattr(job, name) for name in PLAIN_FIELDS}),
        "parameter": freeze(pytree.flatten(job.parameter)),
        "total": freeze(pytree.flatten(job.ledger.total)),
        "accounts": freeze({owner: pytree.flatten(account) for owner, account in accounts.items()}),
        "account_of": freeze(account_of),
        "view": freeze(job.view),
        "policy": freeze(policy),
        "balancing": freeze(job.balancing),
        "termination": freeze(job.termination),
        "verdict": freeze(job.verdict),
        "event": freeze(event),
        "algorithm": freeze(memory_of(job.algorithm)),
    }


def memory_of(algorithm: Any) -> dict[str, Any]:
    """What an algorithm remembers beside its hyper-parameters, such as dice of its own."""
    kept: dict[str, Any] = {}
    for name, value in vars(algorithm).items():
        try:
            freeze(value)
        except TypeError:
            continue
        kept[name] = value
    return kept


def check(data: Any) -> dict[str, Any]:
    """The snapshot itself; refuses what another version wrote."""
    if not isinstance(data, dict) or data.get("version") != VERSION:
        version = data.get("version") if isinstance(data, dict) else None
        raise StorageError(f"the state has format {version}, this version reads {VERSION}")
    return data


def parameter_of(data: dict[str, Any]) -> list[Array]:
    """The arrays of θ."""
    found: list[Array] = thaw(data["parameter"])
    return found


def workers_of(data: dict[str, Any]) -> tuple[int, ...]:
    """Who held the points, in the order of the parts."""
    return tuple(thaw(data["view"]).workers)


def algorithm_of(data: dict[str, Any]) -> dict[str, Any]:
    """What the algorithm remembered."""
    found: dict[str, Any] = thaw(data["algorithm"])
    return found


def statistics_of(data: dict[str, Any]) -> list[Array]:
    found: list[Array] = thaw(data["total"])
    return found


@dataclass(frozen=True)
class NewerCommit:
    """A commit after the checkpoint: θ is known, the points' states are those of the checkpoint."""

    round: int
    iteration: int
    seconds: float
    parameter: Tree


def restore(
    job: Coordinator,
    data: dict[str, Any],
    parts: dict[int, WorkerState],
    newer: NewerCommit | None = None,
    redealt: bool = False,
) -> None:
    """Put a coordinator that was just made into the state of a snapshot; it goes on once the workers have loaded.

    `parts` says what each worker will hold. Where their number differs from that of the snapshot (`redealt`),
    statistics stay whole and belong to all workers together; what was learned about single workers is forgotten.
    Statistics of points that nobody has visited (`unvisited`) are those of nothing.
    """
    for name, value in thaw(data["fields"]).items():
        setattr(job, name, value)
    job.ledger.total = pytree.unflatten(job.ledger.total, thaw(data["total"]))
    accounts: dict[int, list[Array]] = thaw(data["accounts"])
    books = {owner: pytree.unflatten(job.ledger.total, arrays) for owner, arrays in accounts.items()}
    job.parameter = pytree.unflatten(job.parameter, thaw(data["parameter"]))
    event: Updated = thaw(data["event"])
    thaw(data["policy"], job.policy)
    thaw(data["termination"], job.termination)
    view: View = thaw(data["view"], job.view)
    if redealt:
        whole = pytree.copy(job.ledger.total)
        for name, into in zip(pytree.names(whole), pytree.flatten(whole), strict=True):
            into[...] = sum(dict(zip(pytree.names(b), pytree.flatten(b), strict=True))[name] for b in books.values())
        first = min(parts)
        job.ledger.reopen({first: whole}, dict.fromkeys(parts, first))
        clock = max(w.clock for w in view.workers.values())
        view.workers = {w: _worker(w, part, clock) for w, part in parts.items()}
        event = msgspec.structs.replace(event, workers=tuple(parts))
    else:
        job.ledger.reopen(books, thaw(data["account_of"]))
        if job.balancing is not None and data["balancing"] is not None:
            thaw(data["balancing"], job.balancing)
    if all(passes == 0 for part in parts.values() for _, passes in part.kept.runs):
        for account in (job.ledger.total, *job.ledger.books()[0].values()):
            pytree.clear(account)
        for number, worker in view.workers.items():
            worker.unseen, worker.halted = parts[number].points, 0
    job.verdict = thaw(data["verdict"])
    job.resume_with(event, float(data["now"]), fresh_balance=redealt or data["balancing"] is None)
    if newer is not None:
        go_on_from(job, newer, now=float(data["now"]), started=True)


def go_on_from(job: Coordinator, newer: NewerCommit, now: float, started: bool) -> None:
    """A newer θ than that of the statistics: one whole pass under it makes them fit, then the model goes on."""
    job.parameter = pytree.unflatten(job.parameter, pytree.flatten(newer.parameter))
    job.view.round, job.iteration = newer.round, newer.iteration
    job.began = now - newer.seconds
    job._updated_at = now
    job._estimate = job._gain = None
    job.verdict = None
    job.policy = RebuildStatistics(job.policy, started)
    event = Updated(newer.round, tuple(job.loads), None, False, 0, 0.0)
    job.resume_with(event, now, fresh_balance=job.balancing is not None and not started)


def _worker(number: int, part: WorkerState, clock: int) -> WorkerView:
    runs = part.kept.runs
    return WorkerView(
        number,
        sum(points for points, _ in runs),
        clock=clock,
        visits=sum(points * passes for points, passes in runs),
        unseen=sum(points for points, passes in runs if not passes),
        halted=int(np.count_nonzero(part.halted)),
    )


# -- the points --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerState:
    """What one worker held: numbers of its points in their order, state and votes of each; what it had not reported."""

    kept: CheckpointPart
    ids: Array
    state: Array
    halted: Array
    pending: tuple[Array, ...] = ()

    @property
    def points(self) -> int:
        return len(self.ids)

    def frames(self) -> tuple[Array, ...]:
        """As they travel behind `Load`."""
        return (self.state, self.halted, self.ids, *self.pending)


def worker_state_from(kept: CheckpointPart, arrays: Sequence[Array], ids: Array | None = None) -> WorkerState:
    """From a worker's answer; `ids` where the worker left them out because they are known already."""
    state, halted, own, *pending = arrays
    return WorkerState(kept, own if ids is None else ids, state, halted, tuple(pending))


def unvisited(part: WorkerState, state: Array) -> WorkerState:
    """The same points before their first visit."""
    kept = msgspec.structs.replace(part.kept, runs=((part.points, 0),), visits=0, compute=0.0)
    return WorkerState(kept, part.ids, state, np.zeros_like(part.halted))


def redeal(parts: Sequence[WorkerState], count: int) -> list[WorkerState]:
    """The same points in the same order for another number of workers, nearly equally many each.

    Nothing is lost: states, votes and passes go with their points. Visits that were not yet reported (`psp`) go to the
    first worker in sum.
    """
    ids = np.concatenate([p.ids for p in parts])
    state = np.concatenate([p.state for p in parts])
    halted = np.concatenate([p.halted for p in parts])
    runs = [run for p in parts for run in p.kept.runs]
    edges = np.linspace(0, len(ids), count + 1).round().astype(int).tolist()
    pending = [p for p in parts if p.pending]
    dealt: list[WorkerState] = []
    for worker in range(count):
        lo, hi = edges[worker], edges[worker + 1]
        visits, compute, extra = 0, 0.0, ()
        if pending and worker == 0:
            visits, compute = sum(p.kept.visits for p in pending), sum(p.kept.compute for p in pending)
            extra = tuple(np.sum(fields, axis=0) for fields in zip(*(p.pending for p in pending), strict=True))
        kept = CheckpointPart(parts[0].kept.number, _cut(runs, lo, hi), visits, compute, version=1)
        dealt.append(WorkerState(kept, ids[lo:hi], state[lo:hi], halted[lo:hi], extra))
    return dealt


def _cut(runs: list[tuple[int, int]], lo: int, hi: int) -> tuple[tuple[int, int], ...]:
    """The runs of points lo … hi-1, neighbours with the same passes joined."""
    found: list[tuple[int, int]] = []
    at = 0
    for points, passes in runs:
        inside = min(at + points, hi) - max(at, lo)
        at += points
        if inside <= 0:
            continue
        if found and found[-1][1] == passes:
            found[-1] = (found[-1][0] + inside, passes)
        else:
            found.append((inside, passes))
    return tuple(found)
