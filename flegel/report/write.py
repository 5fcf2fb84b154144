"""Reports and pictures from records: collects sections into a page and writes files. Draws nothing itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from flegel.compare.record import Comparison, read
from flegel.errors import StorageError, UsageError
from flegel.loading.damage import damage_as
from flegel.loading.documents import read_json
from flegel.report import saved_run
from flegel.report.comparison import comparison_section, where
from flegel.report.page import heading, page
from flegel.report.saved_run import SavedRun

Item = Comparison | SavedRun


def load(path: Path) -> Item:
    """A comparison or a single run: whatever the file or folder holds."""
    if path.is_dir():
        if not (path / "result.json").is_file():
            raise UsageError(f"{path} holds no result.json; give a folder that flegel submit made, or a JSON file.")
        return saved_run.read_saved_run(path)
    try:
        found = read_json(path)
    except OSError as error:
        raise UsageError(f"Could not read {path}: {error.strerror or error}.") from None
    if found.get("kind") == "bench":
        raise UsageError(
            f"{path} is the record of a benchmark; in a checkout, python -m bench.run_suite report shows it."
        )
    if found.get("kind") == "compare":
        comparison: Comparison = read(path)
        return comparison
    return saved_run.read_saved_run(path)


def render(items: Sequence[Item], title: str = "") -> str:
    """One page for all of them."""
    with damage_as("A record cannot be shown"):  # somebody else may have written it
        return _rendered(items, title)


def _rendered(items: Sequence[Item], title: str) -> str:
    return page_of([(_name(item), _section(item)) for item in items], title)


def page_of(sections: Sequence[tuple[str, str]], title: str = "", first: str = "") -> str:
    """Sections with their names, one after the other; `first` comes before them."""
    names = [name for name, _ in sections]
    anchors = [f"s{i}-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}" for i, name in enumerate(names)]
    body: list[str] = [first]
    for (name, section), anchor in zip(sections, anchors, strict=True):
        if len(sections) > 1 or title:
            body.append(heading(name, anchor))
        body.append(section)
    return page(title or (names[0] if len(names) == 1 else "Flegel"), body, list(zip(anchors, names, strict=True)))


def _name(item: Item) -> str:
    return item.title if isinstance(item, Comparison) else saved_run.title(item)


def _section(item: Item) -> str:
    if not isinstance(item, Comparison):
        return saved_run.section(item)
    place = where(item.environment, [("seed", str(item.seed))]) if item.environment else ""
    return comparison_section(item) + heading("Where and how", level=3) + place


def save(text: str, path: Path) -> Path:
    """Write a page in one step, so that a browser never sees half of it."""
    scratch = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise StorageError(f"Could not write {path}: {error.strerror or error}.") from None
    return path
