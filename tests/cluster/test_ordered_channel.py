"""A channel over a link that loses, repeats and reorders: all arrives once and in order, nothing is forgotten."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flegel.cluster.transport.ordered_channel import OrderedChannel, UnacknowledgedMessage
from flegel.errors import PeerSlow


def numbers_are_consistent(channel: OrderedChannel) -> bool:
    return channel.sent == channel.acknowledged + channel.pending and channel.pending <= channel.window


@given(st.integers(0, 2**32), st.integers(1, 60), st.floats(0.0, 0.6), st.floats(0.0, 0.6), st.integers(1, 8))
def test_what_is_sent_arrives_once_and_in_order(seed: int, count: int, drop: float, twice: float, window: int) -> None:
    rng, now = random.Random(seed), 0.0
    ours, theirs = OrderedChannel(window), OrderedChannel(window)
    wire: list[UnacknowledgedMessage] = []
    taken: list[int] = []
    offered = 0
    for _ in range(100_000):
        if offered == count and not ours.pending:
            break
        if offered < count:
            try:
                wire.append(ours.put(str(offered).encode(), (), now))
                offered += 1
            except PeerSlow:
                assert ours.pending == window
        rng.shuffle(wire)
        for message in wire:
            if rng.random() < drop:
                continue
            for _ in range(1 + (rng.random() < twice)):
                if theirs.accept(message.number):
                    taken.append(int(message.body))
        wire = []
        if rng.random() >= drop:
            wire += ours.acknowledge(theirs.received, now)
        assert numbers_are_consistent(ours)
        now += rng.choice((0.01, 1.0, 5.0))
        late = ours.overdue(now)
        wire += [late] if late else []
    assert taken == list(range(count)) and ours.sent == ours.acknowledged == count


def test_a_window_of_bytes_bounds_large_messages() -> None:
    channel = OrderedChannel(window=100, window_bytes=1000)
    channel.put(b"", [b"x" * 5000], 0.0)  # one alone always goes, or it never would
    with pytest.raises(PeerSlow):
        channel.put(b"", [b"x"], 0.0)
    channel.acknowledge(1, 0.0)
    channel.put(b"", [b"x" * 600], 0.0)
    with pytest.raises(PeerSlow):
        channel.put(b"", [b"x" * 600], 0.0)
    assert channel.pending == 1 and channel.pending_bytes == 600


def test_an_acknowledgement_of_what_was_never_sent_changes_nothing() -> None:
    channel = OrderedChannel()
    channel.put(b"", [], 0.0)
    for lie in (0, -5, 2, 10**9):
        assert channel.acknowledge(lie, 0.0) == [] and channel.pending == 1


def test_one_that_starts_late_begins_where_the_sender_is() -> None:
    ours, fresh = OrderedChannel(), OrderedChannel()
    for _ in range(5):
        ours.put(b"", [], 0.0)
    ours.acknowledge(3, 0.0)
    fresh.begin_receiving(ours.base)
    assert [m.number for m in ours.resend_all(0.0) if fresh.accept(m.number)] == [4, 5]


def test_the_resend_interval_doubles_while_nothing_is_acknowledged() -> None:
    channel = OrderedChannel()
    channel.put(b"", [], 0.0)
    asked = [t for t in range(0, 200) if channel.overdue(float(t))]
    assert asked[:5] == [1, 3, 7, 15, 31] and max(b - a for a, b in itertools.pairwise(asked)) <= 30
