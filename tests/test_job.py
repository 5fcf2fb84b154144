"""One description of a job: signatures, flags, records and messages are derived from its fields and agree with it."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.api import jobs as api
from flegel.cli import job_options
from flegel.cluster.transport.protocol import ClusterJob
from flegel.errors import UsageError
from flegel.job import AlgorithmRef, Job
from flegel.machine.coordinator.events import Timeouts
from flegel.options import Option, check_options, options_of, parse_seconds, with_options
from flegel.runtime.checkpoint.format import CHECKPOINT_FORMAT, JobRecord, seal
from flegel.runtime.checkpoint.reader import read
from flegel.runtime.checkpoint.store import FolderStore
from flegel.runtime.job.part import JobRun
from tests.checkpoint.stored_checkpoints import RECORD, three


class Inner(msgspec.Struct, frozen=True):
    pause: Annotated[float | None, Option("A pause.", parse=parse_seconds, resume="Another pause.")] = None


def check_even(value: int, shown: str) -> None:
    if value % 2:
        raise UsageError(f"{shown} must be even.")


class Toy(msgspec.Struct, frozen=True):
    """A record with options of every kind."""

    given: str = ""
    inner: Inner = Inner()
    pairs: Annotated[int, Option("Pairs.", check=check_even)] = 4
    quiet: Annotated[bool, Option("Say nothing.")] = False
    colour: Annotated[bool, Option("In colour.", name="coloured")] = True


def test_options_are_found_in_a_record_and_in_the_records_inside_it() -> None:
    found = options_of(Toy)
    assert list(found) == ["pause", "pairs", "quiet", "coloured"]
    assert found["pause"].path == ("inner", "pause") and found["pause"].word_type is str
    assert found["pause"].python_type == "float | str | None"
    assert (found["quiet"].flags, found["coloured"].flags) == ("--quiet", "--coloured/--no-coloured")


def test_values_are_parsed_and_put_where_they_belong() -> None:
    changed = with_options(Toy(), {"pause": "200ms", "pairs": 6, "coloured": False})
    assert changed == Toy(inner=Inner(0.2), pairs=6, colour=False)
    assert with_options(changed, {"pause": 3.0}) == Toy(inner=Inner(3.0), pairs=6, colour=False)
    with pytest.raises(TypeError, match="no option 'pair'; did you mean 'pairs'"):
        with_options(Toy(), {"pair": 6})
    with pytest.raises(UsageError, match="pairs=3 must be even"):
        check_options(Toy(pairs=3))


def test_an_option_that_is_added_is_a_flag_with_its_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_options, "FLAGS", options_of(Toy))
    seen: dict[str, Any] = {}

    @job_options.for_submit
    def command(**options: Any) -> None:
        seen.update(job_options.given(options))

    app = typer.Typer()
    app.command()(command)
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    assert all(text in shown for text in ("--pause", "A pause.", "--no-coloured", "Pairs."))
    assert CliRunner().invoke(app, ["--pause", "1s", "--no-coloured"]).exit_code == 0
    assert with_options(Toy(), seen) == Toy(inner=Inner(1.0), colour=False)


def test_the_record_that_editors_read_is_that_of_the_description() -> None:
    for function, record, known in (
        (api.run, api.RunOptions, api.RUN_OPTIONS),
        (api.resume, api.ResumeOptions, api.RESUME_OPTIONS),
    ):
        assert list(get_type_hints(record)) == list(known)
        assert set(known) <= set(inspect.signature(function).parameters)
        assert all(f"{option.name}: " in (function.__doc__ or "") for option in known.values())
    assert inspect.signature(api.run).parameters["hook_timeout"].default == Job().hook_timeout


def test_every_option_has_help_and_a_place_to_be_used() -> None:
    for option in options_of(Job).values():
        assert option.about.help.strip() and (option.about.local or option.about.cluster), option.name


@pytest.mark.parametrize("name", ["memory", "worker"])
def test_what_a_job_on_this_host_has_not_is_refused_in_python(name: str) -> None:
    with pytest.raises(TypeError, match=f"flegel.run has no option '{name}'"):
        flegel.run(KMeans(), np.zeros((4, 2)), **{name: 3})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"flegel\.resume has no option 'seed'"):
        flegel.resume("nowhere", seed=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--attribute", "--attribute works on this host only; omit it for a cluster."),
    ],
)
def test_what_a_cluster_has_not_is_refused(words: str, sentence: str, tmp_path: Path) -> None:
    from flegel.cli.main import app

    words = f"submit kmeans --data higgs --out {tmp_path / 'out'} --master tcp://127.0.0.1:9 {words}"
    outcome = CliRunner().invoke(app, words.split())
    assert (outcome.exit_code, outcome.stderr) == (2, f"flegel: {sentence}\n")


@pytest.mark.parametrize("words", ["--detach", "--name n", "--priority 1", "--memory 2G", "--retries 1"])
def test_what_only_a_cluster_has_is_refused_without_one(words: str) -> None:
    from flegel.cli.main import app

    outcome = CliRunner().invoke(app, f"submit kmeans --data higgs --no-save {words}".split())
    assert outcome.exit_code == 2
    assert outcome.stderr == (
        "flegel: --detach, --name, --priority, --memory and --retries are for a cluster: give --master.\n"
    )


def _first_member(kind: Any) -> Any:
    """Of several types the first; a dictionary is one type."""
    return get_args(kind)[0] if get_args(kind) and get_origin(kind) is not dict else kind


def everything() -> Job:
    """A job in which no option has its default."""

    def another(value: Any, kind: type) -> Any:
        if kind is bool:
            return not value
        if get_origin(kind) is list:
            return [*(value or []), "x", 3]
        if get_origin(kind) is dict:
            return {"interval.shortest_seconds": 0.001}
        return f"{value or ''}x" if kind is str or isinstance(value, str) else kind((value or 0) + 1)

    kinds = {name: _first_member(o.type) for name, o in options_of(Job).items()}
    values = {name: another(option.default, kinds[name]) for name, option in options_of(Job).items()}
    job = Job(AlgorithmRef("flegel.algorithms.kmeans.kmeans:KMeans", {"k": 3}), "points.npy")
    return with_options(job, {**values, "checkpoint": Path("store")})


def test_a_description_survives_its_journeys() -> None:
    job = everything()
    plain = Job()
    assert all(option.value(job) != option.value(plain) for option in options_of(Job).values())
    assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job
    sent = ClusterJob(**{name: getattr(job, name) for name in Job.__struct_fields__}, code="abc")
    heard = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=ClusterJob)
    assert heard == sent and heard.description == job and type(heard.description) is Job
    record = msgspec.structs.replace(RECORD, job=job)
    assert msgspec.json.decode(msgspec.json.encode(record), type=JobRecord).job == job


def test_checkpoints_of_another_format_are_refused_in_one_sentence(tmp_path: Path) -> None:
    three(FolderStore(tmp_path))
    older = b'{"format": 1, "epoch": 0, "workers": 2, "every": 30.0}'
    for path in [*tmp_path.glob("*.manifest"), tmp_path / "job"]:
        path.write_bytes(seal(older))
    with pytest.raises(UsageError) as refused:
        read(FolderStore(tmp_path))
    assert f"have format 1, this version of Flegel reads {CHECKPOINT_FORMAT}; resume the job" in str(refused.value)
    for path in tmp_path.glob("*.manifest"):
        path.unlink()
    with pytest.raises(UsageError, match="have format 1"):
        read(FolderStore(tmp_path))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"workers": "two"}, 'workers="two" must be a whole number.'),
        ({"workers": 2.5}, "workers=2.5 must be a whole number."),
        ({"max_iterations": [3]}, "max_iterations=[3] must be a whole number."),
        ({"tolerance": "small"}, 'tolerance="small" must be a number.'),
        ({"seed": None}, "seed=None must be a whole number."),
        ({"sync": 3}, "sync=3 must be text."),
        ({"audit": 100}, "audit=100 must be text."),
        ({"columns": 2}, "columns=2 must be a list."),
        ({"label": [1]}, "label=[1] must be text or a whole number."),
        ({"attribute": "yes"}, 'attribute="yes" must be True or False.'),
        ({"checkpoint": 3}, "checkpoint=3 must be text."),
        ({"out": 3}, "out=3 must be the path of a folder."),
        ({"cluster": "tcp://host:1"}, "cluster='tcp://host:1' must be a LocalCluster"),
        ({"watch": 3}, "watch=3 must be a function."),
        ({"callbacks": 3}, "callbacks= must be a list"),
    ],
)
def test_an_argument_of_another_type_is_refused_in_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        flegel.run("kmeans", np.ones((3, 2)), **given)
    assert str(refused.value).startswith(sentence)


def test_every_option_refuses_an_object_in_a_sentence() -> None:
    for name in api.RUN_OPTIONS:
        with pytest.raises(UsageError, match=f"^{name}="):
            flegel.run("kmeans", np.ones((3, 2)), **{name: object()})  # type: ignore[arg-type]


def test_numbers_of_numpy_and_whole_floats_are_numbers() -> None:
    job = with_options(Job(), {"workers": np.int64(2), "max_iterations": 1e3, "columns": np.array(["a", "b"])})
    assert (job.workers, job.criteria.max_iterations, job.columns) == (2, 1000, ["a", "b"])
    assert type(job.workers) is type(job.criteria.max_iterations) is int


def test_each_timeout_of_a_job_bounds_what_it_is_named_for() -> None:
    """Given by position once, the limit for silent workers ended jobs that were still reading their rows."""
    request: Any = SimpleNamespace(job=Job(worker_timeout=7.0, hook_timeout=11.0))
    found = JobRun(request, 0.0).timeouts
    assert (found.load, found.silence) == (Timeouts().load, 7.0) and found.hook >= 11.0
