"""Frames from jobs to pages. A page that is slow or dead costs a job nothing: its queue is bounded.

A page whose queue was full has missed frames; they are counted, and it then gets the whole history anew. Called from
any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import msgspec

from flegel.dashboard.frames import Frame, RunHistory

MAX_QUEUED_FRAMES = 256  # for one page: about a minute of a job


class Subscription:
    """One page."""

    def __init__(self, hub: Hub, wake: Callable[[], None]) -> None:
        self._hub, self._wake = hub, wake
        self._frames: deque[bytes] = deque()
        self._has_gap, self.dropped = True, 0

    def put(self, frame: bytes) -> None:
        """Queue a frame for this page. Called under the hub's lock."""
        if self._has_gap:
            self.dropped += 1
        elif len(self._frames) >= MAX_QUEUED_FRAMES:
            self.dropped += len(self._frames) + 1
            self._frames.clear()
            self._has_gap = True
        else:
            self._frames.append(frame)
        self._wake()

    def take(self) -> list[bytes]:
        """What waits; the whole history where this page is new or has missed something."""
        with self._hub.lock:
            if self._has_gap:
                self._has_gap = False
                self._frames.clear()
                return [*self._hub.history(), msgspec.json.encode({"kind": "dropped", "count": self.dropped})]
            found = list(self._frames)
            self._frames.clear()
            return found

    def close(self) -> None:
        with self._hub.lock:
            self._hub.pages.discard(self)


class Hub:
    """All runs and all pages of one dashboard."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pages: set[Subscription] = set()
        self.closed = False
        """No event comes any more."""
        self._runs: dict[str, RunHistory] = {}
        self._cluster: bytes | None = None

    def add(self, history: RunHistory) -> None:
        """A run; one of the same name is replaced."""
        with self.lock:
            self._runs[history.run] = history
            for frame in history.frames():
                self._send(frame)

    def run(self, name: str) -> RunHistory | None:
        return self._runs.get(name)

    def publish(self, change: Callable[[], list[bytes]]) -> None:
        """`change` changes a history and returns the new frames; both happen before anybody reads it."""
        with self.lock:
            for frame in change():
                self._send(frame)

    def publish_cluster(self, frame: Frame) -> None:
        with self.lock:
            self._cluster = msgspec.json.encode({"kind": "cluster", **frame})
            self._send(self._cluster)

    def subscribe(self, wake: Callable[[], None]) -> Subscription:
        with self.lock:
            page = Subscription(self, wake)
            self.pages.add(page)
            return page

    def history(self) -> list[bytes]:
        found = [frame for run in self._runs.values() for frame in run.frames()]
        return [self._cluster, *found] if self._cluster is not None else found

    def close(self) -> None:
        """Pages are told that nothing more will come."""
        with self.lock:
            self.closed = True
            for page in self.pages:
                page.put(msgspec.json.encode({"kind": "closed"}))

    def _send(self, frame: bytes) -> None:
        for page in self.pages:
            page.put(frame)
