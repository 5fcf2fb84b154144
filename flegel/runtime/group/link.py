"""The thread that synchronizes a group beside training: carries out the commands of its state machine on the bucket.

Owns the machine; the coordinator's thread only leaves offers and takes news, and never waits. Calls to the store run in
a few threads of their own, so that beats go on while a large object travels; one that hangs does not keep the process
from ending. Decides nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial

import msgspec

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.errors import in_words
from flegel.machine.group.events import (
    Answered,
    DeleteObject,
    Excluded,
    FromGroup,
    GetObject,
    GroupEvent,
    Hinted,
    ListObjects,
    Offered,
    PutObject,
    Remark,
    SendHint,
    SitesSeen,
    Stalled,
    StatusChanged,
    StoreCommand,
    Synchronized,
    TimePassed,
    ToCoordinator,
    ToGroup,
)
from flegel.machine.group.group import Group
from flegel.params.gate import Gate, what_to_do
from flegel.runtime import clock
from flegel.runtime.group.bucket import Bucket, Conflict
from flegel.runtime.group.keys import RefusedObject, Seal
from flegel.runtime.group.peers import GroupMessenger
from flegel.runtime.group.store_threads import StoreThreads

KEPT_ROUND_TIMES = 1000  # rounds

_log = logging.getLogger(__name__)


class GroupLink:
    """Between a coordinator and its group. `start` it, `close` it."""

    def __init__(
        self,
        machine: Group,
        bucket: Bucket,
        seal: Seal,
        silence: float,
        gate: Gate | None = None,
        score: Callable[[Offered], float] | None = None,
        peers: GroupMessenger | None = None,
    ) -> None:
        """`score`: how good a model is, by data that were not trained on; where there is a gate."""
        self._peers = peers
        self._machine, self._bucket, self._seal, self._silence = machine, bucket, seal, silence
        self._gate, self._score = gate, score
        self._events: queue.SimpleQueue[GroupEvent | None] = queue.SimpleQueue()
        self._group_news: deque[FromGroup] = deque()
        self._store_threads = StoreThreads(active().groups.concurrent_store_calls)
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name="flegel-group", daemon=True)
        self._looked_at: float | None = None
        self._closing_at = 0.0
        self.bytes_sent = self.bytes_received = 0
        self.requests = 0
        self._last_offer: tuple[int, float] = (0, 0.0)
        self.rounds: deque[tuple[int, float, float]] = deque(maxlen=KEPT_ROUND_TIMES)
        """Round, and when this group contributed to it and had its result; training goes on meanwhile."""
        self.refused: list[str] = []
        """Sentences about objects that were refused."""

    @property
    def base(self) -> list[Array]:
        """Additive fields of θ after the last result."""
        return self._machine.base

    @property
    def messages_received(self) -> int:
        """Beats that came directly."""
        return self._peers.received if self._peers is not None else 0

    def start(self) -> None:
        self._store_threads.start()
        self._thread.start()
        self._events.put(TimePassed())

    # -- the coordinator's thread --------------------------------------------------------------------------

    def take(self, command: ToGroup) -> None:
        self._events.put(command.body)

    def hinted(self, content: bytes) -> None:
        """A beat came directly; called from the thread that receives."""
        self._events.put(Hinted(content))

    def arrivals(self) -> list[FromGroup]:
        """News since the last look; to look is also the coordinator's sign of life."""
        self._looked_at = clock.now()
        found: list[FromGroup] = []
        while self._group_news:
            found.append(self._group_news.popleft())
        return found

    def close(self, state: str) -> None:
        """Say how the group ended, and stop; waits for the last beat, but not for long."""
        if self._closing_at:
            return
        self._closing_at = clock.now()
        if self._thread.is_alive():
            self._events.put(StatusChanged(state))
            self._thread.join(active().groups.last_beat_seconds + 1.0)
        self._store_threads.close()

    # -- its own thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        """The thread of a group, until the job closes it. Whatever goes wrong in it, the job must not wait for ever."""
        try:
            self._synchronize()
        except Exception as error:  # noqa: BLE001 - told until the job ends, without the other groups
            _log.error("the exchange with other groups has failed", exc_info=error)
            self._tell_failed(f"the exchange with other groups has failed ({in_words(error)})")
        if self._peers is not None:
            self._peers.close()

    def _tell_failed(self, why: str) -> None:
        """A group at rest ends by this; one that trains is told again when it has come to rest. Others see silence."""
        self._tell(Remark(why))
        while not self._closing_at:
            self._tell(Stalled(why))
            with contextlib.suppress(queue.Empty):
                self._events.get(timeout=1.0)

    def _synchronize(self) -> None:
        """Pass events and the time to the machine until the job closes it and its last beat is written."""
        while not (
            self._closing_at
            and (self._machine.over or clock.now() - self._closing_at > active().groups.last_beat_seconds)
        ):
            now = clock.now()
            event: GroupEvent | None = None
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=max(0.001, min(self._machine.next_at(now) - now, 1.0)))
            self._handle(event or TimePassed())

    def _handle(self, event: GroupEvent) -> None:
        """Hand an event to the group and carry out its commands; store calls run in threads and answer as events."""
        now = clock.now()
        if type(event) is TimePassed and self._looked_at is not None and now - self._looked_at > self._silence / 2:
            return  # the coordinator does not look any more: no sign of life either
        if type(event) is Offered and (judged := self._judged(event)) is not None:
            event = judged
        if type(event) is Offered:
            self._last_offer = (event.round, now)
        if type(event) is StatusChanged and hasattr(os, "getloadavg"):
            event = StatusChanged(event.state, event.commits, event.workers, os.getloadavg()[0])
        for command in self._machine.handle(event, now):
            if isinstance(command, StoreCommand):
                self.requests += 1
                self._store_threads.submit(partial(self._call, command))
            elif isinstance(command, SendHint):
                if self._peers is not None:
                    self._peers.send(self._machine.name, command.content, self._machine.table.addresses())
            else:
                self._tell(command)

    def _tell(self, news: ToCoordinator) -> None:
        if isinstance(news, Synchronized) and news.round == self._last_offer[0] and news.included:
            self.rounds.append((*self._last_offer, clock.now()))
        if isinstance(news, SitesSeen):
            sent, received = self.bytes_sent, self.bytes_received
            news = SitesSeen(msgspec.structs.replace(news.seen, bytes_sent=sent, bytes_received=received))
        if isinstance(news, Remark):
            self.refused.append(news.text)
            _log.warning(news.text)
        self._group_news.append(FromGroup(news))

    def _judged(self, offer: Offered) -> Offered | None:
        """The offer without its content where the model is not good enough to be sent."""
        if self._gate is None or self._score is None or offer.settled:
            return None
        try:
            score = self._score(offer)
        except Exception as error:  # noqa: BLE001 - whatever a hook raises must not end the group's thread
            why = f"the gate cannot score its model ({in_words(error)})"
            self._tell(Excluded(f"this group is excluded: {why}"))
        else:
            if self._gate.passes(score):
                return None
            why = self._gate.why(score)
            if self._gate.excluded:
                self._tell(
                    Excluded(f"this group is excluded: {self._gate.failures} times in a row {why}; {what_to_do()}")
                )
        text = f"nothing was sent to round {offer.round}: {why}"
        if text not in self.refused[-1:]:
            self._tell(Remark(text))
        return Offered(offer.round, (), (), 0.0, 0, settled=False, objective=None, commits=offer.commits)

    def _call(self, command: StoreCommand) -> None:
        self._events.put(self._answer(command))

    def _answer(self, command: StoreCommand) -> Answered:
        """Carry out one call to the store. Never raises: every failure is an answer, and the group tries again."""
        bucket, op = self._bucket, command.op
        try:
            match command:
                case GetObject(_, key, largest):
                    found = bucket.get(key, largest)
                    if found is None:
                        return Answered(op, "absent")
                    self.bytes_received += len(found.content)
                    try:
                        return Answered(op, "done", self._seal.open(key, found.content), found.tag)
                    except RefusedObject as refused:
                        return Answered(op, "refused", why=str(refused), tag=found.tag)
                case PutObject(_, key, content, mode, expected):
                    sealed = self._seal.seal(key, content)
                    self.bytes_sent += len(sealed)
                    return Answered(op, "done", tag=bucket.put(key, sealed, mode, expected))
                case ListObjects(_, prefix):
                    return Answered(op, "done", names=tuple(bucket.names(prefix)))
                case DeleteObject(_, key):
                    bucket.delete(key)
                    return Answered(op, "done")
        except Conflict:
            return Answered(op, "conflict")
        except RefusedObject as refused:
            return Answered(op, "refused", why=str(refused), tag=refused.tag)
        except OSError as error:
            _log.info("bucket: %s", error)
            return Answered(op, "failed", why=in_words(error))
        except Exception as error:  # noqa: BLE001 - a library's own error must not end the group's thread
            _log.warning("bucket: %s", error, exc_info=error)
            return Answered(op, "failed", why=str(error))
