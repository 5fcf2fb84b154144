"""`flegel submit` and `flegel resume`: words to a job, its result to files. Trains nothing itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from flegel.cli import cluster_jobs
from flegel.cli.app import CHECKPOINTS_KEPT, WORKERS_STOPPED, PhaseLine, errors_as_sentences, print_all, say
from flegel.cli.job_options import for_cluster, for_resume, for_submit, for_this_host, given
from flegel.cli.options import Insecure, LogJson, MaybeMaster, Settings, Verbose, make_algorithm, start_logging
from flegel.cli.predict import KINDS, check_rows_file, write_rows
from flegel.cli.watch.dashboard import DEFAULT_PLACE, serve_job
from flegel.errors import ExitCode, FlegelError, UsageError
from flegel.job import CLUSTER, DATA, FAULTS, OUTPUT
from flegel.plan.termination import FAILED

if TYPE_CHECKING:
    from flegel.callbacks.callback import Callback
    from flegel.runtime.job.observers import Observer

Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder for model, result and trace; a new one under runs/ by default.",
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE|-",
        help="Write the result as JSON to this file, or - for standard output.",
        rich_help_panel=OUTPUT,
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the class or cluster of each row of training to this .npy, .csv or .parquet file.",
        rich_help_panel=OUTPUT,
    ),
]
Save = Annotated[bool, typer.Option("--save/--no-save", help="Keep model, result and trace.", rich_help_panel=OUTPUT)]

Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND:PLACE",
        help="Record every barrier: csv:FILE, tensorboard:FOLDER, mlflow:FILE or wandb:PROJECT; repeatable.",
        rich_help_panel=OUTPUT,
    ),
]

Metrics = Annotated[
    str | None,
    typer.Option(
        metavar="PORT",
        help="Serve figures for Prometheus on this port of 127.0.0.1, or at HOST:PORT.",
        rich_help_panel=OUTPUT,
    ),
]

Dashboard = Annotated[
    bool, typer.Option("--dashboard", help="Show the job in a browser while it runs.", rich_help_panel=OUTPUT)
]
DashboardAt = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="Where to serve the dashboard; another port where the default is taken.",
        rich_help_panel=OUTPUT,
    ),
]


@for_submit
def submit(
    algorithm: Annotated[str, typer.Argument(help="A built-in name (see `flegel algorithms`) or file.py:Class.")],
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="NAME|PATH",
            help="A data set's name (higgs, higgs:200000) or a path.",
            rich_help_panel=DATA,
        ),
    ],
    settings: Settings = None,
    out: Out = None,
    json_to: Json = None,
    labels: Labels = None,
    save: Save = True,
    track: Track = None,
    metrics: Metrics = None,
    dashboard: Dashboard = False,
    dashboard_at: DashboardAt = DEFAULT_PLACE,
    verbose: Verbose = False,
    log_json: LogJson = False,
    master: MaybeMaster = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the job's name and do not wait.", rich_help_panel=CLUSTER)
    ] = False,
    cancel_on_interrupt: Annotated[
        bool,
        typer.Option(
            "--cancel-on-interrupt",
            envvar="FLEGEL_CANCEL_ON_INTERRUPT",
            help="Ctrl-C cancels the job instead of leaving it to the cluster.",
            rich_help_panel=CLUSTER,
        ),
    ] = False,
    insecure: Insecure = False,
    **options: Any,
) -> None:
    """Train a model on workers of this host, or on a cluster.

    For example:

        flegel submit kmeans --data higgs --set k=20 --workers 4

        flegel submit my.py:Spherical --data points.csv --sync bsp --max-iterations 50

        flegel submit gmm --data higgs --master tcp://head:7077 --detach
    """
    from flegel.runtime.processes import fork_server

    here = master is None or master == "local"
    start_logging(verbose, log_json)
    line = PhaseLine(sys.stderr, data)
    with errors_as_sentences(WORKERS_STOPPED if here else ""), fork_server.prepared(here), line:
        line("importing")
        if here and ":" in algorithm:  # a class of the user's, which numba compiles
            fork_server.preload("numba")
        chosen = make_algorithm(algorithm, settings)
        outputs = Outputs(_folder(save, out, algorithm, data), json_to, labels)
        outputs.check()
        if master is not None and not here:
            if track or metrics or dashboard:
                raise UsageError(
                    "--track, --metrics and --dashboard of submit work on this host only; a cluster has `flegel master "
                    "--metrics` and `flegel dashboard`."
                )
            if labels is not None:
                raise UsageError(
                    f"--labels {labels} works on this host only; fetch the model from the cluster and apply it with "
                    "`flegel predict`."
                )
            remote = for_cluster(options)
            cluster_jobs.submit_to(
                master, insecure, chosen, data, remote, outputs.folder, json_to, detach, cancel_on_interrupt
            )
            return
        local = for_this_host(options, detach)
        if options["checkpoint_every"] is not None and options["checkpoint"] is None:
            raise UsageError("--checkpoint-every says how often; say also where, with --checkpoint DIR.")
        from flegel import api

        job = partial(api.run, chosen, data, callbacks=_trackers(track), **local)
        served = Served(metrics, dashboard_at if dashboard else None, f"{algorithm} on {data}")
        _show_and_save(job, outputs, served, line)


@for_resume
def resume(
    place: Annotated[
        str, typer.Argument(help="Folder or store (s3://…) that was given to submit --checkpoint, or a cluster's job.")
    ],
    algorithm: Annotated[
        str | None,
        typer.Option(help="The same class, where its file has moved: file.py:Class.", rich_help_panel=DATA),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="The same data, where they have moved.", rich_help_panel=DATA)
    ] = None,
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--newest",
            help="From the newest checkpoint as it is (bsp: same course to the last bit; the default there), or from "
            "the last commit, with one pass to make the statistics anew (the default of all other models).",
            rich_help_panel=FAULTS,
        ),
    ] = None,
    trust_code: Annotated[
        bool,
        typer.Option(
            "--trust-code",
            help="Run the class stored in the checkpoint; only where you trust it.",
            rich_help_panel=FAULTS,
        ),
    ] = False,
    begin_anew: Annotated[
        bool,
        typer.Option(
            "--begin-anew",
            help="Begin from the start where everything that was kept is damaged; damaged files are set aside.",
            rich_help_panel=FAULTS,
        ),
    ] = False,
    out: Out = None,
    json_to: Json = None,
    labels: Labels = None,
    save: Save = True,
    track: Track = None,
    metrics: Metrics = None,
    dashboard: Dashboard = False,
    dashboard_at: DashboardAt = DEFAULT_PLACE,
    verbose: Verbose = False,
    log_json: LogJson = False,
    master: MaybeMaster = None,
    insecure: Insecure = False,
    **changes: Any,
) -> None:
    """Go on with a job from its checkpoints. What is not given stays as it was submitted.

    A folder or an address with :// is a place; anything else is a job of the cluster, which knows its place itself.

    For example:

        flegel submit gmm --data higgs --set k=10 --checkpoint job1

        flegel resume job1 --max-seconds 600
    """
    from flegel.runtime.processes import fork_server

    start_logging(verbose, log_json)
    at = master if master != "local" and "://" not in place and not Path(place).exists() else None
    left = CHECKPOINTS_KEPT if at is None else ""
    line = PhaseLine(sys.stderr, data or place)
    with errors_as_sentences(left), fork_server.prepared(at is None), line:
        line("importing")
        options = given({**changes, "algorithm": algorithm, "data": data, "exact": exact})
        if at is not None:
            if options or out or json_to or labels or begin_anew or track or metrics or dashboard:
                raise UsageError(f"{place} is a job of the cluster; it goes on as it was submitted, without options.")
            cluster_jobs.resume(place, at, insecure)
            return
        outputs = Outputs(_folder(save, out, "resumed", place.rstrip("/").rpartition("/")[2]), json_to, labels)
        outputs.check()
        from flegel import api

        job = partial(
            api.resume, place, trust_code=trust_code, begin_anew=begin_anew, callbacks=_trackers(track), **options
        )
        served = Served(metrics, dashboard_at if dashboard else None, f"{place}, resumed")
        _show_and_save(job, outputs, served, line)


def _folder(save: bool, out: Path | None, *name: str) -> Path | None:
    """Where the result goes; None: nowhere."""
    if out is not None and out.suffix in KINDS:
        raise UsageError(
            f"--out {out} would be a folder for the model; --labels {out} writes the class or cluster of each row."
        )
    if not save and out is not None:
        raise UsageError(f"--no-save keeps nothing, and --out {out} says where; omit one of them.")
    return (out or _free_folder(*name)) if save else None


def _trackers(words: list[str] | None) -> list[Callback]:
    if not words:
        return []
    from flegel.callbacks.track import trackers

    return trackers(words)


class Outputs(NamedTuple):
    """Where a result goes."""

    folder: Path | None
    json_to: str | None
    labels: Path | None

    def check(self) -> None:
        """Before anything is done: raise `UsageError` where something could not be written."""
        from flegel.runtime.job import result_store

        if self.folder is not None:
            result_store.check_target(self.folder)
        if self.json_to is not None and self.json_to != "-":
            result_store.check_file(self.json_to, "--json")
        if self.labels is not None:
            check_rows_file(self.labels, "--labels")

    def write(self, result: Any) -> FlegelError | None:
        """All that can be written; the first error, since the result itself is still worth telling."""
        failed: FlegelError | None = None
        for one in (self._save, self._tell, self._label):
            try:
                one(result)
            except FlegelError as error:
                failed = failed or error
        return failed

    def _save(self, result: Any) -> None:
        from flegel.runtime.job import result_store

        if self.folder is not None:
            result_store.save_or_rescue(result, self.folder)

    def _tell(self, result: Any) -> None:
        import json

        from flegel.runtime.job import result_store

        if self.json_to == "-":
            print_all(json.dumps(result.to_json(), indent=1))
        elif self.json_to is not None:
            result_store.write_json(result, self.json_to)

    def _label(self, result: Any) -> None:
        if self.labels is not None:
            write_rows(result.labels, ["prediction"], self.labels)


class Served(NamedTuple):
    """What a job on this host shows while it runs, and where."""

    metrics: str | None
    dashboard: str | None
    title: str

    def observers(self, stack: ExitStack) -> list[Observer]:
        """What serves it ends with the stack."""
        found: list[Observer] = []
        if self.metrics is not None:
            from flegel.metrics.endpoint import JobMetrics, MetricsEndpoint

            endpoint = MetricsEndpoint(self.metrics)
            stack.callback(endpoint.close)
            say(f"metrics at {endpoint.url}")
            found.append(JobMetrics(endpoint))
        if self.dashboard is not None:
            found.append(serve_job(stack, self.title, self.dashboard))
        return found


def _show_and_save(job: Callable[..., Any], outputs: Outputs, served: Served, line: PhaseLine) -> None:
    """Run it under a display, which also tells the result."""
    from flegel.cli.display import make_display

    line("reading")
    display = make_display(sys.stderr)
    with ExitStack() as stack:
        observers = served.observers(stack)
        with display:
            result = _finish_job(partial(job, observers=observers), display, outputs, line)
    display.finish(result)
    if result.outcome in FAILED:
        raise typer.Exit(ExitCode.NOT_AS_ASKED)


def _finish_job(job: Callable[..., Any], display: Any, outputs: Outputs, line: PhaseLine) -> Any:
    """Run it under a display, save and tell the result."""
    import warnings

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: display.say(f"warning: {message}")
        result = job(watch=line.watching(display.watch), say=line.saying(display.say), phase=line)
    line.stop()
    for text in result.warnings:
        display.say(f"note: {text}")
    failed = outputs.write(result)
    if failed is not None:
        display.finish(result)
        raise failed
    return result


def _free_folder(algorithm: str, data: str) -> Path:
    """The first runs/ALGORITHM-DATA-NNN that does not exist."""
    stem = "-".join(Path(part.rpartition(":")[2] or part).stem for part in (algorithm, data.partition(":")[0]))
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in stem)
    return next(p for i in range(1, 1_000_000) if not (p := Path("runs") / f"{safe}-{i:03d}").exists())
