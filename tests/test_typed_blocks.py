"""What the pages tell people to type, typed: every block of README and of the guides runs as it stands.

A block of Python runs as a script, together with the other ones of its page; a block without a language holds commands,
or what a command prints. The files that commands name are made first, small. A comment in front of a block says what
else it needs:

    <!-- file mine.py -->        what a reader saves under this name, for the commands after it
    <!-- with extras -->         libraries of `make test-extras`; tests/extras/test_typed_extras.py types it
    <!-- with slurm -->          or another system that tests/extras/test_typed_systems.py starts, at night
    <!-- with hosts -->          lines of several hosts, which tests/cluster/test_typed_keys.py types at night
    <!-- not run: reason -->     what no test has
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.extras.test_typed_systems import SYSTEMS
from tests.typed_pages import PAGES, ROOT, blocks, execute, run, typed

MOST_UNRUN = 3
"""Blocks that are not run, for want of a real cluster; to be lowered, never raised."""
CLUSTER = "needs a control plane of Kubernetes"
"""The one reason not to run a block."""


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
            assert block.reason.startswith(CLUSTER) or not block.reason, f"{named(page)}:{block.line} could be run"
            assert block.needs in ("", "extras", "hosts", *SYSTEMS), (
                f"{named(page)}:{block.line} needs what no test starts"
            )


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
