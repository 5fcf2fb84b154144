"""Which rows of θ a worker lacks: θ in numbered versions, and what each worker is known to hold. Pure.

Late rounds of k-means with thousands of clusters move few of them, and a worker that holds the θ of its last order
needs only these rows. A version that is not known to be held is never built upon: rows go to workers that have reported
on the very order that brought them the version before, and say which version they change; everybody else is sent all
of θ. A worker that holds another version than that refuses the rows. So a message that is lost, late or doubled cannot
mix two versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flegel.configuration.active import active
from flegel.core.changed_rows import RowsOfStep, differing_rows
from flegel.core.pytree import Array
from flegel.errors import ProtocolError

WHOLE = -1
"""In the place of a version: all of θ is sent."""


class NumberedParameter(NamedTuple):
    """What a worker is sent: θ of this version, or (`since` is not WHOLE) rows in which it differs from that one."""

    version: int
    since: int
    arrays: Sequence[Array]


class ParameterVersions:
    """θ as it was last published, and for each of its rows the version in which it changed last."""

    def __init__(self) -> None:
        self.version = WHOLE
        self._latest: list[Array] = []
        """A copy: a class may write θ into the same array each time."""
        self._changed_in: list[Array] = []
        self._step = -1
        """Of the last θ, where its maker counts them."""

    def publish(self, arrays: Sequence[Array], made: RowsOfStep | None = None) -> int:
        """The version of this θ: that of the last one where no bit differs. Rows are compared where `made` does not
        say which ones differ from the θ that was published last."""
        last_step, self._step = self._step, -1 if made is None else made.step
        if [(a.shape, a.dtype) for a in arrays] != [(a.shape, a.dtype) for a in self._latest]:
            self.version += 1
            self._latest = [np.array(a) for a in arrays]
            self._changed_in = [np.full(len(np.atleast_1d(a)), self.version) for a in arrays]
            return self.version
        saving = active().transport.theta_least_saving
        known: Sequence[Array | None] = [None] * len(arrays)
        if made is not None and made.step == last_step + 1:
            known = made.rows
        changed = [
            differing_rows(new, old) if rows is None else rows
            for new, old, rows in zip(arrays, self._latest, known, strict=True)
        ]
        if any(len(rows) for rows in changed):
            self.version += 1
        for new, old, last, rows in zip(arrays, self._latest, self._changed_in, changed, strict=True):
            if saving * len(rows) > len(last):  # rows one by one take longer than all of them
                np.copyto(old, new)
            else:
                np.atleast_1d(old)[rows] = np.atleast_1d(new)[rows]
            last[rows] = self.version
        return self.version

    def since(self, version: int) -> tuple[Array, ...] | None:
        """Rows that changed after that version: their numbers, counted through all fields, then those of each field.
        None where all of θ is hardly longer."""
        rows = [np.flatnonzero(last > version) for last in self._changed_in]
        whole = sum(a.nbytes for a in self._latest)
        some = sum(
            # 8 bytes: the number of a row.
            len(r) * (a.nbytes // max(len(np.atleast_1d(a)), 1) + 8)
            for r, a in zip(rows, self._latest, strict=True)
        )
        if active().transport.theta_least_saving * some > whole:
            return None
        fields = tuple(np.atleast_1d(a)[r] for a, r in zip(self._latest, rows, strict=True))
        return (np.concatenate([r + first for r, first in zip(rows, _firsts(self._latest), strict=True)]), *fields)


class ParameterChanges:
    """The coordinator's side: what to send to which worker. Events: `order`, `reported`, `forget`."""

    def __init__(self) -> None:
        self._versions = ParameterVersions()
        self._published: object = None
        self._sent: dict[int, tuple[int, int]] = {}
        """By worker: round and version of the last order, which it has not reported on yet."""
        self._held: dict[int, int] = {}
        """By worker: the version that it is known to hold."""
        self._made: dict[int, tuple[Array, ...] | None] = {}
        """By version: what changed since then, made once for all workers that hold it."""

    def order(
        self, worker: int, round_: int, theta: Sequence[Array], made: RowsOfStep | None = None
    ) -> NumberedParameter:
        """θ of a round for this worker. The same object as `theta` is the same θ; `made`: what its maker says of it."""
        if theta is not self._published:
            self._versions.publish(theta, made)
            self._published, self._made = theta, {}
        version, since = self._versions.version, self._held.pop(worker, WHOLE)
        self._sent[worker] = (round_, version)
        if since != WHOLE:
            if since not in self._made:
                self._made[since] = self._versions.since(since)
            if (rows := self._made[since]) is not None:
                return NumberedParameter(version, since, rows)
        return NumberedParameter(version, WHOLE, theta)

    def reported(self, worker: int, round_: int) -> None:
        """The worker has trained in this round, so it holds what the order of that round brought."""
        sent = self._sent.get(worker)
        if sent is not None and sent[0] == round_:
            del self._sent[worker]
            self._held[worker] = sent[1]

    def forget(self, worker: int) -> None:
        """It is lost, or got θ in another way."""
        self._sent.pop(worker, None)
        self._held.pop(worker, None)


class HeldParameter:
    """A worker's side: θ of the last order that had a number."""

    def __init__(self) -> None:
        self._version = WHOLE
        self._arrays: tuple[Array, ...] = ()

    def take(self, version: int, since: int, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """θ of an order. Raises `ProtocolError` where rows change a θ that is not here. The arrays of the last θ stay
        as they are, because somebody may train under it still."""
        if since != WHOLE:
            if since != self._version:
                raise ProtocolError(f"Rows of θ change version {since}, and version {self._version} is here.")
            arrays = with_changes(self._arrays, arrays)
        self._version, self._arrays = (version, arrays) if version != WHOLE else (WHOLE, ())
        return arrays


def with_changes(arrays: Sequence[Array], changes: Sequence[Array]) -> tuple[Array, ...]:
    """Copies of these arrays with rows as `ParameterVersions.since` gives them; `ProtocolError` where they do not
    fit."""
    numbers, fields = changes[0], changes[1:]
    firsts = _firsts(arrays)
    ends = [first + len(np.atleast_1d(a)) for first, a in zip(firsts, arrays, strict=True)]
    cuts = [0, *np.cumsum([len(field) for field in fields if field.ndim]).tolist()]
    sound = numbers.ndim == 1 and numbers.dtype.kind == "i" and len(fields) == len(arrays) == len(cuts) - 1
    if not sound or cuts[-1] != len(numbers):
        raise ProtocolError("Rows of θ came in a form that does not fit.")
    found = []
    for at, (old, field) in enumerate(zip(arrays, fields, strict=True)):
        rows = numbers[cuts[at] : cuts[at + 1]]
        inside = not len(rows) or (int(rows.min()) >= firsts[at] and int(rows.max()) < ends[at])
        if not inside or field.shape[1:] != np.atleast_1d(old).shape[1:] or field.dtype != old.dtype:
            raise ProtocolError("Rows of θ came in a form that does not fit.")
        new = np.array(old) if len(rows) else old
        if len(rows):
            np.atleast_1d(new)[rows - firsts[at]] = field
            new.flags.writeable = False
        found.append(new)
    return tuple(found)


def _firsts(arrays: Sequence[Array]) -> list[int]:
    """The number of the first row of each field, counted through all fields."""
    return [0, *np.cumsum([len(np.atleast_1d(a)) for a in arrays]).tolist()[:-1]]
