"""Changes of θ in few bytes: what others read, its size, and that nothing is lost over several rounds."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from bench.sites.bucket import BucketFaults
from bench.sites.site import SimulatedSite
from bench.sites.world import SiteScenario, SiteWorld
from flegel.errors import DecodeError
from flegel.machine.group.common_parameter import CommonParameter
from flegel.machine.group.contributions import Contributions
from flegel.machine.group.events import FromGroup, RoundOpened, Synchronized
from flegel.machine.group.fragments import Fragments
from flegel.machine.group.group import GroupSettings
from flegel.machine.group.records import Contribution, Entry, RoundResult, decode, digest_of, encode
from flegel.machine.group.wire import packed, restored, shortened, unpacked
from flegel.runtime.group.session import GroupSession

SHAPES = [(37, 11), (5,), (), (0, 3), (513,)]
STEPS = {"bf16": 2.0**-8, "int8": 0.5 / 127, "int4": 0.5 / 7}
"""Largest error of a number, as a part of the largest of its block."""


def changes(seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [np.asarray(1e-3 * rng.normal(size=shape)) for shape in SHAPES]


@pytest.mark.parametrize("wire", ["bf16", "int8", "int4"])
def test_what_is_read_is_near_what_was_written_and_written_again_the_same(wire: str) -> None:
    sent = changes()
    read = unpacked(wire, packed(wire, sent), SHAPES)
    for one, other in zip(sent, read, strict=True):
        assert other.shape == one.shape
        assert np.abs(one - other).max(initial=0.0) <= 1.01 * STEPS[wire] * np.abs(one).max(initial=0.0)
    again = unpacked(wire, packed(wire, read), SHAPES)
    assert all(np.array_equal(a, b) for a, b in zip(read, again, strict=True))


def test_bytes_of_a_number() -> None:
    large = [np.random.default_rng(1).normal(size=100_000)]
    sizes = {wire: sum(a.nbytes for a in packed(wire, large)) / 100_000 for wire in ("full", "bf16", "int8", "int4")}
    assert sizes == pytest.approx({"full": 8.0, "bf16": 2.0, "int8": 1.0156, "int4": 0.5156}, abs=1e-3)


@pytest.mark.parametrize("wire", ["bf16", "int8", "int4", "int2"])
def test_parts_that_do_not_fit_are_refused(wire: str) -> None:
    good = packed(wire, changes()) if wire != "int2" else []
    for wrong in (good[:-1], [*good, np.zeros(3)], [a[:-1] for a in good], [a.astype(np.float64) for a in good]):
        with pytest.raises(DecodeError):
            unpacked(wire, wrong, SHAPES)


@pytest.mark.parametrize("wire", ["int8", "int4", "bf16"])
def test_what_is_rounded_away_is_sent_later(wire: str) -> None:
    """Of groups at rest after the same number of steps, every step is in θ but for the last rounding."""
    scenario = SiteScenario("parameters", 2, 3, BucketFaults(), (), (), (0.0, 0.0), (0.1, 0.13), wire=wire)
    world = SiteWorld(0, scenario)
    world.run_until(20.0)
    for site in world.sites.values():
        own, sent = float(site.store.parameter[site.index]), float(site.exchange._change.base[0][site.index])
        # `mean` halves what each group did; what is not in the result is what was done since, and one rounding.
        assert abs(own - sent) < 12 and sent == pytest.approx(site.commits / 2, rel=0.15)


THETA = [(300, 7), (), (11,)]


def theta() -> list[Any]:
    rng = np.random.default_rng(0)
    return [np.asarray(rng.normal(size=shape), np.float32) for shape in THETA]


def test_theta_of_sixteen_bits_is_written_again_as_it_is() -> None:
    for array in theta():
        parts = shortened(array, np.zeros(array.shape), 0.05)
        (read,) = restored((0,), parts, [array.shape])
        assert np.abs(read - array).max(initial=0.0) <= 2.0**-15 * np.abs(array).max(initial=0.0)
        assert np.array_equal(np.float32(read), read)  # no digit is lost in the type of θ
        again = shortened(np.float32(read), np.float32(read), 0.0)  # a round in which nothing changed
        assert np.array_equal(restored((0,), again, [array.shape])[0], read)


@pytest.mark.parametrize("wrong", [[np.nan], [np.inf, 1.0], [1e6, 1e6 + 1.0], []])
def test_theta_stays_as_it_is_where_rounding_would_lose_the_change(wrong: list[float]) -> None:
    """Changes that are small beside θ, as of a weight with a large offset, would be rounded away."""
    array = np.array(wrong)
    assert shortened(array, array - 0.5, 0.05) == []


def round_of(wires: list[str], base: list[Any], outer: str, count: int = 1, step: float = 0.01) -> tuple[Any, Any]:
    """A round of groups that send in these forms: θ as its writer computes it in float64, and its bytes."""
    known, rng, entries = Contributions(THETA, fragments=count), np.random.default_rng(), []
    cut, mean = Fragments(THETA, count), []
    for at, wire in enumerate(wires):
        changes = [step * rng.normal(size=shape) for shape in cut.shapes(0 if count > 1 else -1)]
        parts = packed(wire, changes)
        header = Contribution(f"g{at}", 1, 1, len(changes), 5.0, 9, False, wire=wire, fragment=0 if count > 1 else -1)
        content = encode(header, parts)
        entries.append(Entry(f"g{at}", 1, f"rounds/1/g{at}.1", digest_of(content), 1))
        assert known.accept(entries[-1], content) == ""
        mean.append(unpacked(wire, parts, [c.shape for c in changes]))
    sums = [sum(arrays) / len(wires) for arrays in zip(*mean, strict=True)]
    wanted = [b + c for b, c in zip(cut.take(0 if count > 1 else -1, base), sums, strict=True)]
    return wanted, known.result(1, entries, False, "g0", outer, base)


@pytest.mark.parametrize("count", [1, 4])
def test_a_result_of_few_bytes_is_near_the_exact_one_and_all_who_read_it_have_the_same(count: int) -> None:
    base = theta()
    wanted, content = round_of(["int4", "int8"], base, "mean", count)
    result, parts = decode(content, RoundResult)
    assert result.short
    common = CommonParameter(base, Fragments(THETA, count))
    arrays = common.restored(result, parts)
    assert common.misfit(result, arrays) == ""
    common.take(result, arrays)
    for one, other in zip(wanted, common.fragments.take(0 if count > 1 else -1, common.base), strict=True):
        assert np.linalg.norm(one - other) <= 0.06 * 0.01 * np.sqrt(one.size) + 1e-7 and other.dtype == np.float32
    full = round_of(["int4", "full"], base, "mean", count)[1]
    assert decode(full, RoundResult)[0].short == () and len(content) < 0.75 * len(full)


def test_velocities_are_written_in_few_bytes_too_and_small_changes_in_full() -> None:
    base = theta()
    result, parts = decode(round_of(["int8", "int8"], base, "nesterov")[1], RoundResult)
    arrays = CommonParameter(base, Fragments(THETA)).restored(result, parts)
    assert {0, 3} <= set(result.short) and [a.shape for a in arrays] == [*THETA, *THETA]
    small, _ = decode(round_of(["int8", "int8"], base, "mean", step=1e-6)[1], RoundResult)
    assert small.short == ()


def test_results_whose_parts_do_not_fit_are_refused() -> None:
    base = theta()
    result, good = decode(round_of(["int8", "int8"], base, "mean")[1], RoundResult)
    assert result.short[0] == 0
    for short, wrong in [
        (result.short, good[:-1]),
        (result.short, [*good, np.zeros(3)]),
        (result.short, [good[0][:-1], *good[1:]]),
        (result.short, [good[0], good[1][:-1], *good[2:]]),
        (result.short, [good[0].astype(np.int32), *good[1:]]),
        ((0, 0), good), ((-1,), good), ((7,), good), (tuple(range(100)), good), ((1, 0), good),
    ]:  # fmt: skip
        with pytest.raises(DecodeError):
            restored(short, wrong, THETA)


def test_a_new_training_begins_with_theta_of_a_result_in_few_bytes() -> None:
    base = theta()
    result, parts = decode(round_of(["int8", "int4"], base, "nesterov")[1], RoundResult)
    common = CommonParameter(base, Fragments(THETA))
    common.take(result, common.restored(result, parts))
    merged = GroupSession._merged(cast("Any", None), 1, base, result, parts)  # no other result is read
    assert result.short and all(np.array_equal(a, b) for a, b in zip(merged, common.base, strict=True))


@pytest.mark.parametrize("wire", ["bf16", "int8", "int4"])
def test_what_others_do_not_read_stays_in_the_own_theta(wire: str) -> None:
    """θ after a result of this group alone is what it trained, although the others read a rounded change."""
    offered: list[Any] = []
    settings = GroupSettings(name="g0", life=1, exchange="parameters")
    site = SimulatedSite(
        settings, 0, 300, 1, 0.0, lambda *call: None, lambda _, what, now: offered.append(what), wire=wire
    )
    site.exchange.heard(site.job, FromGroup(RoundOpened(1)), 0.0)
    site.store.set_parameter(np.random.default_rng().normal(size=300))
    site.commit(1.0)
    trained = np.array(site.store.parameter)
    (change,) = offered[0].arrays
    assert not np.array_equal(change, trained)
    assert np.array_equal(unpacked(wire, packed(wire, [change]), [change.shape])[0], change)
    result = Synchronized(1, {}, (change,), included=True, final=False, groups=("g0",))
    site.exchange.heard(site.job, FromGroup(result), 2.0)
    assert np.allclose(site.store.parameter, trained, rtol=0.0, atol=1e-12)
    assert np.array_equal(site.exchange._change.base[0], change)
