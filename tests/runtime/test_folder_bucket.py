"""A folder as a bucket, in which somebody else leaves things: pipes, links, huge files, a lock that is held."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from flegel.runtime.group import bucket as bucket_module
from flegel.runtime.group.bucket import Conflict, FolderBucket
from flegel.runtime.group.keys import PlainObjects, RefusedObject


@pytest.fixture
def folder(tmp_path: Path) -> FolderBucket:
    (tmp_path / "bucket").mkdir()
    return FolderBucket(tmp_path / "bucket")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 3 << 30)


def link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [pipe, huge, link])
def test_what_is_no_object_is_refused_and_can_be_replaced(folder: FolderBucket, make: object) -> None:
    make(folder.path / "current")  # type: ignore[operator]
    with pytest.raises(RefusedObject) as refused:
        folder.get("current", 1000)
    assert refused.value.tag
    with pytest.raises(Conflict):
        folder.put("current", b"new", "create")
    with pytest.raises(Conflict):
        folder.put("current", b"new", "swap", "another tag")
    tag = folder.put("current", b"new", "swap", refused.value.tag)
    assert folder.get("current") == (b"new", tag)


def test_a_folder_in_the_place_of_an_object_is_refused(folder: FolderBucket) -> None:
    directory(folder.path / "current")
    with pytest.raises(RefusedObject, match="no regular file"):
        folder.get("current")


def test_an_object_that_is_larger_than_asked_for_is_not_read(folder: FolderBucket) -> None:
    folder.put("current", b"x" * 1001)
    with pytest.raises(RefusedObject, match="1,001 bytes"):
        folder.get("current", 1000)


def test_no_name_leads_out_of_the_folder(folder: FolderBucket, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "paris").write_bytes(b"secret")
    (folder.path / "members").symlink_to(tmp_path / "elsewhere")
    for call in (
        lambda: folder.get("members/paris"), lambda: folder.put("members/paris", b""), lambda: folder.names("members/"),
        lambda: folder.delete("members/paris"),
    ):  # fmt: skip
        with pytest.raises(OSError, match="leads out"):
            call()


def test_names_that_no_group_can_have_are_not_listed(folder: FolderBucket) -> None:
    folder.put("members/paris", b"")
    for name in ("a b", ".hidden", "ü", "x\n"):
        (folder.path / "members" / name).write_bytes(b"")
    assert folder.names("members/") == ["members/paris"]


def test_a_lock_that_somebody_keeps_is_waited_for_until_a_deadline(
    folder: FolderBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.put("current", b"", "create")
    monkeypatch.setattr(bucket_module, "LOCK_SECONDS", 0.0)
    with (folder.path / ".lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another process holds"):
            folder.put("job", b"", "create")
    folder.put("job", b"", "create")


def test_a_pipe_in_the_place_of_the_lock_is_told(folder: FolderBucket) -> None:
    pipe(folder.path / ".lock")
    with pytest.raises(OSError, match="remove it"):
        folder.put("job", b"", "create")


def test_plain_objects_notice_damage_and_another_name() -> None:
    sealed = PlainObjects().seal("rounds/1/result", b"content")
    assert PlainObjects().open("rounds/1/result", sealed) == b"content"
    for at in range(len(sealed)):
        damaged = sealed[:at] + bytes([sealed[at] ^ 4]) + sealed[at + 1 :]
        for candidate in (damaged, sealed[:at]):
            with pytest.raises(RefusedObject):
                PlainObjects().open("rounds/1/result", candidate)
    with pytest.raises(RefusedObject, match="another name"):
        PlainObjects().open("rounds/2/result", sealed)
