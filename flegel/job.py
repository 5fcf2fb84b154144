"""What a job is: one typed record, written to checkpoints and journals and sent to masters as it stands. Nothing acts.

Each field of `Job` that people can set carries its help, its parser and where it applies (`flegel.options.Option`).
`flegel.run`, `flegel submit`, `flegel resume` and the tables of docs/cli.md are derived from it, so a new option is a
field here and its use; CONTRIBUTING.md lists the steps.
"""

from __future__ import annotations

import csv
import math
import os
from typing import Annotated, Any

import msgspec

from flegel.configuration.sources import check_settings, parse_settings
from flegel.core.kept_state import KeptForm
from flegel.errors import UsageError, nearest
from flegel.group_options import GROUPS, GroupSpec
from flegel.options import Option, parse_bytes, parse_seconds
from flegel.wording import option

TRAINING, SYNCHRONIZATION, DATA = "Training", "Synchronization", "Data"
FAULTS, OUTPUT, CLUSTER = "Faults and checkpoints", "Output", "Cluster"
PANELS = (TRAINING, SYNCHRONIZATION, DATA, FAULTS, OUTPUT, CLUSTER, GROUPS)
"""Headings under which options are listed, in this order."""

DEFAULT_TOLERANCE = 1e-4  # relative change of the objective over a pass, for algorithms that declare no other
LEAST_TIMEOUT_SECONDS = 2.0  # two heartbeats of a worker
MAX_SERVERS, MAX_REPLICAS = 64, 8  # that a job may ask for
MAX_THREADS = 1024  # of a worker that a job may ask for


class AlgorithmRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An algorithm by name (built-in) or by source (a user's class)."""

    name: str
    hyper: dict[str, Any]
    source: str = ""
    """Module text that defines class `name`; empty for built-ins."""
    kept: KeptForm | None = None
    """What the engine keeps of each point, for a class that returns contributions."""

    @property
    def builtin(self) -> bool:
        return not self.source


class Criteria(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When to stop; the first one that holds ends the job. None or 0 switches a criterion off."""

    max_iterations: Annotated[
        int | None,
        Option("Stop after so many barriers.", TRAINING, resume="Another limit of barriers, counted from the start."),
    ] = None
    max_passes: Annotated[
        float | None,
        Option(
            "Stop when the slowest worker has visited its points so often.",
            TRAINING,
            resume="Another limit of passes, counted from the start.",
        ),
    ] = None
    target: Annotated[
        float | None,
        Option("Stop when the objective is this good.", TRAINING, resume="Another target of the objective."),
    ] = None
    tolerance: Annotated[
        float | None,
        Option(
            "Stop when a full pass changes the objective by less, relatively; 0 is off.",
            TRAINING,
            default="the algorithm's",
            resume="Another tolerance; 0 is off.",
        ),
    ] = None
    max_seconds: Annotated[
        float | None,
        Option(
            "Stop after so many seconds of training.",
            TRAINING,
            resume="Another limit of seconds of training, counted from the start.",
        ),
    ] = None

    def resolved(self, tolerance: float) -> Criteria:
        """With the tolerance that the algorithm declares, where none was given."""
        return self if self.tolerance is not None else msgspec.structs.replace(self, tolerance=tolerance)

    def check(self, *, has_objective: bool, halts: bool) -> None:
        """A job that could never end is refused before it starts."""
        tolerance = DEFAULT_TOLERANCE if self.tolerance is None else self.tolerance
        if self.max_iterations is not None and self.max_iterations < 1:
            raise UsageError(f"{option('max_iterations', self.max_iterations)} must be at least 1.")
        if self.max_passes is not None and not self.max_passes > 0:
            raise UsageError(f"{option('max_passes', self.max_passes)} must be more than 0.")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise UsageError(f"{option('max_seconds', self.max_seconds)} must be more than 0.")
        if not tolerance >= 0:
            raise UsageError(f"{option('tolerance', tolerance)} must be 0 (off) or more.")
        if self.target is not None and not math.isfinite(self.target):
            raise UsageError(f"{option('target', self.target)} must be a finite number.")
        if self.target is not None and not has_objective:
            raise UsageError(f"This algorithm defines no objective, so {option('target')} cannot be used with it.")
        by_objective = has_objective and (tolerance > 0 or self.target is not None)
        if not (self.max_iterations or self.max_passes or self.max_seconds or by_objective or halts):
            raise UsageError(
                f"Nothing would ever end this job: give {option('max_iterations')}, {option('max_seconds')} or "
                f"{option('tolerance')}."
            )


PUBLISHED = ":published"
"""Ending of the names of models that do what their paper prints, where ours differs."""


class SyncSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The synchronization model by name, and its switches; None is the model's own default."""

    name: Annotated[
        str,
        Option(
            "Synchronization model; `flegel models` lists them.",
            SYNCHRONIZATION,
            name="sync",
            metavar="MODEL",
            see="sync-models.md",
        ),
    ] = "fsp"
    interval: Annotated[
        float | None,
        Option(
            "Time between barriers, such as 200ms; found by itself if not given.",
            SYNCHRONIZATION,
            metavar="DURATION",
            parse=parse_seconds,
        ),
    ] = None
    coordination: Annotated[
        str | None,
        Option(
            "fsp: semi (default): who answers late to signals keeps its own time; centralized: signals only.",
            SYNCHRONIZATION,
            metavar="semi|centralized",
        ),
    ] = None
    staleness: Annotated[int | None, Option("ssp: batches a worker may be ahead of the slowest.", SYNCHRONIZATION)] = (
        None
    )
    barrier_timeout: Annotated[
        float | None,
        Option(
            "bsp, bsp-mini: a barrier waits so long after the first report, such as 120s; then slow workers report "
            "what they have done.",
            SYNCHRONIZATION,
            metavar="DURATION",
            parse=parse_seconds,
            see="sync-models.md",
        ),
    ] = None
    batches: Annotated[int | None, Option("asp, ssp, psp, bsp-mini: batches of a pass.", SYNCHRONIZATION)] = None
    factor: Annotated[float | None, Option("fsp-binary: λ, by which the interval shrinks.", SYNCHRONIZATION)] = None
    balance: Annotated[
        str | None,
        Option(
            "fsp: move points to fast workers while training (async), at barriers (sync), or off.",
            SYNCHRONIZATION,
            metavar="async|sync|off",
            see="balance.md",
        ),
    ] = None
    matching: Annotated[
        str | None,
        Option(
            "fsp: who gives points to whom: one level of passes for all workers (level), or pairs as in the paper.",
            SYNCHRONIZATION,
            metavar="level|pairs",
            see="published.md",
        ),
    ] = None
    probes: Annotated[
        str | None,
        Option(
            "fsp: how intervals are tried: among rounds of usual length (bracketed), or by rollback as in the paper.",
            SYNCHRONIZATION,
            metavar="bracketed|rollback",
            see="published.md",
        ),
    ] = None
    timers: Annotated[
        str | None,
        Option(
            "fsp with semi: workers that stop by their own clocks: those that are late, or all as in the paper.",
            SYNCHRONIZATION,
            metavar="late|all",
            see="published.md",
        ),
    ] = None
    round_end: Annotated[
        str | None,
        Option(
            "fsp: a round ends early when too much speed is idle, or, as in the paper, when the first worker is done.",
            SYNCHRONIZATION,
            metavar="idle|first",
            see="published.md",
        ),
    ] = None
    search: Annotated[
        str | None,
        Option(
            "fsp-binary: search the interval once, or again when speeds change, as in the paper.",
            SYNCHRONIZATION,
            metavar="once|again",
            see="published.md",
        ),
    ] = None
    counts: Annotated[
        str | None,
        Option(
            "psp: iterations that fit a bounded horizon (fitting), or by a common multiple as in the paper (multiple).",
            SYNCHRONIZATION,
            metavar="fitting|multiple",
            see="published.md",
        ),
    ] = None
    waiting: Annotated[
        str | None,
        Option(
            "asp, ssp, psp: who trains on while reports and θ travel: nobody (idle; asp, ssp), those that θ can "
            "interrupt (interruptible; psp), or all (training).",
            SYNCHRONIZATION,
            metavar="idle|interruptible|training",
            see="sync-models.md",
        ),
    ] = None
    published: Annotated[
        bool,
        Option(
            "The model as its paper prints it: --sync fsp --published is --sync fsp:published.",
            SYNCHRONIZATION,
            see="published.md",
        ),
    ] = False

    @property
    def model(self) -> str:
        """The registered name: that of the form in the paper where that was asked for."""
        return f"{self.name}{PUBLISHED}" if self.published and not self.name.endswith(PUBLISHED) else self.name


def check_seed(seed: int, shown: str = "") -> None:
    """Seeds are what every random generator takes."""
    if not 0 <= seed < 2**63:
        raise UsageError(f"The seed must be a whole number from 0 to 2**63 - 1, not {seed}.")


def check_threads(threads: int | None, shown: str) -> None:
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"{shown} must be 1 to {MAX_THREADS}.")


def parse_processes(word: str) -> bool | None:
    """None: decided by what costs less."""
    if word not in ("auto", "yes", "no"):
        raise UsageError(f"{option('processes', word)} is not known; use auto, yes or no.")
    return None if word == "auto" else word == "yes"


def check_timeout(seconds: float, shown: str) -> None:
    if not LEAST_TIMEOUT_SECONDS <= seconds < 86400:
        raise UsageError(f"{shown} must be {LEAST_TIMEOUT_SECONDS:g} seconds or more, less than a day.")


def check_expensive(wanted: str, shown: str) -> None:
    if wanted not in ("fail", "abandon", "retry"):
        raise UsageError(f"{shown} must be fail, abandon or retry.")


def check_audit(wanted: str, shown: str) -> None:
    if wanted not in ("on", "off") and not (wanted.isdigit() and int(wanted) > 0):
        raise UsageError(f"{shown} must be on, off or a number of points.")


def check_servers(servers: int | str, shown: str) -> None:
    if servers != "colocated" and not (str(servers).isdigit() and 0 <= int(servers) <= MAX_SERVERS):
        raise UsageError(f"{shown} must be a number from 0 to {MAX_SERVERS}, or colocated.")


def check_server_change(servers_of_job: int | str, wanted: int, most: int = 0) -> None:
    """Refuse a number of servers that a running job cannot have. `most`: into so many slices its θ can be cut; 0: that
    is not known."""
    if str(servers_of_job) == "0":
        raise UsageError(f"This job has no parameter servers; start it with {option('servers', 'N')} to change them.")
    if servers_of_job == "colocated":
        raise UsageError(
            "This job has one parameter server on each host of its workers; start it with "
            f"{option('servers', 'N')} to change their number."
        )
    if not 1 <= wanted <= MAX_SERVERS:
        raise UsageError(f"A job that has parameter servers keeps 1 to {MAX_SERVERS} of them, not {wanted}.")
    if most and wanted > most:
        raise UsageError(f"θ of this job can be cut into {most} slices, so that {wanted} servers are too many.")


def check_replicas(replicas: int, shown: str) -> None:
    if not 0 <= replicas <= MAX_REPLICAS:
        raise UsageError(f"{shown} must be 0 to {MAX_REPLICAS}.")


def check_server_load(load: str, shown: str) -> None:
    if load not in ("network", "even", "elastic", "published"):
        raise UsageError(f"{shown} must be network, even, elastic or published.")


def check_server_count(word: str, shown: str) -> None:
    parse_server_count(word, shown)


def parse_server_count(word: str, shown: str = "") -> tuple[int, int] | list[tuple[float, int]] | None:
    """`fixed`: None. `load` or `load:LEAST-MOST`: least and most servers. `30s:6,5min:2`: moments and numbers."""
    wrong = UsageError(
        f"{shown or option('server_count', word)} must be fixed, load, load:1-8 (at least and at most so many), or "
        f"a plan such as 30s:6,5min:2 with 1 to {MAX_SERVERS} servers from each moment on."
    )
    if word == "fixed":
        return None
    kind, _, bounds = word.partition(":")
    found: tuple[int, int] | list[tuple[float, int]]
    try:
        if kind == "load":
            least, most = (int(part) for part in bounds.split("-")) if bounds else (1, MAX_SERVERS)
            numbers, found = [least, most], (least, most)
        else:
            steps = [(parse_seconds(moment), int(n)) for moment, _, n in (w.partition(":") for w in word.split(","))]
            numbers, found = [count for _, count in steps], steps
    except (ValueError, UsageError):
        raise wrong from None
    if not all(1 <= count <= MAX_SERVERS for count in numbers) or (kind == "load" and numbers[0] > numbers[1]):
        raise wrong
    return found


def check_period(seconds: float, shown: str) -> None:
    if not 0 < seconds < math.inf:
        raise UsageError(f"The time between checkpoints must be more than 0 seconds, not {seconds:g}.")


def parse_names(text: str) -> list[str | int]:
    """'a,b,"c,d"' as names of columns; numbers stay text, for which a name has precedence."""
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), []) if name.strip()]
    if not names:
        raise UsageError(f"{text!r} names no column; write names or numbers with commas between them.")
    return list(names)


def check_categorical(value: str, shown: str) -> None:
    _check_choice(value, shown, ["auto", "onehot", "ordinal", "drop"])


def check_missing(value: str, shown: str) -> None:
    _check_choice(value, shown, ["error", "drop", "mean", "median", "indicator", "keep"])


def check_topology(value: str, shown: str) -> None:
    _check_choice(value, shown, ["coordinator", "allreduce"])


def check_validate(part: float, shown: str) -> None:
    if not 0 <= part < 1:
        raise UsageError(f"{shown} must be a part of the rows: 0 (none) or more, less than 1, such as 0.1.")


def check_resting(value: str, shown: str) -> None:
    _check_choice(value, shown, ["auto", "off"])


def _check_choice(value: str, shown: str, known: list[str]) -> None:
    if value not in known:
        raise UsageError(f"{shown} is not known{nearest(value, known)}")


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job as its owner asks for it. Fields without an `Option` are arguments of every entry point."""

    algorithm: AlgorithmRef = AlgorithmRef("", {})
    """Its name is empty while only the process that submits it has the class."""
    data: str = ""
    """A name, a path or an address; empty for rows that only the process that submits it has."""
    workers: Annotated[
        int | None,
        Option(
            "Workers; by default one, a team of threads, or one a core where a job cannot have a team; on a cluster a "
            "team on each host, or one worker a slot, with a fair share of all slots.",
            TRAINING,
            resume="Another number of workers; points are dealt anew.",
        ),
    ] = None
    threads: Annotated[
        int | None,
        Option(
            "Threads that train as one worker, a team; one a core where no number of workers is given, and none "
            "otherwise; on a cluster each takes a slot.",
            TRAINING,
            check=check_threads,
            resume="Another number of threads that train as one worker.",
            see="teams.md",
        ),
    ] = None
    criteria: Criteria = Criteria()
    seed: Annotated[
        int,
        Option(
            "Decides initial parameters and the order of the data. The same seed gives the same bits only under "
            "--sync bsp with the same --workers (and any --threads): other models set barriers by time, so runs differ "
            "within --tolerance.",
            TRAINING,
            check=check_seed,
            see="results-and-predictions.md",
        ),
    ] = 0
    sync: SyncSpec = SyncSpec()
    topology: Annotated[
        str,
        Option(
            "Where θ lives: coordinator, or allreduce (every worker has it, and they merge reports among themselves; "
            "bsp, bsp-mini and fsp).",
            SYNCHRONIZATION,
            metavar="coordinator|allreduce",
            check=check_topology,
            see="topologies.md",
        ),
    ] = "coordinator"
    device: Annotated[
        str,
        Option(
            "What workers compute on: cuda:0,cuda:1,… (all workers in turn; by default one for each), or 0=cuda:0, "
            "1-3=cuda:1, ...; others on the processor.",
            TRAINING,
            metavar="DEVICE,…|WORKER=DEVICE,…",
            see="networks.md",
        ),
    ] = ""
    gpus: Annotated[
        int,
        Option(
            "Deprecated, use --device 0=cuda:0,1=cuda:1,…: the first so many workers compute on one GPU each.",
            TRAINING,
            see="networks.md",
            instead=lambda count: ("device", ",".join(f"{worker}=cuda:{worker}" for worker in range(count))),
        ),
    ] = 0
    resting: Annotated[
        str,
        Option(
            "auto: workers that slow the job down more than they help hand their points over and rest, ready to come "
            "back; off: all workers train.",
            SYNCHRONIZATION,
            metavar="auto|off",
            check=check_resting,
            see="resting.md",
        ),
    ] = "auto"
    straggler: Annotated[
        str,
        Option(
            "Slow workers down on purpose: 0-3:8x, 0:32ms/1000, 0:8x@10s-20s, …",
            SYNCHRONIZATION,
            see="sync-models.md",
        ),
    ] = ""
    format: Annotated[
        str | None,
        Option(
            "Format of the data, where its name and content do not tell: csv, tsv, jsonl, parquet, npy, npz, excel, "
            "svmlight, idx, jester; ratings (lines of user, item, rating), or table (columns as they are, never "
            "ratings).",
            DATA,
            see="data.md",
        ),
    ] = None
    label: Annotated[str | int | None, Option("Label column of a file, by name or number.", DATA)] = None
    columns: Annotated[
        list[str | int] | None,
        Option(
            "Columns that are features, by name or number from 0: a,b,c; all but the label by default. Of ratings: "
            "user, item and rating, in this order.",
            DATA,
            metavar="NAMES",
            parse=parse_names,
            see="data.md",
        ),
    ] = None
    drop: Annotated[
        list[str | int] | None,
        Option(
            "Columns that are left out, by name or number.", DATA, metavar="NAMES", parse=parse_names, see="data.md"
        ),
    ] = None
    categorical: Annotated[
        str,
        Option(
            "What text becomes: onehot, ordinal, drop; auto is onehot, and names of single rows are left out.",
            DATA,
            metavar="auto|onehot|ordinal|drop",
            check=check_categorical,
            see="data.md",
        ),
    ] = "auto"
    categories: Annotated[
        list[str | int] | None,
        Option(
            "Columns that hold categories though they look like numbers, such as zip codes, by name or number.",
            DATA,
            metavar="NAMES",
            parse=parse_names,
            see="data.md",
        ),
    ] = None
    missing: Annotated[
        str,
        Option(
            "What gaps become: error, drop (the row is left out), mean, median, indicator (mean, and a column that "
            "marks them), or keep (for algorithms that know gaps, such as gapkmeans).",
            DATA,
            metavar="error|drop|mean|median|indicator|keep",
            check=check_missing,
            see="data.md",
        ),
    ] = "error"
    weight: Annotated[
        str | int | None,
        Option(
            "Column of a file or table that holds the weight of each row, by name, or by number among the features; "
            "an array of weights is the third of `(X, y, weights)`.",
            DATA,
        ),
    ] = None
    partition: Annotated[
        str,
        Option(
            "Who owns which rows: shuffle, shuffle:WORKER=SHARE,…, contiguous, 'sorted-by COLUMN' or dirichlet:ALPHA.",
            DATA,
            see="data.md",
        ),
    ] = "shuffle"
    keep_together: Annotated[
        str | int | None,
        Option(
            "Column of keys, by name, or by number among the features: rows of one key stay on one worker, and no "
            "barrier comes between them.",
            DATA,
            metavar="COLUMN",
            see="data.md",
        ),
    ] = None
    scale: Annotated[
        str,
        Option(
            "Scale the columns; the model keeps how, so `predict` does the same.", DATA, metavar="none|standard|minmax"
        ),
    ] = "none"
    validate: Annotated[
        float,
        Option(
            "Hold this part of the rows out of training, such as 0.1, and follow the model on them; 0 is none.",
            DATA,
            check=check_validate,
            see="results-and-predictions.md",
        ),
    ] = 0.0
    processes: Annotated[
        bool | None,
        Option(
            "Workers in processes of their own: yes, no (threads of this process), or auto: no for small jobs of "
            "built-in algorithms, which end before processes have started.",
            TRAINING,
            metavar="auto|yes|no",
            default="auto",
            parse=parse_processes,
            cluster=False,
        ),
    ] = None
    servers: Annotated[
        int | str,
        Option(
            "Parameter servers: 0 (the coordinator holds θ), so many processes, or colocated (one on each host of "
            "workers).",
            TRAINING,
            metavar="N|colocated",
            check=check_servers,
            see="servers.md",
        ),
    ] = 0
    replicas: Annotated[
        int,
        Option("Copies of each slice of θ on other servers.", FAULTS, check=check_replicas, see="servers.md"),
    ] = 1
    server_load: Annotated[
        str,
        Option(
            "Load of parameter servers: by the measured throughput of their links (network), the same (even), or as "
            "a paper has it (elastic, published).",
            TRAINING,
            metavar="network|even|elastic|published",
            check=check_server_load,
            see="servers.md",
        ),
    ] = "network"
    server_count: Annotated[
        str,
        Option(
            "Number of parameter servers while the job trains: as it began (fixed), by their load, or so many from "
            "given moments on (30s:6,5min:2).",
            TRAINING,
            metavar="fixed|load|load:1-8|PLAN",
            check=check_server_count,
            see="servers.md",
        ),
    ] = "fixed"
    worker_timeout: Annotated[
        float,
        Option(
            "A worker without a sign of life for so long is lost.",
            FAULTS,
            metavar="DURATION",
            default="10s",
            parse=parse_seconds,
            check=check_timeout,
            see="faults.md",
        ),
    ] = 10.0
    hook_timeout: Annotated[
        float,
        Option(
            "A hook, or a single point, that takes longer is endless; the job then fails, unless --expensive says so.",
            FAULTS,
            metavar="DURATION",
            default="30s",
            parse=parse_seconds,
            check=check_timeout,
            see="faults.md",
        ),
    ] = 30.0
    expensive: Annotated[
        str,
        Option(
            "A point whose visit keeps a barrier waiting, or takes as long as a hook may: fail (wait, then the job "
            "fails), abandon (leave it and go on), or retry (leave it once, and make it first in the next round).",
            FAULTS,
            metavar="fail|abandon|retry",
            check=check_expensive,
            see="faults.md",
        ),
    ] = "fail"
    replace: Annotated[
        bool, Option("Start another process for a lost worker, or share its points out.", FAULTS, see="faults.md")
    ] = True
    audit: Annotated[
        str,
        Option(
            "Check the statistics while training, and the result by a pass at the end: on, off, or so many points of "
            "each worker at a time.",
            FAULTS,
            metavar="on|off|N",
            check=check_audit,
            see="audit.md",
        ),
    ] = "on"
    checkpoint: Annotated[
        str | None,
        Option(
            "Keep the job's state in this folder or store (s3://…), for `flegel resume`.",
            FAULTS,
            metavar="DIR",
            parse=os.fspath,
            accepts="os.PathLike[str]",
            see="checkpoints.md",
        ),
    ] = None
    checkpoint_every: Annotated[
        float,
        Option(
            "Time between two checkpoints.",
            FAULTS,
            metavar="DURATION",
            default="30s",
            parse=parse_seconds,
            check=check_period,
            resume="Another time between two checkpoints.",
        ),
    ] = 30.0
    attribute: Annotated[
        bool,
        Option(
            "Show what each worker does for the objective (Δf); costs an evaluation of the objective per report.",
            OUTPUT,
            cluster=False,
        ),
    ] = False
    settings: Annotated[
        dict[str, float],
        Option(
            "Other values of tuned numbers: name=value,… or a TOML file; `flegel settings` lists them.",
            SYNCHRONIZATION,
            metavar="NAME=VALUE,…|FILE",
            parse=parse_settings,
            accepts="str | os.PathLike[str]",
            check=check_settings,
            see="settings.md",
        ),
    ] = msgspec.field(default_factory=dict)
    collect_state: Annotated[
        bool,
        Option("Return the hidden state of every point with the result.", OUTPUT, cluster=False, command_line=False),
    ] = False
    name: Annotated[str, Option("Name of the job.", CLUSTER, local=False)] = ""
    priority: Annotated[int, Option("Jobs with a larger one go first.", CLUSTER, local=False)] = 0
    memory: Annotated[
        int | None,
        Option(
            "Limit of each process, such as 2G; the slave's own by default.",
            CLUSTER,
            metavar="SIZE",
            parse=parse_bytes,
            local=False,
        ),
    ] = None
    retries: Annotated[int, Option("Start again so often when it crashes.", CLUSTER, local=False)] = 0
    sites: GroupSpec = GroupSpec()
