"""`flegel submit` and `flegel resume`: words to a job, its result to files. Trains nothing itself."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from flegel.cli import cluster_jobs, completion
from flegel.cli.dashboard import DEFAULT_PLACE
from flegel.cli.help_pages import ShortHelpCommand, with_help_all
from flegel.cli.job_options import for_cluster, for_join, for_resume, for_submit, for_this_host, given
from flegel.cli.local_job import (
    Outputs,
    Served,
    folder_for,
    make_algorithm,
    show_and_save,
    start_logging,
    trackers_for,
    train_here,
)
from flegel.cli.options import HyperParameters, Insecure, LogJson, MaybeMaster, Verbose
from flegel.errors import FlegelError, UsageError
from flegel.group_options import GROUPS
from flegel.job import CLUSTER, DATA, FAULTS, OUTPUT
from flegel.terminal.reporting import CHECKPOINTS_KEPT, WORKERS_STOPPED, PhaseLine, errors_as_sentences

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
Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Say which kernel served the rows, and why; and who trained.", rich_help_panel=OUTPUT
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


class SubmitCommand(ShortHelpCommand):
    """`flegel submit`, which says what to type where words are a hyper-parameter, or data without `--data`."""

    shown = frozenset(
        {
            "--data",
            "--label",
            "--set",
            "--workers",
            "--max-seconds",
            "--sync",
            "--out",
            "--checkpoint",
            "--dashboard",
            "--master",
        }
    )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as Typer does, after looking for two frequent mistakes that have a better answer than Typer's."""
        flags = {flag: option for option in self.params for flag in (*option.opts, *option.secondary_opts)}
        valued = {flag for flag, option in flags.items() if not getattr(option, "is_flag", False)}
        plain = [
            word
            for word, before in zip(args, ["", *args], strict=False)
            if not word.startswith("-") and before not in valued
        ]
        for place, word in enumerate(args):
            flag, equals, value = word.partition("=")
            name = flag.removeprefix("--").replace("-", "_")
            if word.startswith("--") and flag not in flags and plain and name in _hyper_parameters(plain[0]):
                value = value if equals else "".join(args[place + 1 : place + 2]) or "VALUE"
                ctx.fail(f"{flag} is no option but a hyper-parameter of {plain[0]}: --set {name}={value}")
        if len(plain) == 2 and "--data" not in args:
            ctx.fail(f"Data are given by an option: flegel submit {plain[0]} --data {plain[1]}")
        return super().parse_args(ctx, args)


def _hyper_parameters(algorithm: str) -> set[str]:
    """Names of the hyper-parameters of the class that a word names; none where it names no class."""
    from flegel.runtime.job.find_algorithm import find_algorithm

    try:
        cls = find_algorithm(algorithm)
    except FlegelError:
        return set()
    return {*cls.hyper_parameters(), *cls.hyper_names.also_called}


AlgorithmWord = Annotated[
    str,
    typer.Argument(
        help="A built-in name (see `flegel algorithms`) or file.py:Class.", autocompletion=completion.algorithms
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="NAME|PATH",
        help="A data set's name (higgs, higgs:200000) or a path.",
        rich_help_panel=DATA,
        autocompletion=completion.data_sets,
    ),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Print the job's name and do not wait.", rich_help_panel=CLUSTER)
]
CancelOnInterrupt = Annotated[
    bool,
    typer.Option(
        "--cancel-on-interrupt",
        envvar="FLEGEL_CANCEL_ON_INTERRUPT",
        help="Ctrl-C cancels the job instead of leaving it to the cluster.",
        rich_help_panel=CLUSTER,
    ),
]


@with_help_all
@for_submit
def submit(
    algorithm: AlgorithmWord,
    data: Data,
    hyper: HyperParameters = None,
    out: Out = None,
    json_to: Json = None,
    labels: Labels = None,
    save: Save = True,
    explain: Explain = False,
    track: Track = None,
    metrics: Metrics = None,
    dashboard: Dashboard = False,
    dashboard_at: DashboardAt = DEFAULT_PLACE,
    verbose: Verbose = False,
    log_json: LogJson = False,
    master: MaybeMaster = None,
    detach: Detach = False,
    cancel_on_interrupt: CancelOnInterrupt = False,
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
        line.begin("importing")
        if here and ":" in algorithm:  # a class of the user's, which numba compiles
            fork_server.preload("numba")
        chosen = make_algorithm(algorithm, hyper)
        outputs = Outputs(folder_for(save, out, algorithm, data), json_to, labels, explain)
        outputs.check()
        if master is not None and not here:
            _refuse_on_cluster(bool(track or metrics or dashboard), labels)
            remote = for_cluster(options)
            cluster_jobs.submit_to(
                master, insecure, chosen, data, remote, outputs.folder, json_to, detach, cancel_on_interrupt
            )
            return
        served = Served(metrics, dashboard_at if dashboard else None, f"{algorithm} on {data}")
        train_here(chosen, data, for_this_host(options, detach), outputs, served, track, line)


def _refuse_on_cluster(watched: bool, labels: Path | None) -> None:
    """Options of `flegel submit` that need the job in this process. `watched`: by trackers, metrics or a dashboard."""
    if watched:
        raise UsageError(
            "--track, --metrics and --dashboard of submit work on this host only; a cluster has `flegel master "
            "--metrics` and `flegel dashboard`."
        )
    if labels is not None:
        raise UsageError(
            f"--labels {labels} works on this host only; fetch the model from the cluster and apply it with "
            "`flegel predict`."
        )


TrainingPlace = Annotated[
    str,
    typer.Argument(metavar="BUCKET", help="The bucket of the training: a folder, or an address such as s3://b/job."),
]
GroupName = Annotated[str, typer.Option(metavar="NAME", help="The name of this group.", rich_help_panel=GROUPS)]
GroupKey = Annotated[
    str,
    typer.Option(
        metavar="FILE", help="Key file of this group; it also says whose code may run here.", rich_help_panel=GROUPS
    ),
]
TrustPackage = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        help="Run the class of the training, whoever wrote it; only where you trust the bucket.",
        rich_help_panel=GROUPS,
    ),
]


class JoinCommand(ShortHelpCommand):
    """`flegel join`."""

    shown = frozenset(
        {"--data", "--group", "--group-key", "--trust-code", "--label", "--workers", "--max-seconds", "--sync", "--out"}
    )


@with_help_all
@for_join
def join(
    place: TrainingPlace,
    group: GroupName,
    data: Data,
    group_key: GroupKey = "",
    trust_code: TrustPackage = False,
    out: Out = None,
    json_to: Json = None,
    labels: Labels = None,
    save: Save = True,
    explain: Explain = False,
    track: Track = None,
    metrics: Metrics = None,
    dashboard: Dashboard = False,
    dashboard_at: DashboardAt = DEFAULT_PLACE,
    verbose: Verbose = False,
    log_json: LogJson = False,
    **options: Any,
) -> None:
    """Take part in a training of groups at other sites: algorithm and settings come from its bucket.

    A class that the training brings along runs only where the key file trusts its signer, or with --trust-code.

    For example:

        flegel join s3://models/job7 --group oslo --data part3.parquet --group-key oslo.json
    """
    from flegel.runtime.group.joining import find_training
    from flegel.runtime.processes import fork_server

    start_logging(verbose, log_json)
    line = PhaseLine(sys.stderr, data)
    with errors_as_sentences(WORKERS_STOPPED), fork_server.prepared(), line:
        line.begin("importing")
        training = find_training(place, group, group_key, trust_code)
        name = type(training.algorithm).__name__.lower()
        outputs = Outputs(folder_for(save, out, name, data), json_to, labels, explain)
        outputs.check()
        own = for_this_host(options, detach=False)
        shared = {"group": group, "bucket": place, "group_key": group_key}
        served = Served(metrics, dashboard_at if dashboard else None, f"{name} on {data}")
        train_here(training.algorithm, data, {**training.options, **own, **shared}, outputs, served, track, line)


CheckpointPlace = Annotated[
    str, typer.Argument(help="Folder or store (s3://…) that was given to submit --checkpoint, or a cluster's job.")
]
MovedAlgorithm = Annotated[
    str | None,
    typer.Option(help="The same class, where its file has moved: file.py:Class.", rich_help_panel=DATA),
]
MovedData = Annotated[
    str | None, typer.Option("--data", help="The same data, where they have moved.", rich_help_panel=DATA)
]
Exact = Annotated[
    bool | None,
    typer.Option(
        "--exact/--newest",
        help="From the newest checkpoint as it is (bsp: same course to the last bit; the default there), or from "
        "the last commit, with one pass to make the statistics anew (the default of all other models).",
        rich_help_panel=FAULTS,
    ),
]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        help="Run the class stored in the checkpoint; only where you trust it.",
        rich_help_panel=FAULTS,
    ),
]
BeginAnew = Annotated[
    bool,
    typer.Option(
        "--begin-anew",
        help="Begin from the start where everything that was kept is damaged; damaged files are set aside.",
        rich_help_panel=FAULTS,
    ),
]


class ResumeCommand(ShortHelpCommand):
    """`flegel resume`."""

    shown = frozenset(
        {
            "--workers",
            "--max-iterations",
            "--max-seconds",
            "--algorithm",
            "--data",
            "--exact",
            "--trust-code",
            "--out",
            "--master",
        }
    )


@with_help_all
@for_resume
def resume(
    place: CheckpointPlace,
    algorithm: MovedAlgorithm = None,
    data: MovedData = None,
    exact: Exact = None,
    trust_code: TrustCode = False,
    begin_anew: BeginAnew = False,
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
        line.begin("importing")
        options = given({**changes, "algorithm": algorithm, "data": data, "exact": exact})
        if at is not None:
            if options or out or json_to or labels or begin_anew or track or metrics or dashboard:
                raise UsageError(f"{place} is a job of the cluster; it goes on as it was submitted, without options.")
            cluster_jobs.resume(place, at, insecure)
            return
        outputs = Outputs(folder_for(save, out, "resumed", place.rstrip("/").rpartition("/")[2]), json_to, labels)
        outputs.check()
        from flegel.api import jobs as api

        job = partial(
            api.resume, place, trust_code=trust_code, begin_anew=begin_anew, callbacks=trackers_for(track), **options
        )
        served = Served(metrics, dashboard_at if dashboard else None, f"{place}, resumed")
        show_and_save(job, outputs, served, line)
