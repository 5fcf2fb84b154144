"""A new synchronization model is one file: options, model list, candidates and checkpoints know it by its class."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from flegel import sync
from flegel.compare.candidate import parse_candidate
from flegel.errors import UsageError
from flegel.job import Criteria, SyncSpec
from flegel.machine.plain_data import freeze, pack, thaw, unpack
from flegel.sync import make_policy, models, options
from flegel.sync.policy import REGISTERED, Seconds, SyncModel
from tests.checkpoint.simulated_jobs import Shelf, job

TOY = '''
"""Half passes: a barrier after each of a few equal parts of a pass."""

from __future__ import annotations

from typing import ClassVar

from flegel.sync.policy import NOTHING, Decision, Reported, Started, SyncModel, TrainWorkers, Update, Updated


class Counter:
    def __init__(self) -> None:
        self.rounds = 0
        self.scratch = object()


class Toy(SyncModel):
    """Parts of a pass."""

    name = "toy"
    summary = "a barrier after each part of a pass"
    stored: ClassVar = {Counter: ("scratch",)}

    def __init__(self, batches: int = 2) -> None:
        self.batches = batches
        self.counter = Counter()

    def decide(self, event, view, now):
        match event:
            case Started() | Updated():
                self.counter.rounds += 1
                points = {w.id: max(1, w.points // self.batches) for w in view.workers.values()}
                return Decision((TrainWorkers(tuple(view.workers), points),))
            case Reported() if view.all_reported():
                return Decision((Update(tuple(view.workers)),))
        return NOTHING
'''


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[ModuleType]:
    """The file as if it lay in flegel/sync."""
    file = tmp_path / "toy.py"
    file.write_text(TOY)
    spec = importlib.util.spec_from_file_location("flegel.sync.toy", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["flegel.sync.toy"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["flegel.sync.toy"], REGISTERED["toy"]


def test_the_class_alone_makes_it_known(toy: ModuleType) -> None:
    assert models()["toy"] is toy.Toy
    made = make_policy(SyncSpec("toy", batches=4))
    assert isinstance(made, toy.Toy) and made.batches == 4
    assert parse_candidate("toy:batches=3").options == {"batches": 3}
    with pytest.raises(UsageError, match="toy has no --staleness; it is an option of ssp"):
        make_policy(SyncSpec("toy", staleness=1))


def test_its_memory_is_stored_and_restored(toy: ModuleType) -> None:
    made = make_policy(SyncSpec("toy"))
    made.counter.rounds = 7  # type: ignore[attr-defined]
    again = make_policy(SyncSpec("toy"))
    thaw(unpack(pack(freeze(made))), again)
    assert again.counter.rounds == 7 and type(again.counter.scratch) is object  # type: ignore[attr-defined]


def test_a_virtual_job_under_it_goes_on_from_a_checkpoint(toy: ModuleType) -> None:
    limit = Criteria(max_iterations=30, tolerance=0)
    shelf = Shelf()
    whole = job("toy", every=0.02, shelf=shelf, criteria=limit)
    assert whole.iteration == 30 and len(shelf.saves) >= 2
    save = shelf.saves[len(shelf.saves) // 2]
    again = job("toy", shelf=shelf, save=save, criteria=limit)
    assert again.iteration == 30
    assert again.state.policy.counter.rounds == whole.state.policy.counter.rounds  # type: ignore[attr-defined]
    assert [r.objective for r in again.trace][-1] == whole.trace[-1].objective


def test_every_file_of_the_package_is_looked_at_and_every_option_has_a_type() -> None:
    files = {path.stem for path in Path(sync.__file__).parent.glob("*.py")} - {"__init__"}
    own = [model for model in models().values() if model.__module__.startswith("flegel.")]  # not those of benchmarks
    defining = {model.__module__.rpartition(".")[2] for model in own}
    assert defining <= files
    for file in files:
        source = (Path(sync.__file__).parent / f"{file}.py").read_text(encoding="utf-8")
        assert (file in defining) == ("\n    name = " in source), f"{file}.py"
    for model in own:
        assert issubclass(model, SyncModel) and model.summary
    assert options()["interval"] == Seconds and options()["staleness"] is int and options()["balance"] is str
    assert set(options()) == set(SyncSpec.__struct_fields__) - {"name", "published"}
