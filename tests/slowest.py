"""Which tests take longest, from the report of the last `make test` (build/tests.xml); runs none.

`make slowest` prints the slowest 50 tests and files. `python -m tests.slowest --write` keeps the files that take longer
than `KEPT_FROM_SECONDS` in tests/slow_files.txt, the longest first: tests/conftest.py starts them first, so that no
long file is left for one process when the others are done.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

REPORT = Path(__file__).resolve().parents[1] / "build" / "tests.xml"
SLOW_FILES = Path(__file__).with_name("slow_files.txt")
SHOWN_TESTS, SHOWN_FILES = 50, 20
KEPT_FROM_SECONDS = 5.0
"""Files below this end too soon to delay the end of a run."""


def times(report: Path) -> dict[tuple[str, str], float]:
    """Seconds of each test, by file and name, with its fixtures."""
    found: dict[tuple[str, str], float] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        modules = [part for part in case.get("classname", "").split(".") if not part.startswith("Test")]  # no classes
        found["/".join(modules) + ".py", case.get("name", "")] = float(case.get("time", 0.0))
    return found


def by_file(tests: dict[tuple[str, str], float]) -> list[tuple[str, float]]:
    """Files and their seconds, the longest first."""
    seconds: Counter[str] = Counter()
    for (path, _), took in tests.items():
        seconds[path] += took  # type: ignore[assignment]
    return seconds.most_common()  # type: ignore[return-value]


def slow_files() -> list[str]:
    """The files that are started first."""
    return [line.split()[1] for line in SLOW_FILES.read_text().splitlines() if line and not line.startswith("#")]


def main() -> None:
    """Print the table, or write the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the slow files in tests/slow_files.txt")
    write = parser.parse_args().write
    if not REPORT.exists():
        raise SystemExit(f"{REPORT} does not exist; run make test first.")
    tests = times(REPORT)
    files = by_file(tests)
    if write:
        head = (
            "# Seconds and files, the longest first; `python -m tests.slowest --write` writes them after `make test`.\n"
        )
        lines = [f"{took:.0f} {path}\n" for path, took in files if took >= KEPT_FROM_SECONDS]
        SLOW_FILES.write_text(head + "".join(lines))
        return
    print(f"{len(tests)} tests, {sum(tests.values()):.0f} s in all processes together")
    for path, took in files[:SHOWN_FILES]:
        print(f"{took:8.1f} s  {path}")
    print("\nslowest tests")
    for (path, name), took in sorted(tests.items(), key=lambda item: -item[1])[:SHOWN_TESTS]:
        print(f"{took:8.1f} s  {path}::{name}")


if __name__ == "__main__":
    main()
