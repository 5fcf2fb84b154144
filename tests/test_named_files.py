"""Files that docstrings and comments name exist: a reader follows the name."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE_NAME = re.compile(r"(?<![\w./*<{…-])((?:[\w.-]+/)*[\w-]+\.(?:py|md))\b(?!:)")
SOURCES = sorted(path for name in ("flegel", "algorithms", "datasets") for path in (ROOT / name).rglob("*.py"))


def missing(text: str, folder: Path) -> list[str]:
    """Files that docstrings and comments of this source name, and that are neither in its folder, nor in the one above,
    nor below the root or `flegel/`."""
    places = (folder, folder.parent, ROOT, ROOT / "flegel")
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        prose = token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""'))
        for name in FILE_NAME.findall(token.string) if prose else ():
            if not any((place / name).exists() for place in places):
                found.append(f"{name} (line {token.start[0]})")
    return found


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in SOURCES}), ids=lambda path: str(path.relative_to(ROOT))
)
def test_docstrings_and_comments_name_only_files_that_exist(folder: str) -> None:
    for path in (ROOT / folder).glob("*.py"):
        gone = missing(path.read_text(encoding="utf-8"), path.parent)
        assert not gone, f"{path.relative_to(ROOT)} names files that do not exist: {gone}"


def test_a_file_that_does_not_exist_is_noticed() -> None:
    text = '"""See `machine/nowhere.py`, machine/worker/worker.py and kernel.py."""  # and gone.md\n'
    assert missing(text, ROOT / "algorithms" / "kmeans") == ["machine/nowhere.py (line 1)", "gone.md (line 1)"]
