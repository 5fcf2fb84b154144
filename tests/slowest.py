"""Which tests take longest, from the reports of the last `make test` and `make test-extras` (build/tests*.xml); runs
none.

`make slowest` prints the slowest 50 tests and 20 files, by seconds of the clock and of processors. `python -m
tests.slowest --write` keeps the files that take longer than `KEPT_FROM_SECONDS` in tests/slow_files.txt, the longest
first, and leaves what it said of a folder that has no report: tests/conftest.py starts them first, so that no long file
is left for one process when the others are done.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

BUILD = Path(__file__).resolve().parents[1] / "build"
REPORTS = {"tests/extras/": BUILD / "tests-extras.xml", "tests/": BUILD / "tests.xml"}
"""By the beginnings of their tests' names."""
SLOW_FILES = Path(__file__).with_name("slow_files.txt")
SHOWN_TESTS, SHOWN_FILES = 50, 20
KEPT_FROM_SECONDS = 5.0
"""Files below this end too soon to delay the end of a run."""


PROCESSOR = "processor_seconds"
"""The property of a test in the report, which tests/conftest.py writes."""


class Time(NamedTuple):
    """What a test took, with its fixtures."""

    clock: float = 0.0
    processor: float = 0.0
    """Of its process and of processes that it started and that have ended; daemons count where they end."""

    def __add__(self, other: object) -> Time:  # type: ignore[override]
        assert isinstance(other, Time)
        return Time(self.clock + other.clock, self.processor + other.processor)


def times(report: Path) -> dict[tuple[str, str], Time]:
    """By file and name."""
    found: dict[tuple[str, str], Time] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        modules = [part for part in case.get("classname", "").split(".") if not part.startswith("Test")]  # no classes
        used = [each.get("value", "") for each in case.iter("property") if each.get("name") == PROCESSOR]
        found["/".join(modules) + ".py", case.get("name", "")] = Time(float(case.get("time", 0.0)), *map(float, used))
    return found


def by_file(tests: dict[tuple[str, str], Time]) -> list[tuple[str, Time]]:
    """Files and what their tests took, the longest first."""
    found: dict[str, Time] = {}
    for (path, _), took in tests.items():
        found[path] = found.get(path, Time()) + took
    return sorted(found.items(), key=lambda each: -each[1].clock)


def kept() -> Iterator[tuple[str, float]]:
    """Files of the list and their seconds."""
    for line in SLOW_FILES.read_text().splitlines():
        if line and not line.startswith("#"):
            seconds, path = line.split()
            yield path, float(seconds)


def folder_of(path: str) -> str:
    """The first folder of `REPORTS` that holds it."""
    return next(folder for folder in REPORTS if path.startswith(folder))


def slow_files() -> list[str]:
    """The files that are started first."""
    return [path for path, _ in kept()]


def main() -> None:
    """Print the table, or write the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the slow files in tests/slow_files.txt")
    write = parser.parse_args().write
    there = {folder: report for folder, report in REPORTS.items() if report.exists()}
    if not there:
        raise SystemExit(f"{BUILD} holds no report; run make test first.")
    tests = {name: took for report in there.values() for name, took in times(report).items()}
    if write:
        files = by_file(tests) + [(path, Time(s)) for path, s in kept() if folder_of(path) not in there]
        files.sort(key=lambda each: -each[1].clock)
        head = (
            "# Seconds and files, the longest first; `python -m tests.slowest --write` writes them after `make test`.\n"
        )
        lines = [f"{took.clock:.0f} {path}\n" for path, took in files if took.clock >= KEPT_FROM_SECONDS]
        SLOW_FILES.write_text(head + "".join(lines))
        return
    for line in table(tests):
        print(line)


def table(tests: dict[tuple[str, str], Time]) -> Iterator[str]:
    """The slowest files and tests, and those that keep processors busy longest: of the clock, of processors."""
    whole = sum(tests.values(), Time())
    yield f"{len(tests)} tests, {whole.clock:.0f} s in all processes together, {whole.processor:.0f} s of processors"
    named = {f"{path}::{name}": took for (path, name), took in tests.items()}
    for what, each, shown in (("files", dict(by_file(tests)), SHOWN_FILES), ("tests", named, SHOWN_TESTS)):
        yield f"\nslowest {what}"
        yield from lines(each, shown, lambda took: took.clock)
        yield f"\n{what} that take most of processors"
        yield from lines(each, shown, lambda took: took.processor)


def lines(tests: dict[str, Time], shown: int, key: Callable[[Time], float]) -> Iterator[str]:
    for name, took in sorted(tests.items(), key=lambda item: -key(item[1]))[:shown]:
        yield f"{took.clock:8.1f} s {took.processor:8.1f} s  {name}"


if __name__ == "__main__":
    main()
