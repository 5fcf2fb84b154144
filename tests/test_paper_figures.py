"""Every figure and table of the papers has a name, a program that measures it, and a place on the page of results."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench.common.paper_figures import BY_NAME, FIGURES, PAPERS, PaperFigure, measured_by
from bench.common.papers_page import outcome, page, summary
from bench.common.scripts import choose, scripts
from bench.figures.linearity import Stage, inflection, progress, straightness
from flegel.errors import UsageError
from tests.compare.samples import bench

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "bench"
SCRIPTS = {script.name: script for script in scripts(BENCH)}
MEASURED = [figure for figure in FIGURES if figure.program]


def test_every_paper_has_figures_and_every_name_is_one_of_a_paper() -> None:
    assert len(BY_NAME) == len(FIGURES)
    assert {figure.paper for figure in FIGURES} == set(PAPERS)
    assert BY_NAME["004-table2"].label == "Table 2" and BY_NAME["004-fig16b"].label == "Fig. 16b"


@pytest.mark.parametrize("figure", MEASURED, ids=lambda figure: figure.name)
def test_a_figure_is_measured_by_a_program_of_the_suite_and_says_what_differs(figure: PaperFigure) -> None:
    assert figure.differs and figure.said
    assert SCRIPTS[figure.program].figure, "`run all` would leave it out"
    if figure.part:
        assert figure.part in _words(SCRIPTS[figure.program].path), f"{figure.program} has no part {figure.part}"
        assert figure.name in SCRIPTS[figure.program].path.read_text(), "no sentence of the program is about it"


def _words(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def test_every_program_with_a_figure_of_a_paper_is_in_the_catalogue() -> None:
    named = {figure.program for figure in MEASURED}
    assert {s.name for s in SCRIPTS.values() if s.figure and s.figure != "Peers"} == named


def test_a_figure_chooses_its_part_and_several_are_one_run() -> None:
    def parts(*words: str) -> dict[str, tuple[str, ...]]:
        return {script.name: script.parts for script in choose(list(SCRIPTS.values()), words)}

    assert parts("003-fig5") == {"servers": ("changes",)}
    assert parts("003-fig5", "001-FIG5", "001-fig6") == {"servers": ("changes", "roles")}
    assert parts("003-fig5", "servers") == parts("servers", "003-fig5") == {"servers": ()}
    assert parts("004-fig9") == parts("fig9") == {"skew": ()}
    assert parts("004-fig2b") == parts("004-fig2") and parts("004-fig16b") == {"gpu": ()}
    for word, told in (
        ("004-fig2a", "diagram.*004-fig2 measures"), ("004-fig2bb", "did you mean"), ("002", "002-fig4, 002-table1"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=told):
            parts(word)
    assert [f.name for f in measured_by("servers", ["sizes"])] == ["003-fig6"]


def test_a_diagram_is_refused_with_what_it_shows() -> None:
    with pytest.raises(UsageError, match=r"000-fig5 is a diagram or a list: nothing is measured; format of a message"):
        choose(list(SCRIPTS.values()), ["000-fig5"])
    with pytest.raises(UsageError, match="did you mean '004-fig7'"):
        choose(list(SCRIPTS.values()), ["04-fig7"])


def test_the_page_has_every_figure_with_what_a_run_said() -> None:
    record = bench()
    record.name, record.answer = "servers", ["of all"]
    record.by_figure = {"003-fig4": ["aware is 1.3 times as fast | and more."]}
    made = summary({"servers": record}, "smoke", "python -m bench.run_suite run all")
    text = page(made)
    assert all(f"`{figure.name}`" in text for figure in MEASURED)
    assert "aware is 1.3 times as fast / and more |" in text and "not run" in text
    skew = bench()
    skew.answer, skew.by_figure = ["The paper: nothing.", "bsp took longer."], {}
    assert outcome(BY_NAME["004-fig9"], skew) == ["bsp took longer."]
    skew.answer, skew.skipped = [], [("all of it", "there is no GPU here")]
    assert outcome(BY_NAME["004-fig16b"], skew) == ["left out: all of it (there is no GPU here)"]


def test_two_lines_meet_where_they_bend() -> None:
    bent = [(float(t), 10.0 - t if t < 6 else 4.0 - 0.1 * (t - 6)) for t in range(20)]
    assert inflection(bent) in (6, 7) and straightness(bent[:6]) == pytest.approx(1.0)
    assert straightness(bent) < 0.9


def test_progress_of_an_interval_is_counted_between_two_objectives_and_not_between_two_times() -> None:
    early = [(0.0, 10.0), (1.0, 6.0), (2.0, 4.0)]
    late = [(t + 5.0, f) for t, f in early]
    assert progress(early, 8.0, 5.0) == progress(late, 8.0, 5.0) == pytest.approx(3.0)
    assert math.isnan(progress(early, 8.0, 3.0)), "it never came so far"
    assert Stage([(0.1, 3.0), (0.2, 2.0), (0.3, 1.0)]).falls and not Stage([(0.1, 1.0), (0.2, 2.0), (0.3, 3.0)]).falls


@pytest.mark.slow
def test_one_small_case_of_every_figure_runs_by_one_command(tmp_path: Path) -> None:
    words = ["run", "all", "--scale", "smoke", "--out", str(tmp_path), "--page", str(tmp_path / "papers.md")]
    done = subprocess.run([sys.executable, "-m", "bench.run_suite", *words], cwd=ROOT, timeout=1200, check=False)
    assert done.returncode == 0
    assert "not run" not in (tmp_path / "papers.md").read_text()
