"""Messages to, from and between parameter servers: small typed headers, arrays beside them as raw frames.

They are part of the closed set of `messages.py`. A slice is named by its number in the job's map; `op` counts what the
coordinator had the servers do, in order; `version` counts the θ that came out of it.

Frames of slices: first the rest fields (those that are not cut), once; then for each slice its cut fields.
"""

from __future__ import annotations

import msgspec

from flegel.job import AlgorithmRef


class _ServerMessage(msgspec.Struct, forbid_unknown_fields=True, tag=True):
    """What all messages of servers have in common."""


# -- coordinator to servers and workers --------------------------------------------------------------------


class ServeJob(_ServerMessage):
    """Be a parameter server: get the class ready and listen; answer `ServerReady`. Of θ and of the statistics: the name
    of the bundle and its fields."""

    algorithm: AlgorithmRef
    parameter: tuple[str, tuple[str, ...]]
    statistics: tuple[str, tuple[str, ...]]
    debug: bool = False
    large: bool = False
    """Slices have megabytes: their memory goes back to the system when they are replaced."""
    settings: dict[str, float] = {}
    """As in `LoadShard`."""


class ServerMap(_ServerMessage):
    """Who holds which slice from now on."""

    version: int
    slices: tuple[tuple[int, int], ...]
    """First unit of each slice, and the one behind its last."""
    parameter: tuple[int, ...]
    """The axis along which each field of θ is cut; -1: it is not."""
    sent: tuple[int, ...]
    """The same for those fields of θ that workers get."""
    statistics: tuple[int, ...]
    primary: tuple[int, ...]
    """The server of each slice."""
    backups: tuple[tuple[int, ...], ...]
    """The servers that hold a copy of each slice."""
    addresses: dict[int, str]
    cut: int = 1
    """The first map with these slices: what belongs to an earlier one names other slices by the same numbers."""


class HoldSlices(_ServerMessage, rename={"owners_known": "known"}):
    """Serve these slices from this state on. Frames, for each slice: all fields of its θ, then of its statistics,
    without those that are zero."""

    slices: tuple[int, ...]
    op: int
    version: int
    owners: tuple[int, ...] = ()
    """Workers that share one account of these statistics."""
    owners_known: bool = True
    """Whether these statistics are the account that the owners share. If not, accounts are unknown until the
    coordinator has all owners share one."""
    rounds: dict[int, int] = {}
    """By worker: the last round that is in these statistics."""
    zero: dict[int, tuple[tuple[int, ...], str]] = {}
    """As in `ReplicateSlices`."""


class FoldSlices(_ServerMessage):
    """Add these reports in this order, then make θ anew where `update`."""

    op: int
    version: int
    reports: tuple[tuple[int, tuple[int, ...]], ...]
    """Worker, and the rounds whose changes are added up to one."""
    update: bool
    receivers: tuple[int, ...]
    """Workers that are sent the new θ."""
    place: str = ""
    only: tuple[int, ...] = ()
    """Repeated for these slices; all by default."""


class ExpectReports(_ServerMessage):
    """These workers train now, and their reports will probably be the next fold: slices that are complete may be folded
    on the side and sent to the receivers, under a version that nothing else will have."""

    after: int
    """The last op before that fold."""
    version: int
    reports: tuple[tuple[int, tuple[int, ...]], ...]
    receivers: tuple[int, ...]
    place: str = ""


class ChangeAccounts(_ServerMessage):
    """Change the accounts of owners, or the statistics: join, detach, forget, retire, share, clear."""

    op: int
    kind: str
    owners: tuple[int, ...] = ()
    only: tuple[int, ...] = ()


class ReplaceParameter(_ServerMessage):
    """Continue with another θ: rest fields, then the cut fields of the slices in `slices`."""

    op: int
    version: int
    slices: tuple[int, ...]
    receivers: tuple[int, ...]


class AbandonFold(_ServerMessage):
    """Parts of reports of this fold are lost for ever: it ends without them, and all points will be counted again."""

    op: int


class CombinedSummary(_ServerMessage):
    """The frame: the summaries of all slices, one behind the other, for the fold `op`."""

    op: int


class AnswerSeen(_ServerMessage):
    """The coordinator has taken a large answer: the next one may follow."""


# -- servers to the coordinator ----------------------------------------------------------------------------


class ServerReady(_ServerMessage):
    """The class is loaded, and others can dial this address."""

    address: str
    host: str = ""
    """The name of the host, as in `Hello`: processes of one host share its link."""


class SlicesFolded(_ServerMessage):
    """These slices have done `op`. Frames: rest of θ, rest of the kept statistics, then the cut fields of both by
    slice."""

    op: int
    slices: tuple[int, ...]
    diverged: str = ""
    gap: float = 0.0
    """Largest relative difference between the statistics and the sum over owners."""
    lost: str = ""
    """Why the statistics of these slices cannot be right any more."""
    paced: bool = False
    """The coordinator acknowledges it with `AnswerSeen`."""


class SliceSummaries(_ServerMessage):
    """A frame for each slice: what updates of other slices need to know of it."""

    op: int
    slices: tuple[int, ...]


class SlicesStable(_ServerMessage):
    """All backups of the map hold these slices as they were after `op`."""

    op: int
    slices: tuple[int, ...]
    map: int


class SlicesTaken(_ServerMessage):
    """The sender holds these slices by the new map; the state that it has of each, -1: none."""

    map: int
    slices: tuple[tuple[int, int], ...]


class TransfersSeen(_ServerMessage):
    """From servers and from workers: what arrived since the last of these. Sender, receiver, bytes, and when it began
    and ended, in seconds since the first of them was announced."""

    transfers: tuple[tuple[int, int, int, float, float], ...]


# -- workers and servers -----------------------------------------------------------------------------------


class PushSlices(_ServerMessage):
    """The part of a report that this server is to have. Frames: rest fields, then those of the slices in `slices`."""

    round: int
    map: int
    slices: tuple[int, ...]
    zero: tuple[int, ...] = ()
    """Slices in which nothing has changed; they have no frames."""
    picked: tuple[int, ...] = ()
    """Slices of which only some units are sent; their first frame has the numbers of these."""


class TransferAnnounced(_ServerMessage):
    """Data follow at once: the receiver times them from now on (003, Section 3.2)."""


class PushStored(_ServerMessage):
    """These slices of the report are here. `map`: the newest one that the server knows."""

    round: int
    slices: tuple[int, ...]
    map: int


class PullSlices(_ServerMessage):
    """Send me θ of these slices, of that version or a later one. Without slices: I am here."""

    version: int
    slices: tuple[int, ...] = ()


class ParameterSlices(_ServerMessage):
    """θ. Frames: rest fields, then those of each slice, without the fields that workers do not need."""

    version: int
    slices: tuple[int, ...]
    stable: int = -1
    """The last round of this worker that backups hold in these slices."""
    map: int = 0
    """The newest one that the server knows."""
    cut: int = 1
    """As in `ServerMap`."""
    early: bool = False
    """The fold has not been ordered yet: use it when the coordinator asks for this very version."""


# -- servers to servers ------------------------------------------------------------------------------------


class ReplicateSlices(_ServerMessage):
    """Keep copies of these slices as they are after `op`. Frames as in `HoldSlices`, without those that are zero."""

    op: int
    map: int
    slices: tuple[int, ...]
    versions: tuple[int, ...]
    rounds: dict[int, int] = {}
    zero: dict[int, tuple[tuple[int, ...], str]] = {}
    """Place among all frames, shape and type of each that is left out."""


class ReplicaStored(_ServerMessage):
    """The sender has stored these copies."""

    op: int
    map: int
    slices: tuple[int, ...]


ServerOrder = (
    ServeJob
    | ServerMap
    | HoldSlices
    | ExpectReports
    | FoldSlices
    | ChangeAccounts
    | ReplaceParameter
    | AbandonFold
    | CombinedSummary
    | AnswerSeen
)
ServerAnswer = ServerReady | SlicesFolded | SliceSummaries | SlicesStable | SlicesTaken | TransfersSeen
ServerBetween = (
    PushSlices | PushStored | PullSlices | ParameterSlices | ReplicateSlices | ReplicaStored | TransferAnnounced
)
