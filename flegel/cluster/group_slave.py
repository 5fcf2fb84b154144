"""A slave that belongs to one of several groups and changes it while they train (paper 3.2.4).

Reads the loads that groups tell in their bucket, measures the way to each master, and has `flegel.plan.group_choice`
decide. A move hands the points of its workers to others of the old group first, then offers its slots to the new one;
a job gets as many workers as its master has slots, so that two slaves that move at the same time count both. It never
looks at rows or θ.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from flegel.cluster.transport.framing import host_of
from flegel.cluster.transport.protocol import JobView, SlaveView
from flegel.configuration.active import active
from flegel.errors import DecodeError, FlegelError
from flegel.machine.group.records import MEMBERS, MemberBeat, decode
from flegel.machine.group.table import MemberTable
from flegel.plan.group_choice import GroupLoad, choose_group
from flegel.runtime import clock
from flegel.runtime.group.bucket import Bucket
from flegel.runtime.group.keys import RefusedObject, Seal

_log = logging.getLogger(__name__)


class MasterClient(Protocol):
    """The requests that a group slave sends to a master."""

    def jobs(self) -> tuple[JobView, ...]: ...

    def slaves(self) -> tuple[SlaveView, ...]: ...

    def scale(self, name: str, workers: int) -> str: ...


class GroupSlave:
    """One slave process, and the group that it is with."""

    def __init__(
        self,
        masters: Mapping[str, str],
        bucket: Bucket,
        seal: Seal,
        name: str,
        slots: int,
        start: Callable[[str], subprocess.Popen[bytes]],
        client: Callable[[str], contextlib.AbstractContextManager[MasterClient]],
        load: Callable[[MemberBeat], float] = lambda beat: beat.load,
        largest_load: float = math.inf,
    ) -> None:
        """`masters`: address by group. `start`: a slave process for a master. `load`: of a group, by its beat; the way
        to another group is measured only where it is below `largest_load` (paper 3.2.4)."""
        self._masters, self._bucket, self._seal, self._name = dict(masters), bucket, seal, name
        self._slots, self._start, self._client, self._load = slots, start, client, load
        self._largest_load = largest_load
        self._last_update: tuple[int, int, int] | None = None
        """Life, round and barriers of its group when it was looked at last."""
        self._table = MemberTable("", active().groups.slave_silence_seconds, active().groups.slave_silence_seconds)
        self._process: subprocess.Popen[bytes] | None = None
        self.group = ""
        self._staffed = False
        """A running job of its group has had as many workers as there are slots, since this slave joined."""
        self._moved_at = clock.now()
        self.moves: list[tuple[str, str, str]] = []
        """From, to, why."""

    def begin(self, group: str) -> None:
        """Offer the slots to this group."""
        self._attach(group)
        self._moved_at = clock.now()

    def updated(self) -> bool:
        """Its group has made an update of θ since the last time that this was asked; also where it does not tell."""
        self._hear((self.group,))
        beats = [beat for beat in self._table.live() if beat.group == self.group]
        update = (beats[0].life, beats[0].round, beats[0].commits) if beats else None
        before, self._last_update = self._last_update, update
        return update is None or update != before

    def look(self) -> str:
        """Read the loads of all groups, measure the round trips, and move to another group where that is better;
        returns the reason of the decision."""
        if not self._staffed:  # there was no job, or one that was loading and could not be scaled
            with self._asking(self._masters[self.group]) as client:
                self._staff(client)
        groups = self.seen()
        if not groups:
            return "no group tells its load"
        chosen, why = choose_group(self.group, groups, clock.now() - self._moved_at)
        if self.group in groups and groups[self.group].workers <= self._slots:
            return f"{self.group} has no other workers"
        if chosen != self.group:
            _log.info("from group %s to %s: %s", self.group, chosen, why)
            before = self.group
            self._detach()
            self._attach(chosen)
            self._moved_at = clock.now()
            self.moves.append((before, chosen, why))
        elif self._process is not None and self._process.poll() is not None:
            self._attach(self.group)  # its slave has died
        return why

    def seen(self) -> dict[str, GroupLoad]:
        """Loads of its group, and of those that train, are not too busy and whose master accepts a connection."""
        self._hear(self._masters)
        found = {}
        for beat in self._table.live():
            load = self._load(beat)
            if beat.group != self.group and load >= self._largest_load:
                continue
            way = round_trip(self._masters[beat.group])
            if way is not None:
                found[beat.group] = GroupLoad(load, beat.workers, way)
        return found

    def _hear(self, groups: Iterable[str]) -> None:
        """Read the beats of these groups."""
        for group in groups:
            with contextlib.suppress(OSError, RefusedObject, DecodeError):
                held = self._bucket.get(MEMBERS + group)
                if held is not None:
                    beat, _ = decode(self._seal.open(MEMBERS + group, held.content), MemberBeat)
                    self._table.hear(beat, clock.now())

    def _attach(self, group: str) -> None:
        """Start a slave process for the master of this group, and wait until that master lists it."""
        self.group, address = group, self._masters[group]
        self._staffed = False
        self._process = self._start(address)
        until = clock.now() + active().groups.registration_seconds
        with self._asking(address) as client:
            while clock.now() < until and self._process.poll() is None:
                if any(slave.name == self._name and slave.state == "here" for slave in client.slaves()):
                    self._staff(client)
                    return
                clock.sleep(0.2)

    def _detach(self) -> None:
        """Leave the group: the workers here first move their points to other workers of it, where it has any."""
        self.close()
        with self._asking(self._masters[self.group]) as client:
            self._staff(client)

    def _staff(self, client: MasterClient) -> None:
        """Every running job gets as many workers as its master has slots."""
        slots = sum(slave.slots for slave in client.slaves() if slave.state == "here")
        running = [job for job in client.jobs() if job.state == "running"]
        for job in running:
            if slots and job.workers != slots:
                _log.info("%s: %s workers for %s", self.group, slots, job.job)
                client.scale(job.job, slots)
        self._staffed = bool(running)

    @contextlib.contextmanager
    def _asking(self, address: str) -> Iterator[MasterClient]:
        """A client of this master. Its errors are logged and not raised: the slave process connects by itself."""
        try:
            with self._client(address) as client:
                yield client
        except FlegelError as error:
            _log.warning("%s: %s", address, error)

    def close(self) -> None:
        """Let the slave process drain, and wait until it has ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._process = None


def round_trip(address: str) -> float | None:
    """Seconds to open a connection to a master; None where the address accepts none."""
    host, port = host_of(address), int(address.rpartition(":")[2])
    took = []
    for _ in range(active().groups.connections_per_measurement):
        began = clock.now()
        try:
            with socket.create_connection((host, port), timeout=2.0):
                took.append(clock.now() - began)
        except OSError:
            return None
    return min(took)
