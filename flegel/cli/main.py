"""The command line. Turns words into a request, and errors into one sentence and an exit code; trains nothing itself.

Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from flegel.cli import bench, cluster, simulate
from flegel.cli.data import app as data_app
from flegel.cli.keys import app as keys_app
from flegel.cli.options import Label, Settings
from flegel.errors import AlgorithmError, FlegelError, Interrupted, UsageError

app = typer.Typer(
    name="flegel",
    help="Train models on unequal machines: flexible barriers by time, nobody waits for a straggler.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point."""
    signal.signal(signal.SIGTERM, _terminated)
    app()


def _terminated(*_: object) -> NoReturn:
    raise SystemExit(143)


STOPPED = "; all workers were stopped and nothing was saved"
AS_BEFORE = "; all workers were stopped, and its checkpoints are as they were"


@contextmanager
def sentences(left: str = "") -> Iterator[None]:
    """Errors as people should see them; `left` tells what Ctrl-C leaves behind."""
    try:
        yield
    except FlegelError as error:
        if isinstance(error, AlgorithmError) and error.trace:
            print(error.trace.rstrip(), file=sys.stderr)
        print(f"flegel: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    except Interrupted as stop:
        print(f"flegel: {stop}", file=sys.stderr)
        raise typer.Exit(stop.exit_code) from None
    except KeyboardInterrupt:
        print(f"flegel: interrupted{left}.", file=sys.stderr)
        raise typer.Exit(130) from None
    except SystemExit as stop:
        if stop.code == 143:
            print(f"flegel: terminated{left}.", file=sys.stderr)
        raise
    except MemoryError:
        print("flegel: not enough memory; use fewer rows, or float32 data.", file=sys.stderr)
        raise typer.Exit(1) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"flegel: {where}{error.strerror or error}; mend that and try again.", file=sys.stderr)
        raise typer.Exit(1) from None


@app.command()
def submit(
    algorithm: Annotated[str, typer.Argument(help="A built-in name (see `flegel algorithms`) or file.py:Class.")],
    data: Annotated[str, typer.Option("--data", help="A data set's name (higgs, higgs:200000) or a path.")],
    workers: Annotated[int | None, typer.Option(help="Worker processes; one a core by default.")] = None,
    sync: Annotated[str, typer.Option(help="Synchronization model; see `flegel models`.")] = "fsp",
    interval: Annotated[
        str | None, typer.Option(help="Time between barriers, such as 200ms; found by itself if not given.")
    ] = None,
    first_interval: Annotated[
        str | None, typer.Option(help="fsp: where the search for the interval begins; measured if not given.")
    ] = None,
    coordination: Annotated[
        str | None,
        typer.Option(
            help="fsp: semi (default): who answers late to signals keeps its own time; centralized: signals only."
        ),
    ] = None,
    staleness: Annotated[int | None, typer.Option(help="ssp: batches a worker may be ahead of the slowest.")] = None,
    batches: Annotated[int | None, typer.Option(help="asp, ssp, psp, bsp-mini: batches of a pass.")] = None,
    factor: Annotated[float | None, typer.Option(help="fsp-binary: λ, by which the interval shrinks.")] = None,
    balance: Annotated[
        str | None,
        typer.Option(help="fsp: move points to fast workers while training (async), at barriers (sync), or off."),
    ] = None,
    straggler: Annotated[
        str, typer.Option(help="Slow workers down on purpose: 0-3:8x, 0:32ms/1000, 0:8x@10s-20s, …")
    ] = "",
    settings: Settings = None,
    target: Annotated[float | None, typer.Option(help="Stop when the objective is this good.")] = None,
    tolerance: Annotated[
        float, typer.Option(help="Stop when a full pass changes the objective by less, relatively; 0 is off.")
    ] = 1e-4,
    max_iterations: Annotated[int | None, typer.Option(help="Stop after so many barriers.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Stop after so many seconds of training.")] = None,
    seed: Annotated[int, typer.Option(help="Decides initial parameters and the order of the data.")] = 0,
    label: Label = None,
    partition: Annotated[
        str, typer.Option(help="Who owns which rows: shuffle, contiguous, 'sorted-by COLUMN' or dirichlet:ALPHA.")
    ] = "shuffle",
    scale: Annotated[str, typer.Option(help="Scale the columns: none, standard or minmax.")] = "none",
    worker_timeout: Annotated[str, typer.Option(help="A worker without a sign of life for so long is lost.")] = "10s",
    hook_timeout: Annotated[
        str, typer.Option(help="A hook, or a single point, that takes longer is endless; the job then fails.")
    ] = "30s",
    replace: Annotated[
        bool,
        typer.Option(
            "--replace/--no-replace", help="Start another process for a lost worker, or share its points out."
        ),
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for model, result and trace; a new one under runs/ by default."),
    ] = None,
    json_to: Annotated[
        str | None,
        typer.Option("--json", help="Write the result as JSON to this file, or - for standard output."),
    ] = None,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Keep model, result and trace.")] = True,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Keep the job's state in this folder or store (s3://…), for `flegel resume`."),
    ] = None,
    checkpoint_every: Annotated[
        str | None, typer.Option(help="Time between two checkpoints.", show_default="30s")
    ] = None,
    attribute: Annotated[
        bool,
        typer.Option("--attribute", help="Show what each worker does for the objective (Δf); costs some time."),
    ] = False,
    master: cluster.MaybeMaster = None,
    detach: Annotated[bool, typer.Option("--detach", help="Cluster: print the job's name and do not wait.")] = False,
    name: Annotated[str | None, typer.Option(help="Cluster: name of the job.")] = None,
    priority: Annotated[int, typer.Option(help="Cluster: jobs with a larger one go first.")] = 0,
    memory: Annotated[str | None, typer.Option(help="Cluster: limit of each process, such as 2G.")] = None,
    retries: Annotated[int, typer.Option(help="Cluster: start again so often when it crashes.")] = 0,
    insecure: cluster.Insecure = False,
) -> None:
    """Train a model on workers of this host, or on a cluster.

    For example:

        flegel submit kmeans --data higgs --set k=20 --workers 4

        flegel submit my.py:Spherical --data points.csv --sync bsp --max-iterations 50

        flegel submit gmm --data higgs --master tcp://head:7077 --detach
    """
    from flegel.runtime.processes import fork_server

    here = master is None or master == "local"
    with sentences(STOPPED if here else ""), fork_server.prepared(here):
        from flegel import api
        from flegel.cli.display import make_display

        chosen = _algorithm(algorithm, settings or [])
        folder = _folder(save, out, algorithm, data)
        options: dict[str, Any] = {
            "workers": workers, "sync": sync, "interval": interval, "target": target, "tolerance": tolerance,
            "max_iterations": max_iterations, "max_seconds": max_seconds, "seed": seed, "label": label,
            "partition": partition, "scale": scale,
            "first_interval": first_interval, "coordination": coordination,
            "staleness": staleness, "batches": batches, "factor": factor, "balance": balance,
            "straggler": straggler, "checkpoint": checkpoint, "checkpoint_every": checkpoint_every or "30s",
            "attribute": attribute, "worker_timeout": worker_timeout, "hook_timeout": hook_timeout, "replace": replace,
        }  # fmt: skip
        _check_targets(folder, json_to)
        on_cluster = {"name": name, "priority": priority, "memory": memory, "retries": retries}
        if master is not None and not here:
            if checkpoint is not None:
                raise UsageError("A job on a cluster keeps its checkpoints itself; leave --checkpoint away.")
            if attribute:
                raise UsageError("--attribute works on this host only; leave it away for a cluster.")
            asked = {**options, "data": data}
            cluster.submit_to(master, insecure, chosen, asked, on_cluster, folder, json_to, detach)
            return
        if detach or any(on_cluster.values()):
            raise UsageError("--detach, --name, --priority, --memory and --retries are for a cluster: give --master.")
        if checkpoint_every is not None and checkpoint is None:
            raise UsageError("--checkpoint-every says how often; say also where, with --checkpoint DIR.")
        display = make_display(sys.stderr)
        with display:
            result = _finish_job(partial(api.run, chosen, data, **options), display, folder, json_to)
        display.finish(result)


@app.command()
def resume(
    place: Annotated[
        str, typer.Argument(help="Folder or store (s3://…) that was given to submit --checkpoint, or a cluster's job.")
    ],
    workers: Annotated[int | None, typer.Option(help="Another number of workers; points are dealt anew.")] = None,
    target: Annotated[float | None, typer.Option(help="Another target of the objective.")] = None,
    tolerance: Annotated[float | None, typer.Option(help="Another tolerance; 0 is off.")] = None,
    max_iterations: Annotated[
        int | None, typer.Option(help="Another limit of barriers, counted from the start.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Another limit of seconds of training, counted from the start.")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="The same class, where its file has moved: file.py:Class.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="The same data, where they have moved.")] = None,
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--newest",
            help="From the newest checkpoint as it is (bsp: same course to the last bit; the default there), or from "
            "the last commit, with one pass to make the statistics anew (the default of all other models).",
        ),
    ] = None,
    checkpoint_every: Annotated[str | None, typer.Option(help="Another time between two checkpoints.")] = None,
    trust_code: Annotated[
        bool,
        typer.Option("--trust-code", help="Run the class stored in the checkpoint; only where you trust it."),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for model, result and trace; a new one under runs/.")] = None,
    json_to: Annotated[
        str | None, typer.Option("--json", help="Write the result as JSON to this file, or - for standard output.")
    ] = None,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Keep model, result and trace.")] = True,
    master: cluster.MaybeMaster = None,
    insecure: cluster.Insecure = False,
) -> None:
    """Go on with a job from its checkpoints. What is not given stays as it was submitted.

    A folder or an address with :// is a place; anything else is a job of the cluster, which knows its place itself.

    For example:

        flegel submit gmm --data higgs --set k=10 --checkpoint job1

        flegel resume job1 --max-seconds 600
    """
    from flegel.runtime.processes import fork_server

    at = master if master != "local" and "://" not in place and not Path(place).exists() else None
    with sentences(AS_BEFORE if at is None else ""), fork_server.prepared(at is None):
        from flegel import api
        from flegel.cli.display import make_display

        given = {
            "workers": workers, "target": target, "tolerance": tolerance, "max_iterations": max_iterations,
            "max_seconds": max_seconds, "algorithm": algorithm, "data": data, "exact": exact,
            "checkpoint_every": checkpoint_every,
        }  # fmt: skip
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if at is not None:
            if options or out or json_to:
                raise UsageError(f"{place} is a job of the cluster; it goes on as it was submitted, without options.")
            cluster.resume(place, at, insecure)
            return
        folder = _folder(save, out, "resumed", place.rstrip("/").rpartition("/")[2])
        _check_targets(folder, json_to)
        display = make_display(sys.stderr)
        with display:
            job = partial(api.resume, place, trust_code=trust_code, **options)
            result = _finish_job(job, display, folder, json_to)
        display.finish(result)


def _folder(save: bool, out: Path | None, *name: str) -> Path | None:
    """Where the result goes; None: nowhere."""
    if not save and out is not None:
        raise UsageError(f"--no-save keeps nothing, and --out {out} says where; leave one of them away.")
    return (out or _free_folder(*name)) if save else None


def _check_targets(folder: Path | None, json_to: str | None) -> None:
    """Before anything is done: what will be written has a place."""
    from flegel.runtime.job import result_store

    if folder is not None:
        result_store.check_target(folder)
    if json_to is not None and json_to != "-":
        result_store.check_file(json_to, "--json")


def _finish_job(job: Callable[..., Any], display: Any, folder: Path | None, json_to: str | None) -> Any:
    """Run it under a display, save and tell the result."""
    import json
    import warnings

    from flegel.runtime.job import result_store

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: display.say(f"warning: {message}")
        result = job(watch=display.watch, say=display.say)
    for text in result.warnings:
        display.say(f"note: {text}")
    failed: FlegelError | None = None
    if folder is not None:
        try:
            result_store.save(result, folder)
        except FlegelError as error:
            failed = error  # the result itself is still worth telling
    if json_to == "-":
        print(json.dumps(result.to_json(), indent=1))
    elif json_to is not None:
        result_store.write_json(result, json_to)
    if failed is not None:
        display.finish(result)
        raise failed
    return result


def _algorithm(word: str, settings: list[str]) -> Any:
    from flegel.runtime.job.find_algorithm import find_algorithm

    cls = find_algorithm(word)
    hyper: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise UsageError(f"--set {setting!r} is not of the form name=value.")
        hyper[name.strip()] = value.strip()
    return cls(**hyper)


def _free_folder(algorithm: str, data: str) -> Path:
    """The first runs/ALGORITHM-DATA-NNN that does not exist."""
    stem = "-".join(Path(part.rpartition(":")[2] or part).stem for part in (algorithm, data.partition(":")[0]))
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in stem)
    return next(p for i in range(1, 1_000_000) if not (p := Path("runs") / f"{safe}-{i:03d}").exists())


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a saved model.")],
    data: Annotated[str, typer.Option("--data", help="A data set's name or a path.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Write to this .npy or .csv file; one line a row on standard output else."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Label column of a file, to be left out.")] = None,
    trust_code: Annotated[
        bool,
        typer.Option("--trust-code", help="Run the class stored in the model; only for models you trust."),
    ] = False,
) -> None:
    """Apply a saved model to rows.

    For example:

        flegel predict runs/kmeans-higgs-001 --data higgs:1000

        flegel predict runs/kmeans-points-001 --data new.csv --out clusters.csv
    """
    with sentences():
        import numpy as np

        from flegel.datasets import open_data
        from flegel.runtime.job.result_store import check_file, load

        if out is not None:
            if out.suffix not in (".npy", ".csv"):
                raise UsageError(f"{out} should end in .npy or .csv.")
            check_file(out, "--out")
        loaded = load(model, trust_code=trust_code)
        dataset = open_data(data, label=label)
        if dataset.note:
            print(f"flegel: {dataset.note}", file=sys.stderr)
        found = np.asarray(loaded.predict(dataset.load()[0]))
        if out is None:
            _print_rows(found)
        else:
            _write_rows(found, out)


def _print_rows(found: Any) -> None:
    try:
        for row in found.tolist():
            print(",".join(map(str, row)) if isinstance(row, list) else row)
    except BrokenPipeError:
        sys.stderr.close()  # the reader, such as head, has seen enough


def _write_rows(found: Any, out: Path) -> None:
    import numpy as np

    from flegel.errors import StorageError

    try:
        if out.suffix == ".npy":
            np.save(out, found, allow_pickle=False)
        else:
            np.savetxt(out, found, delimiter=",", fmt="%s" if found.dtype.kind in "OU" else "%.10g")
    except OSError as error:
        raise StorageError(f"Could not write {out}: {error.strerror or error}.") from None


@app.command()
def algorithms(
    name: Annotated[str | None, typer.Argument(help="Show this one's hyper-parameters.")] = None,
) -> None:
    """List the built-in algorithms, or the hyper-parameters of one (also of file.py:Class)."""
    with sentences():
        from flegel.algorithms import BUILTINS
        from flegel.runtime.job.find_algorithm import find_algorithm

        if name is None:
            for each in BUILTINS:
                print(f"{each:8} {_summary(find_algorithm(each))}")
            return
        cls = find_algorithm(name)
        print(f"{name}: {_summary(cls)}\n")
        for parameter in cls.hyper_parameters().values():
            print(f"  --set {parameter.name}={_shown(parameter.default):14} {parameter.description}")


def _summary(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0] if cls.__doc__ else ""


def _shown(value: Any) -> str:
    return "…" if type(value) is object else str(value)


@app.command()
def models() -> None:
    """List the synchronization models."""
    with sentences():
        from flegel import sync

        for name, model in sync.models().items():
            print(f"{name:11} {model.summary}")


@app.command()
def check(
    algorithm: Annotated[str, typer.Argument(help="file.py:Class, or a built-in name.")],
    settings: Settings = None,
) -> None:
    """Check that an algorithm keeps its promises: block equals per-point, statistics conserve, θ serializes.

    For example:

        flegel check my.py:Spherical --set k=12
    """
    with sentences():
        from flegel.conformance import check_algorithm

        for line in check_algorithm(_algorithm(algorithm, settings or [])):
            print(f"ok  {line}")


@app.command()
def version() -> None:
    """Print the version."""
    from flegel import __version__

    print(__version__)


app.add_typer(data_app, name="data")  # after the commands above: help lists them in this order
bench.mount(app)
simulate.mount(app)
cluster.mount(app, sentences)
app.add_typer(keys_app, name="keys")

if __name__ == "__main__":
    main()
