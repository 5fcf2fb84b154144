"""The reliable channel: whatever the wire does, what was said is heard once and in order, by the right life only."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.faults.reliable_channel import HOLD, PATIENCE, Packet, ReliableChannel

ONE, NEXT = (0, 0), (0, 1)


def talk(seed: int, drop: float, double: float, reorder: bool, count: int, window: int = 4) -> tuple[list[int], int]:
    """Both sides say `count` things at random times; what one heard, and how many packets that took."""
    random = Random(seed)
    ends = [ReliableChannel(ONE, window), ReliableChannel(ONE, window)]
    heard: list[list[int]] = [[], []]
    wire: list[tuple[float, int, Packet]] = []
    said, now, packets = [0, 0], 0.0, 0

    def put(to: int, several: list[Packet]) -> None:
        nonlocal packets
        for packet in several:
            packets += 1
            for _ in range(1 + (random.random() < double)):
                if random.random() >= drop:
                    wire.append((now + (random.random() * 0.1 if reorder else 0.001), to, packet))

    for _ in range(20_000):
        now += random.random() * 0.01
        side = random.randrange(2)
        if said[side] < count and random.random() < 0.3:
            put(1 - side, ends[side].put(said[side], now))
            said[side] += 1
        for due in sorted(wire, key=lambda w: w[0]):
            if due[0] <= now:
                wire.remove(due)
                items, more = ends[due[1]].take(due[2], now)
                heard[due[1]] += items
                put(1 - due[1], more)
        for side in (0, 1):
            if ends[side].due() <= now:
                put(1 - side, ends[side].tick(now))
            assert ends[side].sent == ends[side].acknowledged + ends[side].under_way + ends[side].waiting
            assert ends[side].under_way <= window
        if all(end.acknowledged == count for end in ends):
            break
    assert heard[0] == heard[1]
    return heard[1], packets


@given(st.integers(0, 10**6), st.floats(0, 0.6), st.floats(0, 0.6), st.booleans(), st.integers(1, 25))
def test_everything_is_heard_once_and_in_order(
    seed: int, drop: float, double: float, reorder: bool, count: int
) -> None:
    assert talk(seed, drop, double, reorder, count)[0] == list(range(count))


def test_a_conversation_in_turns_costs_no_packet_of_its_own() -> None:
    """As at a barrier: order, report, order, report. Each acknowledges the one before."""
    hub, site = ReliableChannel(ONE), ReliableChannel(ONE)
    packets = 0
    for round_ in range(50):
        now = round_ * HOLD / 4
        for sender, receiver in ((hub, site), (site, hub)):
            out = [*sender.tick(now), *sender.put(round_, now)]
            packets += len(out)
            for packet in out:
                assert receiver.take(packet, now) == ([round_], [])
    assert packets == 100
    assert site.acknowledged == 49 and hub.acknowledged == 50


def test_where_nothing_is_said_an_acknowledgement_travels_alone() -> None:
    one, other = ReliableChannel(ONE), ReliableChannel(ONE)
    (packet,) = one.put("x", 0.0)
    other.take(packet, 0.0)
    assert other.due() == HOLD and other.tick(HOLD / 2) == []
    (alone,) = other.tick(HOLD)
    assert alone.number == 0 and alone.heard == 1
    one.take(alone, HOLD)
    assert one.under_way == 0 and one.due() == math.inf == other.due()


def test_what_is_not_acknowledged_is_sent_again_less_and_less_often() -> None:
    channel = ReliableChannel(ONE, longest=10 * PATIENCE)
    channel.put("x", 0.0)
    times, now = [], 0.0
    while len(times) < 6:
        now = channel.due()
        assert [p.item for p in channel.tick(now)] == ["x"]
        times.append(now)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert gaps == pytest.approx([2 * PATIENCE, 4 * PATIENCE, 8 * PATIENCE, 10 * PATIENCE, 10 * PATIENCE])


def test_a_double_is_answered_at_once_for_its_acknowledgement_was_lost() -> None:
    one, other = ReliableChannel(ONE), ReliableChannel(ONE)
    (packet,) = one.put("x", 0.0)
    assert other.take(packet, 0.0)[0] == ["x"]
    other.tick(HOLD)
    assert other.take(packet, 1.0)[0] == []
    assert [p.heard for p in other.tick(1.0)] == [1]


def test_a_stopped_peer_costs_a_window_on_the_wire_and_nothing_is_forgotten() -> None:
    channel = ReliableChannel(ONE, window=8)
    sent = [p for n in range(100) for p in channel.put(n, 0.0)]
    assert [p.number for p in sent] == list(range(1, 9))
    assert (channel.sent, channel.under_way, channel.waiting) == (100, 8, 92)
    _, more = channel.take(Packet(ONE, 0, 8), 1.0)
    assert [p.number for p in more] == list(range(9, 17))


def test_packets_of_another_session_are_dropped() -> None:
    channel, former = ReliableChannel(NEXT), ReliableChannel(ONE)
    (late,) = former.put("from a former life", 0.0)
    assert channel.take(late, 1.0) == ([], []) and channel.heard == 0 and channel.refused == 1


def test_a_closed_channel_says_and_hears_nothing() -> None:
    one, other = ReliableChannel(ONE), ReliableChannel(ONE)
    one.put("x", 0.0)
    one.close()
    assert one.tick(100.0) == [] and one.put("y", 100.0) == [] and one.due() == math.inf
    assert one.take(other.put("z", 0.0)[0], 100.0) == ([], [])


def test_an_acknowledgement_of_what_was_never_sent_is_ignored() -> None:
    channel = ReliableChannel(ONE)
    channel.put("x", 0.0)
    channel.take(Packet(ONE, 0, 5), 0.1)
    assert channel.acknowledged == 0 and channel.under_way == 1
