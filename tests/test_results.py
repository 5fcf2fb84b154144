"""The measured figures: every page cites a summary that exists, names its origin and has the numbers that are shown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import FENCE, PAGES, ROOT, named, relative_links

DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
SUMMARIES = sorted(RESULTS.glob("*.json"))
LARGEST_SUMMARY = 64_000  # bytes: a summary, not a record
LARGEST_DOCS = 3_000_000  # bytes of everything below docs/
ALGORITHMS = {"k-means": "kmeans", "GMM": "gmm", "FCM": "fcm", "LR": "lr", "NMF": "nmf"}
SLOW = {"8 times slower": "8 times slower", "pause": "pauses of 32 ms", "none": "none", "nobody slow": "none"}


def summary(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def linked_files() -> set[Path]:
    return {(page.parent / path).resolve() for page in PAGES for path, _ in relative_links(page) if path}


def tables(page: Path) -> list[list[list[str]]]:
    """Every table of a page as rows of cells; the first row is the head."""
    found: list[list[list[str]]] = []
    lines = FENCE.sub("", page.read_text(encoding="utf-8")).splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if not line.startswith("|"):
            continue
        if not before.startswith("|"):
            found.append([])
        if not re.fullmatch(r"[|:\- ]+", line):
            found[-1].append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return found


def table(page: Path, head: str) -> list[dict[str, str]]:
    """The rows of the one table whose head contains these words, by the names of its columns."""
    matching = [rows for rows in tables(page) if head in " | ".join(rows[0])]
    assert len(matching) == 1, f"{named(page)} has {len(matching)} tables with {head!r} in the head"
    names, *rows = matching[0]
    return [dict(zip(names, row, strict=True)) for row in rows]


def shown_as(cell: str) -> tuple[float, int, bool]:
    """The number of a cell, its decimals, and whether it is a lower bound."""
    number = re.fullmatch(r"\**(>? ?)([\d.,]+)(?: ?(?:s|ms|%))?\**", cell)
    assert number, f"{cell!r} is no number"
    digits = number[2].replace(",", "")
    return float(digits), len(digits.partition(".")[2]), bool(number[1].strip())


def assert_shows(cell: str, value: float, lower_bound: bool, where: str) -> None:
    number, decimals, bound = shown_as(cell)
    assert abs(number - value) <= 0.51 * 10**-decimals, f"{where}: the page says {cell}, the summary {value}"
    assert bound == lower_bound, f"{where}: the page says {cell}, the summary lower_bound={lower_bound}"


def test_every_file_of_results_is_linked_from_a_page() -> None:
    files = {path.resolve() for path in RESULTS.rglob("*") if path.is_file()}
    orphans = sorted(str(path.relative_to(ROOT)) for path in files - linked_files())
    assert files and not orphans, f"no page links to {orphans}"


def test_every_picture_is_linked_from_a_page() -> None:
    orphans = sorted(path.name for path in (DOCS / "img").iterdir() if path.resolve() not in linked_files())
    assert not orphans, f"no page links to {orphans}"


def test_results_hold_pages_summaries_and_pictures_only() -> None:
    others = sorted(str(p.relative_to(RESULTS)) for p in RESULTS.rglob("*") if p.suffix not in {".md", ".json", ".svg"})
    assert not others, f"raw records and generated pages do not belong into docs/results: {others}"


def test_the_pages_and_their_figures_stay_small() -> None:
    total = sum(path.stat().st_size for path in DOCS.rglob("*") if path.is_file())
    assert total < LARGEST_DOCS, f"docs/ has {total:,} bytes"


def origins(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Command, commit and machine of the whole, and of every part, which has the whole's where it says nothing."""
    whole = {key: record.get(key) for key in ("command", "commit", "machine")}
    return [whole, *({**whole, **part} for part in record.get("parts", {}).values())]


@pytest.mark.parametrize("path", SUMMARIES, ids=lambda p: p.name)
def test_a_summary_says_how_it_was_made(path: Path) -> None:
    record = summary(path.name)
    assert record["title"] and record["figures"], f"{path.name} has no figures"
    for origin in origins(record):
        assert re.search(r"\b(python -m bench\.|flegel )", origin["command"]), f"{path.name}: no command"
        assert not origin["commit"].endswith("+"), f"{path.name}: measured with files that differ from its commit"
        assert re.fullmatch(r"[0-9a-f]{12}", origin["commit"]), f"{path.name}: {origin['commit']!r} is no commit"
        assert len(origin["machine"]) > 10, f"{path.name}: no machine"
    strangers = [part for part in record.get("parts", {}) if part not in record["figures"]]
    assert not strangers, f"{path.name}: parts without figures: {strangers}"
    assert path.stat().st_size < LARGEST_SUMMARY, f"{path.name} is a record, not a summary"


@pytest.mark.parametrize("path", SUMMARIES, ids=lambda p: p.name)
def test_commands_of_summaries_run_programs_that_exist(path: Path) -> None:
    modules = {m for origin in origins(summary(path.name)) for m in re.findall(r"-m (bench[.\w]+)", origin["command"])}
    places = {module: ROOT / module.replace(".", "/") for module in modules}
    gone = [m for m, p in places.items() if not (p.with_suffix(".py").exists() or (p / "__main__.py").exists())]
    assert not gone, f"{path.name} was made by {gone}, which do not exist"


def numbers(value: Any) -> set[float]:
    """All numbers of a summary, also those in its texts."""
    if isinstance(value, bool) or value is None:
        return set()
    if isinstance(value, int | float):
        return {abs(float(value))}
    if isinstance(value, str):
        return {float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*(?:\.\d+)?", value)}
    inner = value.values() if isinstance(value, dict) else value
    return set().union(*(numbers(v) for v in inner)) if inner else set()


SCALES = (1.0, 1e2, 1e3, 1e-3, 1e-6)  # as it is, percent, milliseconds of seconds, thousands, millions
FRACTION = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?![\w.]*×)")


@pytest.mark.parametrize("page", sorted(RESULTS.glob("[a-z]*.md")), ids=named)
def test_every_fraction_in_a_table_of_a_results_page_is_in_a_summary_that_the_page_cites(page: Path) -> None:
    cited = [(page.parent / path).name for path, _ in relative_links(page) if path.endswith(".json")]
    assert cited, f"{named(page)} cites no summary"
    known = set().union(*(numbers(summary(name)["figures"]) for name in cited))
    for cell in (cell for rows in tables(page) for row in rows[1:] for cell in row):
        for text in FRACTION.findall(cell):
            shown, decimals = float(text.replace(",", "")), len(text.partition(".")[2])
            close = any(abs(shown - scale * n) <= 0.51 * 10**-decimals for n in known for scale in SCALES)
            assert close, f"{named(page)} shows {text} in {cell!r}, which is in none of {cited}"


def race_cell(algorithm: str, slow: str, model: str) -> Any:
    case = next(value for key, value in SLOW.items() if key in slow)
    return summary("race.json")["figures"][f"{ALGORITHMS[algorithm]}, {case}"][model]


def test_the_race_of_the_readme_is_that_of_its_summary() -> None:
    rows = table(ROOT / "README.md", "model | slow workers")
    assert len(rows) == 3
    for row in rows:
        for algorithm in ALGORITHMS:
            known = race_cell(algorithm, row["slow workers"], row["model"].strip("`"))
            where = f"README, {row['model']}, {row['slow workers']}, {algorithm}"
            assert_shows(row[algorithm], known["ratio"], known["lower_bound"], where)


def test_the_race_of_the_results_is_that_of_its_summary() -> None:
    rows = table(RESULTS / "models.md", "case | fsp, seconds")
    assert len(rows) == 15
    for row in rows:
        algorithm, _, slow = row["case"].partition(", ")
        for model in set(row) - {"case", "fsp, seconds"}:
            if row[model] != "–":
                known = race_cell(algorithm, slow, model)
                assert_shows(row[model], known["ratio"], known["lower_bound"], f"models.md, {row['case']}, {model}")


def test_cells_of_another_commit_are_in_italics() -> None:
    main = summary("race.json")["commit"]
    for row in table(ROOT / "README.md", "model | slow workers"):
        for algorithm in ALGORITHMS:
            known = race_cell(algorithm, row["slow workers"], row["model"].strip("`"))
            italic = row[algorithm].startswith("*")
            assert italic == (known["commit"] != main), f"README, {row['model']}, {row['slow workers']}, {algorithm}"


def peer(part: str, who: str) -> dict[str, str]:
    contests = summary("peers.json")["figures"][part]
    contest = next(t for t in contests if t["title"].endswith("11,000,000 rows, to within 0.1 %"))
    row = next(row for row in contest["rows"] if row[0] == who)
    return {"training": row[1], "end to end": row[3]}


def seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"s": 1.0, "ms": 1e-3}[unit]


def test_the_peers_of_the_benchmark_page_are_those_of_their_summary() -> None:
    parts = {"2": "2 cores, 11,000,000 rows", "16": "16 cores, 11,000,000 rows, within 0.1 %"}
    rows = {row["cores, quality"]: row for row in table(DOCS / "benchmarks.md", "cores, quality")}
    for cores, part in parts.items():
        row = rows[f"{cores}, within 0.1 %"]
        for column, who in (("Flegel: training, end to end", "flegel"), ("Lloyd", "scikit-learn Lloyd")):
            known, shown = peer(part, who), row[column].strip("*").split(", ")
            for cell, kind in zip(shown, ("training", "end to end"), strict=True):
                assert_shows(cell, seconds(known[kind]), False, f"benchmarks.md, peers on {cores} cores")


def test_the_range_of_kernel_speeds_in_the_readme_is_that_of_its_summary() -> None:
    figures = summary("kernels.json")["figures"]
    ratios = [r for c in figures["passes"] for who, r in c["ratio"].items() if who.startswith("scikit")]
    ratios += [c["ratio"] for c in figures["logistic regression"] if c["who"].startswith("scikit")]
    told = re.search(r"run at ([\d.]+) to ([\d.]+)\s+times the speed", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert told, "README says nothing about the speed of kernels"
    assert_shows(told[1], min(ratios), False, "README, slowest kernel")
    assert_shows(told[2], max(ratios), False, "README, fastest kernel")


def test_the_coordinator_table_is_that_of_its_summary() -> None:
    known = {(f["workers"], f["theta"]): f["median_ms"] for f in summary("coordinator.json")["figures"]}
    rows = table(RESULTS / "coordinator.md", "barrier, ms")
    assert len(rows) == len(known)
    for row in rows:
        workers = int(row["workers"].replace(",", ""))
        theta = 1000 * int(row["θ and statistics"].removesuffix(" kB").replace(",", ""))
        where = f"coordinator.md, {workers} workers, {theta} bytes"
        assert_shows(row["barrier, ms"], known[workers, theta], False, where)


def test_fault_figures_of_the_page_are_those_of_their_summary() -> None:
    faults = summary("faults.json")["figures"]
    assert faults["worker killed"]["kills"] == faults["worker killed"]["resumed"]
    assert faults["master killed"]["one_job_for_each_ticket"] == faults["master killed"]["kills"]
    text = (RESULTS / "chaos.md").read_text(encoding="utf-8")
    for name in ("worker killed", "coordinator killed"):
        times = faults[name].get("resume_s") or faults[name]["resumed_s"]
        for value in times.values():
            assert f"{value:.2f} s" in text, f"chaos.md does not show {value:.2f} s of {name}"
