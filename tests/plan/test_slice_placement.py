"""Slices and servers: loads stay bounded, few slices move, every slice has one primary and distinct replicas."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flegel.configuration.active import active
from flegel.errors import UsageError
from flegel.plan.placement.assignment import first_map, levelled, promoted
from flegel.plan.placement.slice_map import SliceMap, cut, difference

few = settings(max_examples=8, deadline=None)


def spread(found: SliceMap, servers: int) -> float:
    return max(found.loads().values()) / (found.total / servers)


def changed(old: SliceMap, new: SliceMap) -> int:
    return sum(s for s, a, b in zip(old.slices, old.primary, new.primary, strict=True) if a != b)


@few
@given(st.integers(0, 10_000), st.integers(0, 7))
def test_eight_servers_and_400_slices_are_even_and_a_loss_or_a_join_moves_little(first: int, which: int) -> None:
    servers = list(range(first, first + 8))
    found = first_map((1000,) * 400, servers)
    assert spread(found, 8) <= 1.06
    ideal = found.total / 8
    lost = servers[which]
    took_over, orphans = promoted(found, [lost], servers)
    assert not orphans and not [c for c in difference(found, took_over, [lost]) if c.as_primary]
    after = levelled(took_over, [s for s in servers if s != lost])
    assert spread(after, 7) <= 1.06 and changed(found, after) <= 1.4 * ideal
    assert sum(c.size for c in difference(found, after, [lost])) <= 1.4 * 2 * ideal  # primaries and replicas
    joined = levelled(found, [*servers, first + 8])
    assert spread(joined, 9) <= 1.06 and changed(found, joined) <= 1.4 * found.total / 9
    assert sum(c.size for c in difference(found, joined)) <= 1.4 * 2 * found.total / 9


@few
@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=60),
    st.integers(1, 7),
    st.integers(0, 3),
    st.data(),
)
def test_whatever_is_lost_every_slice_has_one_primary_and_its_replicas(
    sizes: list[int], count: int, replicas: int, data: st.DataObject
) -> None:
    servers = list(range(count))
    found = first_map(tuple(sizes), servers, replicas)
    assert all(len(some) == min(replicas, count - 1) for some in found.replicas)
    assert sum(found.loads().values()) == sum(sizes)
    lost = data.draw(st.sets(st.sampled_from(servers), max_size=count - 1))
    took_over, orphans = promoted(found, lost, servers)
    assert set(orphans) == {n for n in range(len(sizes)) if set(found.holders(n)) <= lost}
    alive = [server for server in servers if server not in lost]
    shares = {server: data.draw(st.floats(0.1, 10)) for server in alive}
    after = levelled(took_over, alive, replicas, shares)
    assert set(after.servers) <= set(alive)
    assert all(len(some) == min(replicas, len(alive) - 1) for some in after.replicas)
    for copy in difference(found, after, lost):
        assert copy.source not in lost
        assert (copy.source is None) == (copy.number in orphans)


@few
@given(st.integers(2, 12), st.integers(20, 40), st.data())
def test_loads_follow_shares_as_closely_as_slices_allow(count: int, each: int, data: st.DataObject) -> None:
    servers = list(range(count))
    found = first_map((100,) * (each * count), servers)
    shares = {s: data.draw(st.floats(0.5, 4)) for s in servers}
    after = levelled(found, servers, 1, shares)
    whole = sum(shares.values())
    for server, load in after.loads().items():
        target = after.total * shares[server] / whole
        assert abs(load - target) <= max(active().placement.load_tolerance * target, 100)
    assert levelled(after, servers, 1, shares) is after


def test_each_slice_goes_to_the_server_with_the_largest_remaining_load() -> None:
    """All slices of a server that is gone, the largest first, so many that no other move has to follow."""
    drawn = random.Random(3)
    sizes = tuple(drawn.randint(51, 100) for _ in range(200))
    shares = {0: 0.5, 1: 0.3, 2: 0.2}
    found = levelled(SliceMap(1, sizes, (9,) * 200, ((),) * 200), shares, 0, shares)
    left = {server: share * sum(sizes) for server, share in shares.items()}
    for number in sorted(range(200), key=lambda n: (-sizes[n], n)):
        receiver = max(left, key=lambda server: (left[server], -server))
        assert found.primary[number] == receiver
        left[receiver] -= sizes[number]


def test_a_server_without_a_share_keeps_two_small_slices_to_be_measured() -> None:
    slices = cut(4_000_000, 50_000, servers=4, probe=10_000)
    assert slices[:8] == (10_000,) * 8 and sum(slices) == 4_000_000
    after = levelled(first_map(slices, range(4)), range(4), 1, {1: 1.0, 2: 1.0, 3: 1.0})
    begun_without = levelled(first_map(slices, (1, 2, 3)), range(4), 1, {1: 1.0, 2: 1.0, 3: 1.0})
    for found in (after, begun_without):
        assert len(found.of_server(0)) == active().placement.measuring_slices and found.loads()[0] == 20_000


def test_a_slice_that_moves_to_its_replica_needs_no_copy() -> None:
    old = SliceMap(1, (5, 5), (0, 1), ((1,), (0,)))
    new = SliceMap(2, (5, 5), (1, 1), ((0,), (2,)))
    assert [(c.number, c.source, c.target, c.as_primary) for c in difference(old, new)] == [(1, 1, 2, False)]


def test_the_same_servers_give_the_same_map_on_every_machine() -> None:
    found = first_map((1,) * 12, [3, 1, 2])
    assert found == first_map((1,) * 12, [2, 3, 1])
    assert found.primary == (3, 2, 3, 1, 3, 1, 1, 1, 3, 2, 2, 2)
    assert found.starts()[-1] == found.total == 12


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(UsageError, match="no parameter server is left"):
        promoted(first_map((1, 1), [0]), [0], [0])
    with pytest.raises(UsageError, match="cannot cut"):
        cut(0, 10)
    with pytest.raises(ValueError, match="twice on one server"):
        SliceMap(1, (1,), (0,), ((0,),))
    with pytest.raises(ValueError, match="different slices"):
        difference(first_map((1, 1), [0]), first_map((2,), [0]))
