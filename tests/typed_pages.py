"""Blocks of README and of the guides, and how they are typed.

    python tests/typed_pages.py FOLDER [--in-clones] [PAGE …]

types the pages, README and the tutorials where none is named, each in a folder of its own in FOLDER, with the programs
of the Python that runs it: `make release` does so with the installed wheel. These folders are empty, or clones of what
is committed here, whose `flegel` Python then imports in place of the installed one. Needs no pytest.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

if __name__ == "__main__":  # run by its path: then its own folder is searched, and no module of the checkout is found
    from ports import free_port
else:
    from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docs", "docs/launch", "docs/tutorials")
PAGES = [ROOT / "README.md", *(page for folder in FOLDERS for page in sorted((ROOT / folder).glob("*.md")))]
BLOCK = re.compile(
    r"(?:^<!-- (?:not run: (?P<reason>[^\n]+)|with (?P<needs>\w+)|file (?P<file>\S+)) -->\n+)?"
    r"^```(?P<language>\S*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(
    r"(\.venv/bin/)?(flegel|python|pip|make|mkdir|docker|kubectl|helm|export|[A-Z_]+=\S+ flegel|\w+\$ )\b"
)
LARGE = re.compile(r"higgs|flegel demo|blobs:200000|--workers 10000|-m bench|compare\(|simulate\(")
"""Blocks that train for seconds or minutes: at night."""
LIMIT = 570.0  # seconds of a page, on a busy machine
PORTS_OF_PAGES = re.compile(r"\b7[03]77\b")
"""Ports of daemons that blocks start; another that is free is taken in their place, one for a page."""


class Block(NamedTuple):
    line: int
    language: str
    text: str
    reason: str
    """Why it is not run; empty where it is."""
    needs: str = ""
    """What `make test` does not have: libraries (`extras`), or a system that the tests start, such as `slurm`."""
    file: str = ""
    """Where a reader saves it, to name it in commands; it is no part of the page's script then."""

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
        yield Block(
            line, found["language"], found["text"], *(found[name] or "" for name in ("reason", "needs", "file"))
        )


def typed(page: Path, large: bool, needs: str = "") -> list[Block]:
    """Blocks of a page that run with nothing but what they need: at night all, otherwise those that take a moment."""
    wanted = [b for b in blocks(page) if b.is_typed and not b.reason and b.needs == needs]
    return [b for b in wanted if large or not LARGE.search(b.text)]


NETWORK = """
from torch import nn


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
"""


def make_files(folder: Path) -> None:
    """The files that the pages name."""
    (folder / "net.py").write_text(NETWORK, encoding="utf-8")
    rng = np.random.default_rng(0)
    table = rng.normal(size=(400, 3))
    np.savetxt(folder / "points.csv", table, delimiter=",")
    words = np.where(table[:, 0] > 0, "pulsar", "noise")
    rows = [f"{a:.4f},{b:.4f},{word}" for (a, b, _), word in zip(table, words, strict=True)]
    for name, heads in (("table.csv", "width,depth,target"), ("pulsars.csv", "width,depth,kind")):
        (folder / name).write_text("\n".join([heads, *rows]) + "\n")
    plain = [row.rpartition(",")[0] for row in rows]
    (folder / "checked.csv").write_text("\n".join(["width,depth,kind", *rows[:100]]) + "\n")
    for name in ("people.csv", "new.csv"):
        (folder / name).write_text("\n".join(["width,depth", *plain]) + "\n")
    ratings = rng.random((40, 30)) * (rng.random((40, 30)) < 0.4)
    row, column = np.nonzero(ratings)
    np.savez(
        folder / "ratings.npz", format=b"csr", shape=ratings.shape, data=ratings[row, column],
        indices=column.astype(np.int32), indptr=np.concatenate([[0], np.cumsum(np.bincount(row, minlength=40))]),
    )  # fmt: skip


def run(page: Path, chosen: list[Block], folder: Path, places: Mapping[str, str] | None = None) -> None:
    """The scripts of a page in one process, then its commands one after the other, all in one folder. Keys and the
    journal of a master are kept in that folder, too. `places` are addresses and folders that the page names, with those
    that stand for them here."""
    make_files(folder)
    for part in ("docs", "bench"):  # examples, and programs that only a checkout has
        if not (folder / part).exists():
            (folder / part).symlink_to(ROOT / part)
    port = str(free_port())

    def here(text: str) -> str:
        for named, found in (places or {}).items():
            text = text.replace(named, found)
        return text

    binaries = Path(sys.executable).parent
    for block in chosen:
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
    scripts = [b for b in chosen if b.language == "python" and not b.file]
    if scripts:
        (folder / "page.py").write_text(here("\n".join(b.text for b in scripts)), encoding="utf-8")
        execute([sys.executable, "page.py"], folder, f"{page.name}: its blocks of Python")
    for block in chosen:
        if block.is_shell:
            text = PORTS_OF_PAGES.sub(port, here(block.text).replace(".venv/bin/", ""))
            start = f'export PATH="{binaries}:$PATH" FLEGEL_HOME="{folder / "home"}"'
            execute(["sh", "-ec", f"{start}\n{text}"], folder, f"{page.name}:{block.line}")


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


def pages_of_a_release() -> list[Path]:
    """What somebody reads who has nothing but the wheel."""
    return [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("pages", type=Path, nargs="*")
    parser.add_argument("--in-clones", action="store_true")
    asked = parser.parse_args()
    for page in asked.pages or pages_of_a_release():
        print(page.name, flush=True)
        place = asked.folder / page.stem
        if asked.in_clones:
            subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(place)], check=True)
        else:
            place.mkdir(parents=True, exist_ok=True)
        run(page, typed(page, large=True), place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
