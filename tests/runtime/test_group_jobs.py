"""Whole jobs of several groups through a folder: the fixed points are those of central training."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithm import Sample
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.local_models import LocalLR
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf.kullback import KLNMF
from flegel.algorithms.plain_gradient import PlainLR
from flegel.algorithms.seeding import representatives
from flegel.callbacks.callback import Callback
from flegel.core.pytree import Array
from flegel.errors import UsageError
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.machine.group.data_form import DataForm
from flegel.machine.group.records import MemberBeat, Package, RoundResult, StartRows, decode, encode
from flegel.params.gate import Gate
from flegel.results.result import Result
from flegel.runtime import clock
from flegel.runtime.group import session
from flegel.runtime.group.bucket import FolderBucket, StoredObject
from flegel.runtime.group.bucket_state import BucketReader
from flegel.runtime.group.keys import SEALED_MARK, PlainObjects
from flegel.runtime.group.part import GroupOfJob


def sorted_blobs(seed: int = 0, groups: int = 9, rows: int = 200) -> Array:
    """Rows sorted by their cluster, so that every site has clusters that the others lack."""
    rng = np.random.default_rng(seed)
    centres = 6.0 * rng.normal(size=(groups, 4))
    return np.concatenate([c + rng.normal(size=(rows, 4)) for c in centres]).astype(np.float32)


def train_groups(algorithm: Any, parts: list[Array], bucket: Path, **options: Any) -> list[Result]:
    """One job for each part, at the same time."""
    results: list[Any] = [None] * len(parts)

    def train(at: int) -> None:
        try:
            results[at] = flegel.run(
                algorithm(), parts[at], workers=1, group=f"site{at}", bucket=str(bucket), groups=len(parts),
                processes=False, **options,
            )  # fmt: skip
        except BaseException as error:  # noqa: BLE001 - told by the test
            results[at] = error

    threads = [threading.Thread(target=train, args=(at,)) for at in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600.0)
    for found in results:
        if not isinstance(found, Result):
            raise AssertionError("a group did not end") from found
    return results


@pytest.mark.parametrize("algorithm", [lambda: KMeans(k=8), lambda: GMM(k=5)], ids=["kmeans", "gmm"])
def test_three_groups_with_sorted_data_end_where_central_training_ends(tmp_path: Path, algorithm: Any) -> None:
    rows = sorted_blobs()
    results = train_groups(algorithm, np.split(rows, 3), tmp_path, sync="bsp", every="3")
    central = flegel.run(algorithm(), rows, workers=1, sync="bsp", processes=False)
    scale = -1.0 if algorithm().learning.maximize else 1.0
    objective = algorithm().evaluate(rows, None, results[0].parameter).objective
    assert scale * objective <= scale * central.objective + 0.02 * abs(central.objective)
    for result in results:
        assert result.outcome == "converged" and "all 3 groups" in result.reason
        assert result.objective == pytest.approx(objective, rel=1e-6)
        for one, other in zip(result.parameter[:2], results[0].parameter[:2], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("algorithm", [lambda: PlainLR(rate=0.5), lambda: LocalLR()], ids=["lr-gradient", "lr-local"])
def test_logistic_regression_is_trained_by_groups_through_changes_of_its_weights(
    tmp_path: Path, algorithm: Any
) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(900, 3))
    labels = (features @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=900) > 0).astype(np.float64)
    names = ["a", "b", "c"]
    jobs = [
        {
            "algorithm": algorithm(), "data": features[at::3], "y": labels[at::3], "group": names[at],
            "bucket": str(tmp_path), "groups": 3, "sync": "bsp", "every": "3", "max_iterations": 60, "tolerance": 0.0,
        }
        for at in range(3)
    ]  # fmt: skip
    results = outcomes(jobs)
    central = flegel.run(
        algorithm(), features, y=labels, workers=1, sync="bsp", processes=False, max_iterations=60, tolerance=0.0
    )
    wanted = algorithm().evaluate(features, labels, central.parameter).metrics["accuracy"]
    for result in results:
        assert isinstance(result, Result), result
        assert result.sites["rounds"] >= 1  # how many depends on who is fast
        found = algorithm().evaluate(features, labels, result.parameter).metrics["accuracy"]
        assert found >= wanted - 0.02


def test_wrong_use_is_told_in_a_sentence(tmp_path: Path) -> None:
    rows = sorted_blobs(rows=10)
    with pytest.raises(UsageError, match="give both"):
        flegel.run(KMeans(k=2), rows, group="paris")
    with pytest.raises(UsageError, match=r"KLNMF cannot be trained by groups: .* hold for one H only"):
        flegel.run(KLNMF(), np.abs(rows), group="paris", bucket=str(tmp_path))
    with pytest.raises(UsageError, match=r"LR cannot be trained by groups: .* step search .*; `lr-gradient`"):
        flegel.run(LR(), rows, y=(rows[:, 0] > 0).astype(float), group="paris", bucket=str(tmp_path))
    with pytest.raises(UsageError, match="give both"):
        flegel.run(KMeans(k=2), rows, group="paris", bucket=str(tmp_path), gate="best")
    with pytest.raises(UsageError, match="every="):
        flegel.run(KMeans(k=2), rows, group="paris", bucket=str(tmp_path), every="often")
    flegel.run(KMeans(k=2), rows, group="paris", bucket=str(tmp_path), processes=False, max_iterations=2)
    with pytest.raises(UsageError, match="k=2"):
        flegel.run(KMeans(k=3), rows, group="lyon", bucket=str(tmp_path))
    with pytest.raises(UsageError, match=r"train .*kmeans"):
        flegel.run(GMM(k=2), rows, group="lyon", bucket=str(tmp_path))
    with pytest.raises(UsageError, match="have 4 columns, and this group has 3"):
        flegel.run(KMeans(k=2), rows[:, :3], group="lyon", bucket=str(tmp_path))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"group": "a", "quorum": 3, "groups": 2}, "quorum=3 can never be reached by groups=2"),
        ({"group": "a", "grace": "5s"}, 'grace="5s" has no effect without quorum='),
        ({"group": "a", "gate_failures": 3}, "gate_failures=3 has no effect without gate="),
        ({"group": "a", "outer": "nesterov"}, "outer= is about changes of θ, and groups exchange statistics of KMeans"),
        ({"group": "a", "fragments": 2}, "fragments= is about changes of θ"),
        ({"quorum": 2}, "quorum=2 is about groups at several sites; give group= and bucket= as well"),
        ({"group_timeout": 5.0}, "group_timeout=5 is about groups"),
        ({"wire": "int8"}, 'wire="int8" is about groups'),
        ({"every": "3"}, 'every="3" is about groups at several sites'),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_an_option_of_groups_that_would_do_nothing_is_refused(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    bucket = {"bucket": str(tmp_path / "bucket")} if "group" in options else {}
    with pytest.raises(UsageError, match=re.escape(told)):
        flegel.run(KMeans(k=2), sorted_blobs(rows=10), processes=False, **bucket, **options)
    assert not (tmp_path / "bucket").exists()


def outcomes(jobs: list[dict[str, Any]]) -> list[Any]:
    """Results or errors of jobs that run at the same time."""
    found: list[Any] = [None] * len(jobs)

    def train(at: int) -> None:
        try:
            found[at] = flegel.run(workers=1, processes=False, **jobs[at])
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            found[at] = error

    threads = [threading.Thread(target=train, args=(at,)) for at in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600.0)
    return found


def test_groups_that_scale_and_groups_that_do_not_are_told_apart(tmp_path: Path) -> None:
    rows, place = sorted_blobs(rows=20), str(tmp_path)
    flegel.run(KMeans(k=2), rows, group="a", bucket=place, processes=False, max_iterations=2, scale="standard")
    with pytest.raises(UsageError, match="use --scale standard, and this group --scale none; use the same"):
        flegel.run(KMeans(k=2), rows, group="b", bucket=place, processes=False)
    with pytest.raises(UsageError, match="are float32, and those of this group float64"):
        flegel.run(KMeans(k=2), rows.astype(np.float64), group="b", bucket=place, processes=False, scale="standard")


def test_other_widths_at_a_common_start_are_told_and_leave_the_bucket_usable(tmp_path: Path) -> None:
    rows = sorted_blobs(rows=20)
    shared: dict[str, Any] = {"algorithm": KMeans(k=2), "bucket": str(tmp_path), "groups": 2}
    form = DataForm(3, (), (), "float32", "none", "error")
    content = encode(StartRows("b", form), [np.zeros((1, 3)), np.ones(1)])
    FolderBucket(tmp_path).put("starts/b", PlainObjects().seal("starts/b", content))
    with pytest.raises(UsageError, match=r"b has 3 columns, and this group has 4; .* remove starts/b"):
        flegel.run(data=rows, group="a", processes=False, **shared)
    assert not (tmp_path / "starts" / "a").exists() and not (tmp_path / "job").exists()
    (tmp_path / "starts" / "b").unlink()
    corrected = [{**shared, "data": rows[:90], "group": "a"}, {**shared, "data": rows[90:], "group": "b"}]
    assert [type(found) for found in outcomes(corrected)] == [Result, Result]


def test_foreign_files_in_the_bucket_are_left_alone(tmp_path: Path) -> None:
    for name in ("starts/notes", "starts/a b.txt", "members/README", "rounds/1/note", "ends/site1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"not yours")
    results = train_groups(lambda: KMeans(k=3), np.split(sorted_blobs(rows=40), 2), tmp_path, sync="bsp")
    assert [result.outcome for result in results] == ["converged"] * 2


def test_the_objective_is_that_of_theta_over_the_rows_that_are_named(tmp_path: Path) -> None:
    """Also where one of the groups reaches its limit and the others go on."""
    rows = sorted_blobs(rows=120).astype(np.float64)
    parts = dict(zip(("a", "b"), np.split(rows, 2), strict=True))
    shared = {"bucket": str(tmp_path), "groups": 2, "every": "1", "sync": "bsp"}
    jobs = [{"algorithm": KMeans(k=6), "data": data, "group": name, **shared} for name, data in parts.items()]
    found = outcomes([{**jobs[0], "max_iterations": 2}, jobs[1]])
    assert found[0].outcome in ("limit", "converged") and found[1].outcome == "converged"
    for result in found:
        claimed = np.concatenate([parts[name] for name in result.sites["objective_of"]])
        assert result.objective == pytest.approx(
            KMeans(k=6).evaluate(claimed, None, result.parameter).objective, rel=1e-9
        )


class BeatingBucket(FolderBucket):
    """Shows a beat that changes with each look."""

    looks = 0

    def get(self, key: str, largest: int = 0) -> StoredObject | None:
        if key != "members/a":
            return super().get(key, largest)
        self.looks += 1
        return StoredObject(PlainObjects().seal(key, encode(MemberBeat("a", 1, self.looks, "training", 3))), "")


def test_a_name_that_another_process_uses_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "open_bucket", lambda place: BeatingBucket(Path(place)))
    with pytest.raises(UsageError, match="Another process takes part as a"):
        flegel.run(KMeans(k=2), sorted_blobs(rows=10), group="a", bucket=str(tmp_path), processes=False)


class ForgetfulBucket(FolderBucket):
    """Loses `job` as soon as it is written, once."""

    lost = False

    def put(self, key: str, content: bytes, mode: str = "replace", expected: str = "") -> str:
        tag = super().put(key, content, mode, expected)
        if key == "job" and not self.lost:
            self.lost = True
            self.delete(key)
        return tag


def test_a_package_that_is_removed_at_once_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "open_bucket", lambda place: ForgetfulBucket(Path(place)))
    rows = sorted_blobs(rows=10)
    result = flegel.run(KMeans(k=2), rows, group="a", bucket=str(tmp_path), processes=False, max_iterations=2)
    assert result.outcome in ("limit", "converged") and (tmp_path / "job").exists()


def test_before_training_a_group_says_for_whom_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(part: object, why: str) -> None:
        raise UsageError(why)  # so that the test need not wait

    monkeypatch.setattr(GroupOfJob, "_waits", told)
    with pytest.raises(UsageError, match=r"waits for 1 more group of 2 \(for 30 s at most\) to choose θ\(0\)"):
        flegel.run(
            KMeans(k=2), sorted_blobs(rows=10), group="a", bucket=str(tmp_path), groups=2, processes=False, workers=1
        )


def test_an_open_port_without_a_key_is_refused_before_data_are_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs group_key"):
        flegel.run(KMeans(k=2), "no-such.csv", group="a", bucket=str(tmp_path), group_listen="localhost:7700")


def test_a_signed_bucket_asks_a_group_without_a_key_for_one(tmp_path: Path) -> None:
    FolderBucket(tmp_path).put("job", SEALED_MARK + bytes(8))
    with pytest.raises(UsageError, match="are signed, and this group has no key; give group_key") as refused:
        flegel.run(KMeans(k=2), sorted_blobs(rows=10), group="a", bucket=str(tmp_path), processes=False)
    assert "new bucket" not in str(refused.value)


class AwayBucket(FolderBucket):
    """Does not answer one group in every second stretch of time, until the others are at rest."""

    def __init__(self, path: Path, away: Any) -> None:
        super().__init__(path)
        self._away = away

    def _check(self) -> None:
        if self._away():
            raise OSError("away")

    def get(self, key: str, largest: int = 0) -> StoredObject | None:
        self._check()
        return super().get(key, largest)

    def put(self, key: str, content: bytes, mode: str = "replace", expected: str = "") -> str:
        self._check()
        return super().put(key, content, mode, expected)

    def names(self, prefix: str) -> list[str]:
        self._check()
        return super().names(prefix)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: KMeans(k=9), id="kmeans"),
        pytest.param(lambda: GMM(k=3), id="gmm"),
        pytest.param(lambda: FCM(k=3), id="fcm", marks=pytest.mark.slow),
    ],
)
def test_with_a_quorum_a_site_that_is_away_half_of_the_time_ends_where_central_training_ends(
    make: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three sites with clusters of their own, two of which are a quorum."""
    rows = sorted_blobs(rows=150).astype(np.float64)
    parts, calls = np.split(rows, 3), [0]

    def away() -> bool:
        """Of the calls of the third site, every second run of forty fails, the first ones and those after the 400th
        not."""
        calls[0] += 1
        return 40 < calls[0] < 400 and calls[0] // 40 % 2 == 1

    def opened(place: str) -> FolderBucket:
        return AwayBucket(tmp_path, away if threading.current_thread().name == "site2" else lambda: False)

    monkeypatch.setattr(session, "open_bucket", opened)
    found: list[Any] = [None] * 3

    def train(at: int) -> None:
        try:
            found[at] = flegel.run(
                make(), parts[at], workers=1, group=f"site{at}", bucket=str(tmp_path), groups=3, quorum=2,
                every="2", sync="bsp", processes=False, group_timeout=20.0, tolerance=1e-9,
            )  # fmt: skip
        except BaseException as error:  # noqa: BLE001 - looked at below
            found[at] = error

    threads = [threading.Thread(target=train, args=(at,), name=f"site{at}") for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600.0)
    assert [type(result) for result in found] == [Result] * 3, found
    central = flegel.run(make(), rows, workers=1, sync="bsp", processes=False, start=found[0])
    for result in found:
        assert result.outcome == "converged" and result.sites["groups"] == ["site0", "site1", "site2"]
        whole = make().evaluate(rows, None, result.parameter).objective
        assert whole == pytest.approx(central.objective, rel=1e-3)


def test_a_new_training_in_the_bucket_of_an_earlier_one_begins_with_its_theta(tmp_path: Path) -> None:
    rows, place = sorted_blobs(rows=40).astype(np.float64), str(tmp_path)
    shared: dict[str, Any] = {"bucket": place, "processes": False, "sync": "bsp", "every": "1", "workers": 1}
    first = flegel.run(KMeans(k=4), rows[:180], group="a", **shared)
    before = (tmp_path / "job").read_bytes()
    again = flegel.run(KMeans(k=4), rows[180:], group="b", new_training=True, **shared)
    assert (tmp_path / "job").read_bytes() != before
    assert again.sites["groups"] == ["b"] and again.sites["agreed_in"] is not None  # nothing of the earlier one
    packages = {p.name: PlainObjects().open(f"package/{p.name}", p.read_bytes()) for p in tmp_path.glob("package/*")}
    opened = [decode(content, Package) for content in packages.values()]
    (_, (theta, *_)), *_ = [found for found in opened if found[0].after in packages]
    np.testing.assert_allclose(theta, first.parameter[0])
    late = flegel.run(KMeans(k=4), rows[:180], group="c", **shared)  # joins the new one
    assert late.sites["groups"] == ["b", "c"]
    other = flegel.run(KMeans(k=3), rows[:, :3].copy(), group="d", new_training=True, **shared)
    assert other.sites["groups"] == ["d"] and len(other.parameter[0]) == 3


def test_who_joins_a_training_that_is_over_is_told_whose_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of a tutorial typed again: what is not there stays in the model, and nobody would expect it."""
    ended, told = session.GroupSession.ended_groups, list[list[str]]()
    monkeypatch.setattr(session.GroupSession, "ended_groups", lambda self: told.append(ended(self)) or told[-1])
    rows = sorted_blobs(rows=40)
    for group in ("a", "b", "a"):
        flegel.run(KMeans(k=3), rows[:180], group=group, bucket=str(tmp_path), workers=1, processes=False, every="1")
    assert told == [[], ["a"], ["a", "b"]]


def test_clocks_of_sites_may_differ_by_hours_also_when_one_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of day is only in the number of a life, which is larger than that of the process before."""
    rows, hours, now = sorted_blobs(rows=40), iter((5, -7, -20)), clock.microseconds()
    monkeypatch.setattr(clock, "microseconds", lambda: now + 3_600_000_000 * next(hours))
    lives = list[int]()
    for group in ("a", "b", "a"):  # the last one on a host whose clock was put back by a day
        shared: dict[str, Any] = {"bucket": str(tmp_path), "workers": 1, "processes": False, "every": "1"}
        result = flegel.run(KMeans(k=3), rows[:180] if group == "a" else rows[180:], group=group, **shared)
        assert result.outcome == "converged" and group in result.sites["groups"]
        beat = PlainObjects().open(f"members/{group}", (tmp_path / "members" / group).read_bytes())
        lives.append(decode(beat, MemberBeat)[0].life)
    assert result.sites["groups"] == ["a", "b"] and result.sites["objective_of"] == ["a"]
    assert lives[2] == lives[0] + 1


def test_current_of_an_earlier_training_is_not_taken_for_the_running_one(tmp_path: Path) -> None:
    rows, place = sorted_blobs(rows=40), str(tmp_path)
    flegel.run(KMeans(k=4), rows[:180], group="a", bucket=place, processes=False, every="1")
    (tmp_path / "job").unlink()
    parts: list[dict[str, Any]] = [{"data": rows[:180], "group": "b"}, {"data": rows[180:], "group": "c"}]
    shared: dict[str, Any] = {"bucket": place, "every": "1", "groups": 2}
    for found in outcomes([{"algorithm": KMeans(k=3), **part, **shared} for part in parts]):
        assert found.outcome == "converged" and found.sites["groups"] == ["b", "c"], found


def gated(folder: Path, **options: Any) -> list[Any]:
    """Two groups of k-means, of which b has a gate."""
    rows = sorted_blobs(rows=60).astype(np.float64)
    np.save(folder / "gate.npy", rows[::5])
    shared = {"algorithm": KMeans(k=6), "bucket": str(folder / "bucket"), "groups": 2, "every": "1", "sync": "bsp"}
    gate = {"gate_data": str(folder / "gate.npy"), **options}
    return outcomes(
        [{**shared, "data": rows[:270], "group": "a"}, {**shared, "data": rows[270:], "group": "b", **gate}]
    )


def test_statistics_of_a_group_that_does_not_pass_its_gate_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def passes(gate: Gate, score: float) -> bool:
        asked.append(score)
        gate.best_score = score
        return len(asked) == 1

    monkeypatch.setattr(Gate, "passes", passes)
    found = gated(tmp_path, gate="best", gate_failures=1000)
    assert [result.outcome for result in found] == ["converged"] * 2, found
    assert len(asked) > 1 and all(score < 0 for score in asked)
    key, counted = "rounds/{}/result", []
    for number in range(1, 1000):
        file = tmp_path / "bucket" / key.format(number)
        if not file.exists():
            break
        content = PlainObjects().open(key.format(number), file.read_bytes())
        counted.append({entry.group for entry in decode(content, RoundResult)[0].entries})
    first = next(at for at, groups in enumerate(counted) if "b" in groups)
    assert all("b" in groups for groups in counted[first:]), counted
    assert found[0].sites["groups"] == ["a", "b"]


def test_a_group_below_its_threshold_is_excluded_and_leaves_the_model(tmp_path: Path) -> None:
    a, b = gated(tmp_path, gate="1e9", gate_failures=2)
    assert b.outcome == "excluded" and "this group is excluded: 2 times in a row its score" in b.reason
    assert a.outcome == "converged" and a.sites["groups"] == ["a"]
    held = PlainObjects().open("members/b", (tmp_path / "bucket" / "members" / "b").read_bytes())
    assert decode(held, MemberBeat)[0].state == "excluded"


def test_a_score_that_raises_ends_its_group_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> float:
        raise ValueError("no score today")

    monkeypatch.setattr(session.GroupSession, "_scorer", lambda self, parameter: broken)
    a, b = gated(tmp_path, gate="best")
    assert a.outcome == "converged" and b.outcome == "excluded" and "no score today" in b.reason


def test_a_site_with_fewer_rows_than_the_minimum_shows_nothing_of_them(tmp_path: Path) -> None:
    rows, place = sorted_blobs(rows=40).astype(np.float64), str(tmp_path)
    shared: dict[str, Any] = {"algorithm": KMeans(k=4), "bucket": place, "sync": "bsp", "every": "1"}
    with pytest.raises(UsageError, match=r"This site has 20 rows, fewer than .*least_rows.*; start a larger site"):
        flegel.run(data=rows[:20], group="small", processes=False, least_rows=50, **shared)
    assert not (tmp_path / "job").exists()
    jobs = [{**shared, "data": part, "group": name, "groups": 3, "least_rows": 30} for name, part in zip(
        ("small", "one", "two"), (rows[:20], rows[20:180], rows[180:]), strict=True)]  # fmt: skip
    small, one, two = outcomes(jobs)
    assert [type(found) for found in (small, one, two)] == [Result] * 3, (small, one, two)
    assert one.sites["groups"] == two.sites["groups"] == small.sites["groups"] == ["one", "two"]
    assert small.sites["withheld"] > 0 and any("were not sent" in warning for warning in small.warnings)
    assert one.sites["agreed_in"] is not None or one.sites["objective_of"] == ["one", "two"]
    starts = PlainObjects().open("starts/small", (tmp_path / "starts" / "small").read_bytes())
    assert len(decode(starts, StartRows)[1][0]) == 0


def test_means_for_the_start_are_of_as_many_rows_as_asked_for() -> None:
    rows = sorted_blobs(rows=40).astype(np.float64)
    found = representatives(Sample(rows, None, len(rows), 4), np.random.default_rng(0), 30)
    assert found is not None and len(found[0]) and found[1].min() >= 30


class Removal(Callback):
    """Removes the bucket after the third round, and ends the job when its group has written to it again."""

    def __init__(self, bucket: Path) -> None:
        self._bucket, self._is_removed = bucket, False

    def after_barrier(self, snapshot: JobSnapshot) -> bool:
        if not self._is_removed and (self._bucket / "rounds" / "3" / "result").exists():
            self._bucket.rename(self._bucket.with_name("elsewhere"))
            self._is_removed = True
        return self._is_removed and (self._bucket / "members" / "a").exists()


def test_a_bucket_that_is_removed_while_groups_train_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = tmp_path / "bucket"
    flegel.run(
        KMeans(k=3), sorted_blobs(rows=40), group="a", bucket=str(bucket), processes=False, workers=1, every="1",
        sync="bsp", tolerance=0, max_seconds=600.0, callbacks=[Removal(bucket)],
    )  # fmt: skip
    told = [record.message for record in caplog.records if "was removed from the bucket" in record.message]
    assert len([text for text in told if text.startswith("members/a")]) == 1, caplog.records


def test_a_bucket_is_listed_without_being_changed(tmp_path: Path) -> None:
    place = tmp_path / "job"
    result = flegel.run(
        KMeans(k=2), sorted_blobs(rows=10), group="a", bucket=str(place), processes=False, every="1", workers=1
    )
    assert 0.0 < result.sites["goodput"] <= 1.0 and result.sites["ages"] == {}
    files = {path: path.lstat().st_mtime_ns for path in place.rglob("*")}
    training, found = BucketReader(str(place)).look(0.0)
    assert "KMeans" in training and "quorum all" in training
    assert found["final"] and [(g["group"], g["state"]) for g in found["groups"]] == [("a", "finished")]
    assert {path: path.lstat().st_mtime_ns for path in place.rglob("*")} == files
    with pytest.raises(UsageError, match="is no folder"):
        BucketReader(str(tmp_path / "elsewhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="No training has begun"):
        BucketReader(str(tmp_path / "empty")).look(0.0)


def test_a_damaged_bucket_is_listed_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    flegel.run(KMeans(k=2), sorted_blobs(rows=10), group="a", bucket=str(tmp_path), processes=False, workers=1)
    training = BucketReader(str(tmp_path)).look(0.0)[0]
    bucket, seal = FolderBucket(tmp_path), PlainObjects()
    held = seal.open("members/a", (tmp_path / "members" / "a").read_bytes())
    package = decode(held, MemberBeat)[0].package
    bucket.put("members/b", b"rubbish")
    (tmp_path / "current").write_bytes(b"rubbish")
    for name, sent, hash_ in (("liar", "../../etc/passwd", package), ("earlier", "", "0" * 64)):
        beat = MemberBeat(name, 1, 1, "training", 3, sent, "", 2, package=hash_)
        bucket.put(f"members/{name}", seal.seal(f"members/{name}", encode(beat)))
    again, found = BucketReader(str(tmp_path)).look(0.0)
    assert again == training and [group["group"] for group in found["groups"]] == ["a", "liar"]
    assert set(found["refused"]) == {"members/b", "current", "../../etc/passwd"}
