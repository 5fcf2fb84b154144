"""The benchmarks of the suite: which there are, and several of them one after the other with one report of all.

`flegel bench list`, `flegel bench run 004-fig7`, `… run all --scale smoke`, `… report runs/bench`; where the command is
not installed, `python -m bench.run_suite` instead of `flegel bench`.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import NoReturn

from bench.common.paper_figures import FIGURES, PAPERS
from bench.common.papers_page import write_page
from bench.common.report import save_benchmarks
from bench.common.scripts import check_only, choose, scripts
from bench.common.suite import BUDGET, raise_terminated
from bench.common.suite_runner import SuiteRunner
from flegel.errors import FlegelError, UsageError
from flegel.terminal.reporting import errors_as_sentences, say

SUITE = Path(__file__).resolve().parent


class Words(argparse.ArgumentParser):
    """What was typed; a mistake is one sentence, as in the rest of the command."""

    def error(self, message: str) -> NoReturn:
        with errors_as_sentences():
            raise UsageError(f"{message}; `flegel bench --help` and `flegel bench list` say what there is.")
        raise AssertionError("the process has ended with a sentence")


def show() -> None:
    """Every figure of the papers, what is reproduced and what differs; then every program with its question."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `… list | head` is no error
    known = {script.name: script for script in scripts(SUITE)}
    for number, title in PAPERS.items():
        print(f"{number}  {title}")
        for figure in (f for f in FIGURES if f.paper == number):
            by = f"  [{' '.join(filter(None, (figure.program, figure.part)))}]" if figure.program else ""
            print(f"  {figure.name:11} {figure.shows}{by}")
            print(f"  {'':11} differs: {figure.differs}")
            for why in known[figure.program].missing if figure.program else ():
                print(f"  {'':11} unavailable: {why}")
    print("Programs, each by name (figures above are their parts)")
    for script in known.values():
        print(f"  {script.name:19} {script.question}")


def run(given: argparse.Namespace) -> None:
    """The benchmarks that are named, then the report."""
    signal.signal(signal.SIGTERM, raise_terminated)
    with errors_as_sentences(f"; what was measured so far is in {given.out}"):
        if given.scale not in BUDGET:
            raise UsageError(f"--scale {given.scale!r} must be one of {', '.join(BUDGET)}.")
        check_only(given.only)
        flags = {f"--{name}": getattr(given, name) for name in ("scale", "workers", "repeat", "seed")}
        flags["--only"] = given.only or None
        complete = given.scale == "smoke" and given.budget is None
        chosen = choose(scripts(SUITE), given.names)
        failed = SuiteRunner(chosen, given.out, flags, given.budget, say, complete).run()
        print(save_benchmarks(given.out))
        if given.page is not None:
            print(write_page(given.out, given.page, given.scale))
        if failed:
            raise FlegelError(f"These benchmarks failed: {', '.join(failed)}.")


def main() -> None:
    parser = Words(prog="flegel bench", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what the suite can answer, and what it cannot here")
    several = commands.add_parser("run", help="benchmarks one after the other, then one report")
    several.add_argument("names", nargs="+", metavar="NAME", help="names, figures (004-fig9, fig9), or all")
    several.add_argument("--scale", default="small", help=", ".join(BUDGET))
    several.add_argument("--workers", type=int, help="worker processes; one a core by default")
    several.add_argument("--repeat", type=int, help="runs of each candidate")
    several.add_argument("--seed", type=int, default=0)
    several.add_argument("--only", default="", help="algorithms with commas between; all by default")
    several.add_argument("--budget", type=float, help="seconds for everything, shared out")
    several.add_argument("--out", type=Path, default=Path("runs/bench"), help="folder for NAME.json and the report")
    several.add_argument(
        "--page", type=Path, help="Markdown page of all figures of the papers; its JSON lies beside it"
    )
    pages = commands.add_parser("report", help="one page of all benchmarks in a folder")
    pages.add_argument("folder", nargs="?", type=Path, default=Path("runs/bench"))
    pages.add_argument("--out", type=Path, help="the HTML file; FOLDER/report.html by default")
    pages.add_argument("--title", default="", help="headline of the page")
    given = parser.parse_args()
    if given.command == "run":
        run(given)
    elif given.command == "report":
        with errors_as_sentences():
            print(save_benchmarks(given.folder, given.out, given.title))
    else:
        show()


if __name__ == "__main__":
    main()
