"""A folder as a bucket, in which somebody else leaves things: pipes, links, huge files, a lock."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from flegel.runtime.group import folder_lock
from flegel.runtime.group.bucket import Conflict, FolderBucket
from flegel.runtime.group.folder_lock import FolderLock
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


class VirtualClock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> float:
        self.time += seconds
        return seconds


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    clock = VirtualClock()
    monkeypatch.setattr(folder_lock, "clock", clock)
    return clock


class FrozenBucket(FolderBucket):
    """Its process is stopped between its last comparison and its rename, and something happens meanwhile."""

    def __init__(self, path: Path, meanwhile: Callable[[], object]) -> None:
        super().__init__(path)
        self._meanwhile = meanwhile

    def _stat_tag(self, key: str) -> str:
        found = super()._stat_tag(key)
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()
        return found


@pytest.mark.parametrize(("key", "mode"), [("current", "swap"), ("rounds/3/result", "create")])
def test_a_process_that_is_frozen_with_the_lock_neither_keeps_it_nor_writes_late(
    folder: FolderBucket, virtual: VirtualClock, key: str, mode: str
) -> None:
    first = folder.put("current", b"first", "create")
    frozen = FrozenBucket(folder.path, lambda: folder.put(key, b"others", mode, first))
    with pytest.raises(OSError, match="others went on"):
        frozen.put("current", b"late", "swap", first)
    assert virtual.time - 100.0 < 2 * folder_lock.FENCED_AFTER_SECONDS
    held, current = folder.get(key), folder.get("current")
    assert held is not None and held.content == b"others" and current is not None and current.content != b"late"
    assert not list(folder.path.rglob("*.part"))


def test_a_rename_before_the_others_lose_patience_holds(folder: FolderBucket, virtual: VirtualClock) -> None:
    first = folder.put("current", b"first", "create")
    tag = FrozenBucket(folder.path, lambda: virtual.sleep(100.0)).put("current", b"second", "swap", first)
    with pytest.raises(Conflict):
        folder.put("current", b"third", "swap", first)
    assert folder.get("current") == (b"second", tag)


def test_a_process_that_slept_while_turns_were_used_and_removed_has_no_turn(folder: FolderBucket) -> None:
    scratch = folder.path / ".mine.part"
    scratch.touch()
    lock = FolderLock(folder.path)
    newest, looks = lock._newest, list[int]()

    def slept() -> int:
        """The first look is of long ago."""
        looks.append(newest())
        if len(looks) == 1:
            for _ in range(folder_lock.KEPT_TURNS + 3):
                folder.put("current", b"x" * (1 + (folder.path / "current").exists()))
                with contextlib.suppress(Conflict):
                    folder.put(f"rounds/{newest()}/result", b"", "create")
        return looks[-1]

    lock._newest = slept  # type: ignore[method-assign]
    lock.take(scratch)
    assert not (folder.path / ".locks" / "1").exists() and lock._holder(newest()) == scratch


def test_of_many_threads_that_swap_one_object_each_change_counts_once(folder: FolderBucket) -> None:
    folder.put("current", b"0", "create")

    def count() -> None:
        bucket, done = FolderBucket(folder.path), 0
        while done < 25:
            held = bucket.get("current")
            assert held is not None
            with contextlib.suppress(Conflict, OSError):
                bucket.put("current", str(int(held.content) + 1).encode(), "swap", held.tag)
                done += 1

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240.0)
    held = folder.get("current")
    assert held is not None and held.content == b"100"
    assert len(list((folder.path / ".locks").iterdir())) <= folder_lock.KEPT_TURNS + 1


def test_files_of_strangers_with_the_names_of_turns_are_left_out(folder: FolderBucket, tmp_path: Path) -> None:
    folder.put("a", b"1", "create")
    turns = next(tmp_path.rglob(".locks"))
    newest = max(int(one.name) for one in turns.iterdir())
    for number in (newest + 1, newest + 2, 10**17, 10**18 - 1):
        (turns / str(number)).touch()
    for content in (b"2", b"3", b"4"):
        found = folder.get("a")
        assert found is not None
        folder.put("a", content, "swap", found.tag)
    assert (turns / str(newest + 1)).read_bytes() == b""


def test_objects_can_be_read_by_other_accounts_as_the_umask_allows(folder: FolderBucket, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        folder.put("a", b"1")
    finally:
        os.umask(before)
    (found,) = [path for path in tmp_path.rglob("a") if path.is_file()]
    assert stat.S_IMODE(found.stat().st_mode) == 0o644


def test_what_strangers_leave_among_the_turns_of_the_lock_is_no_turn(folder: FolderBucket, tmp_path: Path) -> None:
    outside = tmp_path / ".precious.part"
    outside.touch()
    turns = folder.path / ".locks"
    turns.mkdir()
    pipe(turns / "3")
    (turns / "7").symlink_to("../../.precious.part")
    (turns / "note").touch()
    (turns / ("9" * 40)).touch()
    folder.put("job", b"", "create")
    assert outside.exists() and (turns / "8").is_symlink()


@pytest.mark.parametrize("make", [pipe, link])
def test_something_else_in_the_place_of_the_lock_is_told(folder: FolderBucket, make: object) -> None:
    make(folder.path / ".locks")  # type: ignore[operator]
    with pytest.raises(OSError, match=r"\.locks"):
        folder.put("job", b"", "create")


STOPPED = """
import os, signal, sys
from pathlib import Path
from flegel.runtime.group.bucket import FolderBucket
bucket = FolderBucket(Path(sys.argv[1]))
replace = Path.replace
def stopped(self, target):
    os.kill(os.getpid(), signal.SIGSTOP)
    return replace(self, target)
Path.replace = stopped
try:
    bucket.put("current", b"late", "swap", sys.argv[2])
except OSError:
    sys.exit(3)
"""


@pytest.mark.processes
def test_a_real_process_that_is_stopped_with_the_lock_holds_nobody_up(folder: FolderBucket) -> None:
    tag = folder.put("current", b"first", "create")
    child = subprocess.Popen([sys.executable, "-c", STOPPED, str(folder.path), tag])
    try:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        folder.put("current", b"second", "swap", tag)
        child.send_signal(signal.SIGCONT)
        assert child.wait(240.0) == 3
    finally:
        child.kill()
    held = folder.get("current")
    assert held is not None and held.content == b"second"


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
