"""What tests share: small data, warm workers.

Compiled code is kept in the user's cache, by content, so that a second run of the suite compiles nothing, in another
working copy either.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from flegel import LocalCluster
from tests import needs
from tests.slowest import PROCESSOR, slow_files

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("FLEGEL_WARM", "0")  # no test starts the compiler that fills the cache beside a first job
settings.register_profile(  # the same examples in every run: new ones are looked for at night
    "flegel",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
STORIES = int(os.environ.get("FLEGEL_STORIES", "10000"))
settings.register_profile(
    "nightly", settings.get_profile("flegel"), derandomize=False, max_examples=STORIES, stateful_step_count=50
)
settings.load_profile(os.environ.get("FLEGEL_PROFILE", "flegel"))


BEFORE = pytest.StashKey[float]()


def processor_seconds() -> float:
    """Of this process, and of all that it started and that have ended."""
    return sum(os.times()[:4])


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as under nohup; children of ours would ignore Ctrl-C too
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture is made: one of them may start the program."""
    wanted = [program for mark in item.iter_markers("needs_programs") for program in mark.args]
    if missing := [text for program in wanted if (text := needs.missing_program(program))]:
        needs.absent("; ".join(missing))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[BEFORE] = processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """For `make slowest`: unlike the seconds of the clock, those of the processor are the same on a busy machine."""
    try:
        return (yield)
    finally:
        item.user_properties.append((PROCESSOR, f"{processor_seconds() - item.stash[BEFORE]:.2f}"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Several processes share the rewriting of assertions, half of the time of collecting in a fresh clone: each begins
    its imports at another file, and finds those written that the others have come past."""
    mine: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if mine is None or session.config.args != session.config.getini("testpaths"):
        return
    ignored = [Path(path).resolve() for path in session.config.getoption("ignore") or ()]
    files = [p for p in sorted((ROOT / "tests").rglob("test_*.py")) if not any(p.is_relative_to(i) for i in ignored)]
    first = len(files) * int(mine["workerid"].removeprefix("gw")) // mine["workercount"]
    for path in files[first:] + files[:first]:
        top, name = path.parent, path.stem
        while (top / "__init__.py").exists():
            top, name = top.parent, f"{top.name}.{name}"
        if str(top) not in sys.path:
            sys.path.insert(0, str(top))  # as pytest does
        with contextlib.suppress(Exception, pytest.skip.Exception):  # told when it is collected
            importlib.import_module(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: with several processes, none of them is left alone with a long file at the end."""
    places = {path: place for place, path in enumerate(slow_files())}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


def blobs(rows: int = 3000, columns: int = 6, centres: int = 5, seed: int = 0, dtype: str = "float64") -> np.ndarray:
    """Overlapping clouds, so that k-means needs more than two passes."""
    rng = np.random.default_rng(seed)
    means = rng.normal(scale=2.0, size=(centres, columns))
    return (means[rng.integers(centres, size=rows)] + rng.normal(size=(rows, columns))).astype(dtype)


@pytest.fixture(autouse=True)
def logging_as_found() -> Iterator[None]:
    """Commands that run inside the tests configure `logging` for their process."""
    ours, root = logging.getLogger("flegel"), logging.getLogger()
    before = [(logger, logger.level, list(logger.handlers), logger.propagate) for logger in (ours, root)]
    yield
    for logger, level, handlers, propagate in before:
        logger.setLevel(level)
        logger.propagate = propagate
        for handler in [h for h in logger.handlers if h not in handlers and getattr(h, "of_flegel", False)]:
            logger.removeHandler(handler)


@pytest.fixture(scope="session")
def points() -> np.ndarray:
    return blobs()


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Eight warm workers for every test that needs some; most use the first two."""
    with LocalCluster(workers=8) as warm:
        yield warm


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Real data sets beside the project; tests that need them are skipped where there are none."""
    named = os.environ.get("FLEGEL_TEST_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no real data: set FLEGEL_TEST_DATA to the folder that holds them")
    return folder
