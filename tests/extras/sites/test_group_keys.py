"""Keys of groups: forged, altered and moved objects are refused; a reader without a key learns nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import needs

needs.library("cryptography")

import flegel
from flegel.errors import UsageError
from flegel.runtime.group.keys import PlainObjects, RefusedObject, make_key_files, read_key_file

KEY, CONTENT = "members/paris", b"FLG1 statistics of paris"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_key_files(tmp_path, ["paris", "lyon"], encrypt=True)
    return tmp_path


def test_what_a_group_signs_the_others_can_read(keys: Path) -> None:
    paris, lyon = (read_key_file(str(keys / f"{name}.json"), name) for name in ("paris", "lyon"))
    sealed = paris.seal(KEY, CONTENT)
    assert lyon.open(KEY, sealed) == CONTENT
    assert CONTENT not in sealed and b"statistics" not in sealed
    assert (keys / "paris.json").stat().st_mode & 0o077 == 0


def test_altered_moved_unsigned_and_foreign_objects_are_refused(keys: Path, tmp_path: Path) -> None:
    paris, lyon = (read_key_file(str(keys / f"{name}.json"), name) for name in ("paris", "lyon"))
    sealed = paris.seal(KEY, CONTENT)
    for at in range(0, len(sealed), 7):
        with pytest.raises(RefusedObject):
            lyon.open(KEY, sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :])
    with pytest.raises(RefusedObject):
        lyon.open("rounds/3/result", sealed)
    with pytest.raises(RefusedObject, match="should be by paris"):
        paris.open(KEY, lyon.seal(KEY, CONTENT))
    with pytest.raises(RefusedObject, match="not signed"):
        lyon.open(KEY, CONTENT)
    make_key_files(tmp_path / "other", ["paris"], encrypt=True)
    stranger = read_key_file(str(tmp_path / "other" / "paris.json"), "paris")
    with pytest.raises(RefusedObject):
        lyon.open(KEY, stranger.seal(KEY, CONTENT))
    with pytest.raises(RefusedObject, match="group_key="):
        PlainObjects().open(KEY, sealed)


def test_groups_are_added_without_new_keys_for_the_others(keys: Path) -> None:
    before = read_key_file(str(keys / "paris.json"), "paris").seal(KEY, CONTENT)
    make_key_files(keys, ["tokyo"], encrypt=False)
    assert read_key_file(str(keys / "tokyo.json"), "tokyo").open(KEY, before) == CONTENT
    with pytest.raises(UsageError, match="is the key of paris"):
        read_key_file(str(keys / "paris.json"), "lyon")


def test_a_key_of_another_group_is_refused_before_data_are_read(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is the key of paris, not of lyon"):
        flegel.run("kmeans", "no-such.csv", group="lyon", bucket=str(tmp_path), group_key=str(keys / "paris.json"))


def test_a_folder_with_other_files_is_no_folder_of_keys(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"group": 1}')
    with pytest.raises(UsageError, match="no keys of groups"):
        make_key_files(tmp_path, ["a"], encrypt=False)
