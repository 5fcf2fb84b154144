"""Checkpoints on disk: whole or not at all, whatever fails while writing and whatever happens to the files later."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

import flegel
from flegel.errors import StorageError, UsageError
from flegel.runtime.checkpoint.reader import read
from flegel.runtime.checkpoint.resume import _check_usable
from flegel.runtime.checkpoint.store import FolderStore, open_store
from tests import needs
from tests.checkpoint.stored_checkpoints import (
    FAULTS,
    RECORD,
    Crash,
    FaultyDisk,
    HastyDisk,
    Writer,
    check_state,
    same_parameter,
    three,
)

BASE = 3


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three complete checkpoints."""
    folder = tmp_path_factory.mktemp("stored") / "job"
    three(FolderStore(folder, HastyDisk()))
    return folder


@pytest.fixture
def folder(stored: Path, tmp_path: Path) -> Path:
    """A copy to be ill-treated."""
    return Path(shutil.copytree(stored, tmp_path / "job"))


def test_the_newest_of_three_is_read_back_whole(stored: Path) -> None:
    found = read(FolderStore(stored))
    check_state(found, 2)
    assert not found.skipped and found.record == RECORD
    assert [m.number for m in found.history] == [3, 2, 1]
    assert same_parameter(found, 1)


def test_three_are_kept_and_nothing_that_belongs_to_none_of_them(folder: Path) -> None:
    (folder / "mine.txt").write_text("not a file of ours")
    found = read(FolderStore(folder))
    writer = Writer(FolderStore(folder, HastyDisk()), found).start()
    for at in range(3, 8):
        writer.write(at)
    writer.writer.close()
    check_state(read(FolderStore(folder)), 7)
    numbers = {p.name[:8] for p in folder.iterdir() if p.suffix == ".manifest"}
    assert numbers == {"00000006", "00000007", "00000008"}
    referenced = {name for m in read(FolderStore(folder)).history for name in (*m.files, m.name)}
    mine = {p.name for p in folder.iterdir() if p.name[:8].isdigit()}
    assert mine == referenced, "shared files stay as long as they are used, others go"
    assert (folder / "mine.txt").exists()
    assert len(list(folder.glob("*.trace"))) <= 6


@pytest.mark.parametrize("fault", ["EIO", "crash"])
def test_each_system_call_may_fail_and_a_complete_checkpoint_loads(fault: str, stored: Path, tmp_path: Path) -> None:
    found = read(FolderStore(stored))
    nth, hits = 0, set()
    while True:
        nth += 1
        here = tmp_path / str(nth)
        shutil.copytree(stored, here)
        disk = FaultyDisk(nth, FAULTS[fault])
        writer = Writer(FolderStore(here, disk), found)
        try:
            writer.write_here(BASE)
            failed = False
        except (OSError, Crash):
            failed = True
        if not disk.hit:
            break
        hits.add(disk.hit)
        after = read(FolderStore(here))
        assert not after.skipped, "what is half-written is not taken for damage"
        newest = 3 if after.manifest is not None and after.manifest.number == 4 else 2
        check_state(after, newest)
        if fault != "crash":
            disk.nth = 0
            if failed:
                assert not list(here.glob(".*.part")), "what could not be written is removed"
            writer.write_here(BASE + 1)  # the disk is well again
            check_state(read(FolderStore(here)), BASE + 1)
        else:
            assert FolderStore(here).lock() is None
            assert not list(here.glob(".*.part")), "what a dead writer left is swept"
        shutil.rmtree(here)
    assert nth > 40 and hits >= {"mkdir", "open", "write", "fsync", "close", "rename", "unlink"}


def test_a_full_disk_is_told_and_the_older_checkpoint_stays(folder: Path) -> None:
    disk = FaultyDisk(0, FAULTS["ENOSPC"])
    writer = Writer(FolderStore(folder, disk), read(FolderStore(folder))).start()
    disk.nth = disk.calls + 5
    writer.write(BASE)
    (said,) = writer.writer.errors()
    assert "No space left" in said and "training goes on" in said and "of iteration" in said
    check_state(read(FolderStore(folder)), 2)
    writer.write(BASE + 1)
    assert not writer.writer.errors()
    check_state(read(FolderStore(folder)), BASE + 1)
    writer.writer.close()


def test_a_disk_that_writes_little_at_a_time_is_no_fault(tmp_path: Path) -> None:
    class Reluctant(HastyDisk):
        def write(self, file: int, content: bytes | memoryview) -> int:
            return super().write(file, content[:1000])

    three(FolderStore(tmp_path / "job", Reluctant()))
    check_state(read(FolderStore(tmp_path / "job")), 2)


def check_damaged(folder: Path, name: str, used: dict[int, set[str]]) -> None:
    """With one file damaged or gone: the newest complete checkpoint loads, and the message says what was skipped."""
    found = read(FolderStore(folder))
    if name.endswith(".trace"):
        assert found.manifest is not None and found.manifest.number == 3
        assert any("lines of the trace are lost" in text for text in found.skipped) == (name in used[2])
    elif name in used[2]:
        check_state(found, 1)
        assert len(found.skipped) == 1 and "00000003-e0 was skipped" in found.skipped[0]
    else:
        check_state(found, 2)
    if name == "job":
        assert any("job was skipped" in text for text in found.skipped) and found.record == RECORD
    if name.startswith("commit") and (folder / name).exists():
        assert len(found.skipped) == 1 and name in found.skipped[0]


@pytest.fixture
def used(stored: Path) -> dict[int, set[str]]:
    """Files by checkpoint."""
    return {m.number - 1: {*m.files, m.name} for m in read(FolderStore(stored)).history}


def test_a_flipped_bit_is_noticed_wherever_it_is(folder: Path, used: dict[int, set[str]]) -> None:
    rng = np.random.default_rng(0)
    names = sorted(p.name for p in folder.iterdir() if p.stat().st_size and p.name != "lock")
    for turn in range(220):
        name = names[turn % len(names)]
        path = folder / name
        content = path.read_bytes()
        at, bit = int(rng.integers(len(content))), int(rng.integers(8))
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :])
        check_damaged(folder, name, used)
        path.write_bytes(content)
    check_state(read(FolderStore(folder)), 2)


@pytest.mark.parametrize("how", ["cut", "gone", "empty", "longer"])
def test_files_that_were_cut_or_lost_are_noticed(how: str, folder: Path, used: dict[int, set[str]]) -> None:
    for path in sorted(p for p in folder.iterdir() if p.stat().st_size and p.name != "lock"):
        content = path.read_bytes()
        match how:
            case "cut":
                path.write_bytes(content[:-1])
            case "empty":
                path.write_bytes(b"")
            case "longer":
                path.write_bytes(content + b"\0")
            case "gone":
                path.unlink()
        if how == "gone" and path.suffix == ".manifest":  # then there is no such checkpoint
            check_state(read(FolderStore(folder)), 1 if path.name in used[2] else 2)
        else:
            check_damaged(folder, path.name, used)
        path.write_bytes(content)


def test_a_folder_without_anything_usable_says_so(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match="holds no checkpoints"):
        read(FolderStore(tmp_path / "nothing"))
    for path in folder.iterdir():
        if path.name != "job":
            path.unlink()
    (folder / "job").write_bytes(b"{}")
    with pytest.raises(StorageError, match="cannot be used: its checksum is wrong"):
        read(FolderStore(folder))


def test_a_coordinator_that_was_replaced_writes_nothing_more(folder: Path) -> None:
    old = Writer(FolderStore(folder), read(FolderStore(folder))).start()
    new = Writer(FolderStore(folder), read(FolderStore(folder)), msgspec.structs.replace(RECORD, epoch=1)).start()
    new.write(3)
    old.write(4)
    old.commit(0)
    (said,) = old.writer.errors()
    assert "another coordinator has taken over" in said
    found = read(FolderStore(folder))
    check_state(found, 3)
    assert found.epoch == 1
    for each in (old, new):
        each.writer.close()


def test_one_process_at_a_time_has_the_folder(tmp_path: Path) -> None:
    first, second = FolderStore(tmp_path), FolderStore(tmp_path)
    assert first.lock() is None
    assert "process" in (second.lock() or "")
    first.release()
    assert second.lock() is None
    second.release()


def test_an_object_store_holds_the_same(tmp_path: Path) -> None:
    needs.library("fsspec")
    store = open_store("memory://bucket/job")
    three(store)
    found = read(open_store("memory://bucket/job"))
    check_state(found, 2)
    assert same_parameter(found, 1)
    store.drop(found.manifest.name)
    check_state(read(store), 1)


def test_names_and_places_that_cannot_be(tmp_path: Path) -> None:
    for name in ("../x", "a/b", "", ".hidden", "x" * 200):
        with pytest.raises(ValueError, match="is no name"):
            FolderStore(tmp_path).put(name, [b""])
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        open_store(tmp_path / "file")
    with pytest.raises(UsageError, match="is empty"):
        open_store(" ")
    with pytest.raises(UsageError, match="fsspec knows"):
        open_store("nowhere://bucket")


def damage_all(folder: Path) -> list[Path]:
    kept = [p for p in folder.iterdir() if p.name not in ("job", "lock")]
    for path in kept:
        path.write_bytes(path.read_bytes()[:-3] + b"???")
    return kept


def test_where_all_is_damaged_nothing_begins_anew_unless_that_is_said(folder: Path) -> None:
    kept = damage_all(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}
    store = FolderStore(folder)
    with pytest.raises(StorageError, match=r"Everything that was kept in .* is damaged .*begin_anew=True"):
        flegel.resume(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"} == before
    _check_usable(read(store), store, begin_anew=True)
    assert all(f"damaged-{path.name}" in store.names() for path in kept), "set aside, not replaced"
    assert read(store).damaged == []


def test_a_first_checkpoint_that_was_never_complete_is_no_damage(folder: Path) -> None:
    """A job that is killed before its first manifest is written begins anew, as it always did."""
    for path in folder.iterdir():
        if path.name.endswith(".manifest") or path.name.startswith("commit-"):
            path.unlink()
    store = FolderStore(folder)
    assert read(store).damaged == []
    _check_usable(read(store), store, begin_anew=False)
