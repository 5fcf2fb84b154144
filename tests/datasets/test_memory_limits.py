"""Memory limits of control groups, as containers have them: they count like the memory of the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from flegel.datasets.rows import memory

GIB = 1 << 30


def group(folder: Path, version: int, limit: str, used: int, files: int = 0, active: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    total = "" if version == 2 else "total_"
    (folder / "memory.stat").write_text(f"{total}inactive_file {files}\n{total}active_file {active}\n")


def host(root: Path, line: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"3:cpu:/x\n{line}\n")
    return root / "sys/fs/cgroup"


def test_version_2_with_a_limit_above(tmp_path: Path) -> None:
    base = host(tmp_path, "0::/pod/box")
    group(base / "pod/box", 2, "max", GIB)
    group(base / "pod", 2, str(4 * GIB), 3 * GIB, files=GIB)
    assert list(memory.control_groups(str(tmp_path))) == [(4 * GIB, 2 * GIB)]


def test_version_1_inside_a_container_that_does_not_see_its_own_path(tmp_path: Path) -> None:
    base = host(tmp_path, "4:memory:/docker/0123") / "memory"
    group(base, 1, str(2 * GIB), GIB)
    assert list(memory.control_groups(str(tmp_path))) == [(2 * GIB, GIB)]


@pytest.mark.parametrize("version", [1, 2])
def test_files_that_were_read_twice_can_be_dropped_too(tmp_path: Path, version: int) -> None:
    base = host(tmp_path, "0::/box" if version == 2 else "4:memory:/box")
    group(base if version == 2 else base / "memory", version, str(2 * GIB), 2 * GIB, files=GIB // 4, active=GIB)
    assert list(memory.control_groups(str(tmp_path))) == [(2 * GIB, 3 * GIB // 4)]


def test_damage_and_absence_limit_nothing(tmp_path: Path) -> None:
    assert not list(memory.control_groups(str(tmp_path)))
    base = host(tmp_path, "0::/../../x")
    group(base, 2, "soon", GIB)
    assert not list(memory.control_groups(str(tmp_path)))


def test_the_smallest_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = memory.total()
    monkeypatch.setattr(memory, "control_groups", lambda: iter([(GIB, GIB // 4), (GIB // 2, GIB // 4)]))
    assert memory.total() == GIB // 2 < whole
    assert memory.available() == GIB // 4
    monkeypatch.setattr(memory, "control_groups", lambda: iter([(1 << 62, 0)]))
    assert memory.total() == whole
