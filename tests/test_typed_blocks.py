"""What the pages tell people to type, typed: every block of README and of the guides runs as it stands.

A block of Python runs as a script, together with the other ones of its page; a block without a language holds commands,
or what a command prints. The files that commands name are made first, small. A block that needs what a test does not
have is marked in its page by a comment in front of it, `<!-- not run: reason -->`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docs", "docs/launch", "docs/tutorials")
PAGES = [ROOT / "README.md", *(page for folder in FOLDERS for page in sorted((ROOT / folder).glob("*.md")))]
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n+)?^```(?P<language>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
COMMAND = re.compile(
    r"(\.venv/bin/)?(flegel|python|pip|make|mkdir|docker|kubectl|helm|export|[A-Z_]+=\S+ flegel|\w+\$ )\b"
)
LARGE = re.compile(r"higgs|blobs:200000|--workers 10000|compare\(|simulate\(")
"""Blocks that train for seconds or minutes: at night."""
MOST_UNRUN = 51
"""Blocks that are not run; to be lowered, never raised without a reason that no test can do away with."""
LIMIT = 570.0  # seconds of a page, on a busy machine
PORT_OF_PAGES = "7377"
"""The port of daemons that blocks start; another that is free is taken in its place."""


class Block(NamedTuple):
    line: int
    language: str
    text: str
    reason: str
    """Why it is not run; empty where it is."""

    @property
    def is_shell(self) -> bool:
        return self.language in ("", "sh") and bool(COMMAND.match(self.text))

    @property
    def is_typed(self) -> bool:
        return self.is_shell or self.language == "python"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        line = text[: found.start("language")].count("\n") + 1
        yield Block(line, found["language"], found["text"], found["reason"] or "")


def typed(page: Path, large: bool) -> list[Block]:
    """Blocks of a page that run: at night all, otherwise those that take a moment."""
    return [b for b in blocks(page) if b.is_typed and not b.reason and (large or not LARGE.search(b.text))]


def make_files(folder: Path) -> None:
    """The files that the pages name."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(400, 3))
    np.savetxt(folder / "points.csv", table, delimiter=",")
    words = np.where(table[:, 0] > 0, "pulsar", "noise")
    rows = [f"{a:.4f},{b:.4f},{word}" for (a, b, _), word in zip(table, words, strict=True)]
    for name, heads in (("table.csv", "width,depth,target"), ("pulsars.csv", "width,depth,kind")):
        (folder / name).write_text("\n".join([heads, *rows]) + "\n")
    plain = [row.rpartition(",")[0] for row in rows]
    for name in ("people.csv", "new.csv"):
        (folder / name).write_text("\n".join(["width,depth", *plain]) + "\n")
    ratings = rng.random((40, 30)) * (rng.random((40, 30)) < 0.4)
    row, column = np.nonzero(ratings)
    np.savez(
        folder / "ratings.npz", format=b"csr", shape=ratings.shape, data=ratings[row, column],
        indices=column.astype(np.int32), indptr=np.concatenate([[0], np.cumsum(np.bincount(row, minlength=40))]),
    )  # fmt: skip


def run(page: Path, chosen: list[Block], folder: Path) -> None:
    """The scripts of a page in one process, then its commands one after the other, all in one folder."""
    make_files(folder)
    (folder / "docs").symlink_to(ROOT / "docs")
    binaries = Path(sys.executable).parent
    scripts = [b for b in chosen if b.language == "python"]
    if scripts:
        (folder / "page.py").write_text("\n".join(b.text for b in scripts), encoding="utf-8")
        execute([sys.executable, "page.py"], folder, f"{page.name}: its blocks of Python")
    for block in chosen:
        if block.is_shell:
            text = block.text.replace(".venv/bin/", "").replace(PORT_OF_PAGES, str(free_port()))
            execute(["sh", "-ec", f'PATH="{binaries}:$PATH"\n{text}'], folder, f"{page.name}:{block.line}")


def execute(command: list[str], folder: Path, what: str) -> str:
    """What a command prints. Daemons that a block starts and leaves keep its output open, so that goes to files, and
    they are ended with it."""
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, cwd=folder, stdout=printed, stderr=errors, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            code: object = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = f"no end within {LIMIT:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.seek(0), errors.seek(0)
        text = printed.read()
        assert code == 0, f"{what} fails ({code}):\n{text[-2000:]}\n{errors.read()[-3000:]}"
    return text


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.processes
@pytest.mark.parametrize("page", [p for p in PAGES if typed(p, large=False)], ids=named)
def test_blocks_of_a_page_run_as_typed(page: Path, tmp_path: Path) -> None:
    run(page, typed(page, large=False), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if len(typed(p, True)) > len(typed(p, False))], ids=named)
def test_all_blocks_of_a_page_run_as_typed(page: Path, tmp_path: Path) -> None:
    run(page, typed(page, large=True), tmp_path)


def test_blocks_that_are_not_run_are_few_and_have_a_reason() -> None:
    unrun = [(named(page), b.line) for page in PAGES for b in blocks(page) if b.reason]
    assert len(unrun) <= MOST_UNRUN, unrun
    for page in PAGES:
        for block in blocks(page):
            assert len(block.reason) > 10 or not block.reason, f"{named(page)}:{block.line} is not run for no reason"


@pytest.mark.processes
def test_a_block_that_fails_and_leaves_a_daemon_fails_at_once(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"here fails \(3\):\s+said"):
        execute(["sh", "-ec", "sleep 500 & echo said; exit 3"], tmp_path, "here")


@pytest.mark.processes
def test_the_first_example_runs_in_the_folder_of_a_checkout(tmp_path: Path) -> None:
    """Where the current folder is the checkout, its folder is what Python imports, whatever is installed: without the
    finder of an editable installation the algorithms and data sets beside it are found."""
    example = next(b for b in blocks(ROOT / "README.md") if b.language == "python")
    forget = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'ditable' not in repr(f)]\n"
    (tmp_path / "typed.py").write_text(forget + example.text.replace("200_000", "2_000"), encoding="utf-8")
    load = f"exec(open({str(tmp_path / 'typed.py')!r}).read())"
    assert "Result of kmeans" in execute([sys.executable, "-c", load], ROOT, "README's example in the checkout")
    where = forget + "import flegel.datasets, flegel.algorithms as a; print(a.__file__, flegel.datasets.__file__)"
    found = execute([sys.executable, "-c", where], ROOT, "imports in the checkout").split()
    assert found == [str(ROOT / top / "__init__.py") for top in ("algorithms", "datasets")]
