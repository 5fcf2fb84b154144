"""Whole jobs of several groups through a folder: the fixed points are those of central training."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.nmf.kullback import KLNMF
from flegel.core.pytree import Array
from flegel.errors import UsageError
from flegel.machine.group.data_form import DataForm
from flegel.machine.group.records import MemberBeat, StartRows, encode
from flegel.results.result import Result
from flegel.runtime.group import session
from flegel.runtime.group.bucket import FolderBucket
from flegel.runtime.group.keys import SEALED_MARK, PlainObjects
from flegel.runtime.job import run


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
        thread.join(120.0)
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


def test_wrong_use_is_told_in_a_sentence(tmp_path: Path) -> None:
    rows = sorted_blobs(rows=10)
    with pytest.raises(UsageError, match="give both"):
        flegel.run(KMeans(k=2), rows, group="paris")
    with pytest.raises(UsageError, match="cannot be trained by groups"):
        flegel.run(KLNMF(), np.abs(rows), group="paris", bucket=str(tmp_path))
    with pytest.raises(UsageError, match="missing in the sums"):
        flegel.run(KMeans(k=2), rows, group="paris", bucket=str(tmp_path), gate="best", gate_data="x.csv")
    with pytest.raises(UsageError, match="every="):
        flegel.run(KMeans(k=2), rows, group="paris", bucket=str(tmp_path), every="often")
    flegel.run(KMeans(k=2), rows, group="paris", bucket=str(tmp_path), processes=False, max_iterations=2)
    with pytest.raises(UsageError, match="k=2"):
        flegel.run(KMeans(k=3), rows, group="lyon", bucket=str(tmp_path))
    with pytest.raises(UsageError, match=r"train .*kmeans"):
        flegel.run(GMM(k=2), rows, group="lyon", bucket=str(tmp_path))
    with pytest.raises(UsageError, match="have 4 columns, and this group has 3"):
        flegel.run(KMeans(k=2), rows[:, :3], group="lyon", bucket=str(tmp_path))


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
        thread.join(120.0)
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
    shared = {"bucket": str(tmp_path), "groups": 2, "every": "1", "sync": "bsp", "group_timeout": 3.0}
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

    def get(self, key: str, largest: int = 0) -> tuple[bytes, str] | None:
        if key != "members/a":
            return super().get(key, largest)
        self.looks += 1
        return PlainObjects().seal(key, encode(MemberBeat("a", 1, self.looks, "training", 3))), ""


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
    def told(request: object, why: str) -> None:
        raise UsageError(why)  # so that the test need not wait

    monkeypatch.setattr(run, "_waits", told)
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
