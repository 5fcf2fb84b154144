"""The whole vocabulary of the wire: small typed headers; arrays travel beside them as raw frames.

A closed set: what is not listed here is rejected by the decoder. No message carries code to be executed except
`LoadShard`, whose source runs only in the job's own worker processes, and nothing is ever unpickled.
"""

from __future__ import annotations

from typing import Any

import msgspec

from flegel.job import AlgorithmRef
from flegel.server_messages import ServerAnswer, ServerBetween, ServerOrder


class _Message(msgspec.Struct, forbid_unknown_fields=True, tag=True):
    """What all messages have in common: a tag, and no field that is not declared."""


# -- coordinator to worker ---------------------------------------------------------------------------------


class TreeLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shape of a bundle of arrays: the name of its tuple and its fields; no fields for a bare array."""

    name: str
    fields: tuple[str, ...]


class MeasureMoments(_Message):
    """Read your rows and tell their moments, column by column; keep them for the `LoadShard` that follows."""

    source: dict[str, Any]
    index: int
    count: int
    seed: int


class LoadShard(_Message):
    """Take this share and get the kernel ready. Frames: θ, then statistics of zeros, then, where `scaled`, what to
    subtract from each column and what to multiply it with. `source`: where rows are (runtime/worker/row_sources.py)."""

    algorithm: AlgorithmRef
    source: dict[str, Any]
    index: int
    count: int
    seed: int
    parameter: TreeLayout
    statistics: TreeLayout
    interpret: bool = False
    scaled: bool = False
    straggler: str = ""
    """Slowness made on purpose (see plan/stragglers.py)."""
    elapsed: float = 0.0
    """Seconds that the job has trained before, for slowness that comes and goes."""
    kept: CheckpointPart | None = None
    """A resumed job: these points with these states, in the frames behind all others as in `CheckpointPart`."""
    empty: bool = False
    """Get the kernel ready, but own nothing: points will be handed over (`AssignPoints`)."""
    shared_buffers: SharedBufferRef | None = None
    """Large arrays may be read and written there instead of travelling; filled in where workers share a host."""
    audit: bool = False
    """Keep a checksum of what is reported, for `AuditPoints`."""
    lend: bool = False
    """Put the share where other workers of this host can read it, because points may move."""
    replicated: bool = False
    """Keep θ and the statistics here, and merge reports with the other workers (`ReduceReports`)."""
    device: str = "cpu"
    """What computes: cpu, cuda:0, ... (see runtime/backends/registry.py)."""
    version: int = -1
    """Servers hold θ: the version of the θ that comes with this; -1: the coordinator holds it."""
    forms: tuple[FrameSpec, ...] = ()  # of large statistics, and of θ where servers send it: they do not come with this
    alone: bool = False  # no other worker contributes to θ: this one may make it between barriers (`local_updates`)
    growing: bool = False  # it may begin with a part of its points, which lie in random order (`growing_part`)
    threads: int = 0  # of a team, which train as one worker (`runtime/backends/numba/team.py`); 0: no team
    expensive: str = "fail"  # what becomes of a visit that keeps others waiting: fail, abandon or retry
    point_seconds: float = 0.0  # the longest visit of a point, where it may be abandoned
    fixed_blocks: bool = False  # the sums of a team do not depend on its number of threads
    settings: dict[str, float] = {}
    """Tuned numbers of this job that differ from the defaults, by full name (flegel/configuration)."""

    @property
    def theta_on_servers(self) -> bool:
        """Parameter servers hold θ, not the coordinator."""
        return self.version >= 0


class Train(_Message):
    """Train from your cursor under θ (the frames) until `points` are done, `seconds` are over or Stop comes."""

    round: int
    points: int
    seconds: float | None = None
    linger: bool = False
    """After the report, go on under the same θ until the next order; that is part of the next report."""
    version: int = -1
    """θ comes from the servers, in this version or a later one; -1: it comes with this."""
    number: int = -1
    """Of a large θ: keep it under this number (params/parameter_changes.py)."""
    since: int = -1
    """The frames are rows in which θ differs from that of this number; -1: they are all of θ."""
    cursor: str = ""
    """`mark` the place in the order of visits, or `rewind` to it: points visited since then come first again."""


class Stop(_Message):
    """The flexible barrier: commit what you have."""

    round: int


class HoldReplica(_Message):
    """With replicas of θ: from now on this is θ (the first frames) and the sum of all statistics (the frames after)."""

    parameter: TreeLayout
    statistics: TreeLayout


class ReduceReports(_Message):
    """With replicas of θ: add the reports that were made since the last fold to the statistics, together with the other
    workers, and where `update` make θ anew; answer `Reduced`."""

    fold: int
    round: int
    place: str
    members: tuple[tuple[int, str], ...]
    """All that take part, in the order of their numbers, and where they listen."""
    reporting: tuple[int, ...]
    """Those of them whose reports count, in the order in which they are added."""
    update: bool


class DropFold(_Message):
    """A worker that takes part is lost: leave this fold, and keep the reports for another one."""

    fold: int


class ReceivePoints(_Message):
    """Get ready for about so many points from another worker; answer `MoveReady` or `MoveRefused`."""

    move: int
    source: int
    points: int


class SendPoints(_Message):
    """Send about so many points to the worker that listens at `address`."""

    move: int
    target: int
    address: str
    points: int


class TransferOwnership(_Message):
    """Ownership changes, at this barrier: windows (move, number) that you gave or took, and moves that end here."""

    given: tuple[tuple[int, int], ...] = ()
    taken: tuple[tuple[int, int], ...] = ()
    closed: tuple[int, ...] = ()


class ListPoints(_Message):
    """Which of all the `rows` are yours? Answer `PointsListed`."""

    rows: int


class ResetPoints(_Message):
    """All your points count as never visited, for their statistics were subtracted; drop what is not committed."""


class GiveUpPoints(_Message):
    """Give up so many of your points (0: all); answer `PointsGivenUp`."""

    points: int = 0


class AssignPoints(_Message):
    """These points are yours from now on: read them where all rows are, answer `PointsAssigned`. Frames: ids; where
    `visited`, also hidden states, votes, passes, and which of them count as never visited.

    Points that are not `visited` count as traversed `passes` times where you have none to compare with.
    """

    visited: bool = False
    passes: int = 0


class FetchStates(_Message):
    """Send the hidden state of your points."""


class TakeCheckpoint(_Message):
    """A checkpoint: copy what you hold before you train on, and send it as `CheckpointPart`."""

    number: int


class AuditPoints(_Message):
    """Compare the statistics with the points. The frames are θ. Answer `PointsAudited`."""

    number: int
    """Of this audit; it chooses which points are visited again."""
    points: int
    """How many points are visited again; 0: all, and their statistics under θ, as if never visited, are sent."""


class ReleaseJob(_Message):
    """The job is over: forget the share, stay alive."""


class Exit(_Message):
    """End the process."""


# -- worker to coordinator ---------------------------------------------------------------------------------


class Hello(_Message):
    """A worker process is up."""

    pid: int
    host: str


class ShardLoaded(_Message):
    """The share is in place and the kernel is warm."""

    points: int
    columns: int
    kernel: str
    note: str
    seconds: float
    shared_buffers: bool = False  # this worker has opened the shared buffers that `LoadShard` named
    room: int = 0  # points that the memory of its device can hold; 0: not known
    library: str = ""
    """Name and version of the library that computes, where all workers must have the same."""
    address: str = ""
    """Where the other workers send their parts of a fold, where θ is replicated."""


class MomentsMeasured(_Message):
    """Moments of the rows of a share (see datasets/rows/scale.py), as frames."""


class Report(_Message):
    """A commit: the frames are the change of statistics since the last report; with `sparse` the numbers of the rows
    that changed, then these rows of each field (core/changed_rows.py)."""

    round: int
    visits: int
    exhausted: bool
    """All points asked for were done before any stop."""
    unseen: int
    """Points that have not been visited even once."""
    halted: int
    compute: float
    """Seconds inside the kernel since the last report."""
    respond: float
    """Seconds between being told (to train, to stop) and doing so."""
    wait: float
    """Seconds between the last report and the order to go on."""
    sparse: bool = False
    call: float = 0.0
    """Seconds that each call of a library takes besides its visits; 0 where that is not known."""
    abandoned: int = 0
    """Visits that were abandoned since the last report, because a point was too expensive."""
    caught_up: int = 0
    """Of the visits, those of points that were more than one pass behind others of this worker."""
    local_updates: bool = False
    """The worker makes θ anew by itself between barriers."""


class Reduced(_Message):
    """This worker's copy of θ and of the statistics holds the fold. Frames, from the first member only: both."""

    fold: int
    digest: int
    """Of all bits of θ and of the statistics; the same on every worker."""
    objective: float | None = None
    diverged: str = ""


CLASS_MODULE_CODE = "the module of the class"
"""The hook of a beat while the code around the class runs, which it does when the class is loaded."""


class WorkerBeat(_Message):
    """I am alive, and my trainer has visited so many points in all."""

    visits: int
    hook: str = ""
    """The hook that it is in now; empty while it rests, reads or compiles."""


class MoveReady(_Message):
    """I listen for the windows of this move."""

    move: int
    address: str


class MoveRefused(_Message):
    """I cannot take or give these points."""

    move: int
    why: str


class WindowArrived(_Message):
    """A window lies here, inactive, until the next barrier makes it mine."""

    move: int
    number: int
    points: int
    passes: int
    halted: int
    bytes: int


class MoveSent(_Message):
    """The source has no more to send: the move has so many windows in all."""

    move: int
    windows: int


class PointsSummary(_Message):
    """What a worker holds after it did as told."""

    points: int
    unseen: int
    """Points that were never visited."""
    halted: int
    """Points that voted to halt."""
    pass_sum: int
    """Passes summed over its points."""


class PointsListed(PointsSummary):
    """Frame: one bit for each of all rows, set where the row is mine."""


class PointsGivenUp(PointsSummary):
    """Frames: numbers, hidden states, votes, passes of the points that I gave up, and which count as never visited."""


class PointsAssigned(PointsSummary):
    """The points are here."""


class States(_Message):
    """The hidden state of the worker's points (frame 0) and their numbers in the whole data (frame 1)."""


class CheckpointPart(_Message):
    """What a worker holds at a checkpoint. Frames: state and halting votes of its points, their numbers in the whole
    data (nothing where they are those that it sent last), then the changes that it has not reported yet, if any.
    """

    number: int
    runs: tuple[tuple[int, int], ...]
    """Points in their order: so many with so many passes."""
    visits: int = 0
    compute: float = 0.0
    """What belongs to changes that were not reported."""
    version: int = 0
    """How often points came or went; 0: the share is as it was loaded."""


class PointsAudited(_Message):
    """What an audit found here. Frames, where all points were counted again: their statistics."""

    number: int
    points: int
    id_checksum: int
    """Checksum of the ids of the points (machine/audit/owned_numbers.py)."""
    reported: tuple[float, ...]
    """The checksum of everything that was reported (machine/worker/checksums.py)."""
    visit_error: float
    """Relative difference between a visit under θ(0) followed by one under θ, and a visit under θ alone; 0: none."""
    seconds: float = 0.0


class WorkerFailed(_Message):
    """A hook or the loading raised; `trace` is the user's own traceback."""

    where: str
    round: int
    error: str
    trace: str
    usage: bool = False
    """The request itself was wrong, so the caller can fix it."""


# -- worker to worker --------------------------------------------------------------------------------------


class SharedMemoryRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array in shared memory of a host: which process has it open as what, and where in it the array lies."""

    pid: int
    fd: int
    name: str
    offset: int
    dtype: str
    shape: tuple[int, ...]


class SharedBufferRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shared memory of a host for the arrays of messages (runtime/transport/shared_buffers.py), as rows of bytes."""

    orders: SharedMemoryRef
    """Rooms that all workers read."""
    reports: SharedMemoryRef
    """Rooms that this worker writes."""


class SharedPointsRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share that a window is a part of, as it lies in the source's memory, and where the window begins in it."""

    start: int
    points: int
    ids: SharedMemoryRef
    features: tuple[SharedMemoryRef, ...]
    """One array, or the three of sparse rows."""
    labels: SharedMemoryRef | None = None
    """None where all are zero."""
    state: SharedMemoryRef | None = None
    """None where the states lie in private memory: then they travel."""
    weights: SharedMemoryRef | None = None
    """None where every point weighs 1."""


class Window(_Message):
    """Points on their way. Frames: state, unless it is shared, halted, then, unless the target has a copy or the points
    are shared, labels, ids, features and, where the data have them, weights.

    With `changed`, frame 0 says (one bit a point) whose state differs from that of the last exchange between these
    two workers, and the next frame holds the states of those points.
    """

    move: int
    number: int
    block: tuple[int, int]
    points: int
    passes: int
    copied: bool = False
    """The target has these points already, inactive: no labels, ids and features."""
    changed: bool = False
    lent: SharedPointsRef | None = None
    """Both workers are on one host: the points stay where they are, and the target reads them there. With `copied`, of
    that only the states."""


class StatisticsPiece(_Message):
    """A slice of statistics, on the way between two workers that fold reports. Frames: that slice of each field.

    Not `summed`: what the sender reported, for the worker that adds up this slice; else the new sum, for everybody.
    """

    fold: int
    summed: bool


class WindowReceived(_Message):
    """The window lies here; `lacking`: I cannot see the points that you thought I could, send them."""

    move: int
    number: int
    lacking: bool = False


# -- worker to the process that serves the rows, and back ----------------------------------------------------


class ReadRows(_Message):
    """Send me rows `start` to `stop` of an array; or, where a frame comes with it, the rows of those numbers."""

    array: int
    number: int
    start: int
    stop: int


class RowsRead(_Message):
    """The rows that were wanted under this number, as a frame; or why there are none."""

    number: int
    error: str = ""


# A new message joins one of these unions, or one of those of server_messages.py; tests/runtime/test_wire.py checks it.
ReassignmentOrder = ListPoints | ResetPoints | GiveUpPoints | AssignPoints
Order = (
    MeasureMoments
    | LoadShard
    | ServerOrder
    | Train
    | Stop
    | HoldReplica
    | ReduceReports
    | DropFold
    | ReceivePoints
    | SendPoints
    | TransferOwnership
    | ReassignmentOrder
    | FetchStates
    | TakeCheckpoint
    | AuditPoints
    | ReleaseJob
    | Exit
)
Answer = (
    Hello
    | MomentsMeasured
    | ShardLoaded
    | Report
    | Reduced
    | WorkerBeat
    | MoveReady
    | MoveRefused
    | WindowArrived
    | MoveSent
    | PointsListed
    | PointsGivenUp
    | PointsAssigned
    | States
    | CheckpointPart
    | PointsAudited
    | WorkerFailed
    | ServerAnswer
)
PeerMessage = Window | WindowReceived | StatisticsPiece | ReadRows | RowsRead | ServerBetween
Body = Order | Answer | PeerMessage


class FrameSpec(msgspec.Struct, frozen=True, array_like=True):
    """How to read a raw frame."""

    dtype: str
    shape: tuple[int, ...]


NO_FRAMES = msgspec.Raw(msgspec.msgpack.encode(()))


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What fences a message: which job, which coordinator's epoch, which life of the worker, which number."""

    job: str
    epoch: int
    worker: int
    incarnation: int
    sequence: int
    body: Body
    frames: msgspec.Raw = NO_FRAMES
    """A `FrameSpec` for each array, packed: a receiver has mostly read the same description before
    (runtime/transport/codec.py)."""
    slot: int = -1
    """The arrays do not follow, they are in this slot of the shared buffers."""
