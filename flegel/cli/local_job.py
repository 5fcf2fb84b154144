"""One job of this host: from options as the command line gives them to a result in files. Trains nothing itself."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flegel.cli.rows_file import ROWS_FILE_SUFFIXES, check_rows_file, write_rows
from flegel.errors import ExitCode, FlegelError, UsageError
from flegel.plan.termination import FAILED_OUTCOMES
from flegel.terminal.reporting import PhaseLine, print_all, say
from flegel.wording import counted

if TYPE_CHECKING:
    from flegel.callbacks.callback import Callback
    from flegel.datasets import Dataset
    from flegel.runtime.job.observers import Observer


def make_algorithm(word: str, settings: list[str] | None) -> Any:
    """The algorithm that a word names, with the hyper-parameters of `--set`."""
    from flegel.loading.input_files import absolute, files_of
    from flegel.runtime.job.find_algorithm import find_algorithm

    cls = find_algorithm(word)
    hyper: dict[str, Any] = {}
    for setting in settings or []:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise UsageError(f"--set {setting!r} is not of the form name=value.")
        hyper[name.strip()] = value.strip()
    markers = {name: known.file for name, known in cls.hyper_parameters().items() if known.file is not None}
    for name, path in files_of(markers, hyper).items():
        if Path(path).expanduser().exists():  # otherwise the algorithm says what is wrong with the word as it was typed
            hyper[name] = absolute(path)
    for name, known in cls.hyper_parameters().items():
        if known.holds_arrays and str(hyper.get(name, "")).endswith(".npy"):
            hyper[name] = array_of(name, hyper[name])
    return cls(**hyper)


def array_of(name: str, path: str) -> Any:
    """The array of a file that `--set name=FILE.npy` names."""
    from flegel.loading.array_files import read_npy

    try:
        return read_npy(Path(path).expanduser(), UsageError)
    except OSError as error:
        raise UsageError(f"--set {name}={path} cannot be read: {error.strerror or error}.") from None


def open_rows(
    algorithm: Any,
    data: str,
    *,
    label: str | None,
    weight: str | None = None,
    columns: str | None,
    drop: str | None,
    categorical: str,
    categories: str | None = None,
    missing: str,
    format: str | None,
) -> Dataset:
    """The rows that `flegel submit` would train this algorithm on, for commands that train it in another way."""
    from flegel.job import Job, parse_names
    from flegel.runtime.job.request import open_job_data

    job = Job(
        label=label,
        weight=weight,
        columns=parse_names(columns) if columns else None,
        drop=parse_names(drop) if drop else None,
        categorical=categorical,
        categories=parse_names(categories) if categories else None,
        missing=missing,
        format=format,
    )
    return open_job_data(job, data, algorithm)


TABLE_OPTIONS = ("label", "weight", "columns", "drop", "categorical", "categories", "missing", "format")
"""Options that say how a table is read, by the names that records of commands have for them."""


def rows_as_told(algorithm: Any, data: str, options: Any) -> Dataset:
    """`open_rows` with those options of a command's record that say how a table is read."""
    return open_rows(algorithm, data, **{name: vars(options)[name] for name in TABLE_OPTIONS if name in vars(options)})


def start_logging(verbose: bool, as_json: bool, level: int = logging.WARNING) -> None:
    """Records of `flegel.*` go to standard error; processes that are started later do the same."""
    from flegel.runtime import logs

    logs.announce(verbose, as_json)
    logs.configure(level=level)


def train_here(
    chosen: Any,
    data: str,
    local: dict[str, Any],
    outputs: Outputs,
    served: Served,
    track: list[str] | None,
    line: PhaseLine,
) -> None:
    """Train on workers of this host, with the options of `for_this_host`; show, save and tell the result."""
    if local.get("checkpoint_every") is not None and local.get("checkpoint") is None:
        raise UsageError("--checkpoint-every says how often; say also where, with --checkpoint DIR.")
    from flegel.api import jobs as api

    job = partial(api.run, chosen, data, callbacks=trackers_for(track), progress=False, **local)
    show_and_save(job, outputs, served, line, advises=True)


def folder_for(save: bool, out: Path | None, *name: str) -> Path | None:
    """Where the result goes; None: nowhere."""
    if out is not None and out.suffix in ROWS_FILE_SUFFIXES:
        raise UsageError(
            f"--out {out} would be a folder for the model; --labels {out} writes the class or cluster of each row."
        )
    if not save and out is not None:
        raise UsageError(f"--no-save keeps nothing, and --out {out} says where; omit one of them.")
    return (out or _free_folder(*name)) if save else None


def trackers_for(words: list[str] | None) -> list[Callback]:
    if not words:
        return []
    from flegel.callbacks.track import trackers

    return trackers(words)


class Outputs(NamedTuple):
    """Where a result goes."""

    folder: Path | None
    json_to: str | None
    labels: Path | None
    explain: bool = False
    """Say in the terminal which kernel served the rows, and why."""

    def check(self) -> None:
        """Raise `UsageError`, before anything is done, where some output could not be written."""
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
        """Print the JSON of the result, or write it into a file."""
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
        """Start what was asked for, metrics and dashboard: observers that feed them. They are served until the stack
        ends."""
        found: list[Observer] = []
        if self.metrics is not None:
            from flegel.metrics.endpoint import JobMetrics, MetricsEndpoint

            endpoint = MetricsEndpoint(self.metrics)
            stack.callback(endpoint.close)
            say(f"metrics at {endpoint.url}")
            found.append(JobMetrics(endpoint))
        if self.dashboard is not None:
            from flegel.cli.dashboard import serve_job

            found.append(serve_job(stack, self.title, self.dashboard))
        return found


def show_and_save(
    job: Callable[..., Any], outputs: Outputs, served: Served, line: PhaseLine, advises: bool = False
) -> None:
    """Run it under a display, which also tells the result; `advises`: and how its start may be shorter."""
    from flegel.terminal.display import make_display, start_advice

    line.begin("reading")
    display = make_display(sys.stderr)
    with ExitStack() as stack:
        observers = served.observers(stack)
        with display:
            result = _finish_job(partial(job, observers=[line, display, *observers]), display, outputs, line)
    display.finish(result)
    if outputs.explain:
        display.say(f"kernel: {result.kernel}" + (f", {result.kernel_choice}" if result.kernel_choice else ""))
        display.say(f"trained by: {trained_by(result)}")
        if result.sync_choice:
            display.say(f"{result.sync} chose: {result.sync_choice}")
    advice = start_advice(result.seconds, result.load_seconds, result.placement) if advises else ""
    if advice:
        display.say(advice)
    if result.outcome in FAILED_OUTCOMES:
        raise SystemExit(ExitCode.NOT_AS_ASKED)


def trained_by(result: Any) -> str:
    """Which workers trained, for people."""
    where = "threads of this process" if result.placement == "threads" else "processes"
    if not result.threads:
        return f"{counted(result.workers, 'worker')}, {where}"
    own = counted(result.threads, "thread")
    if result.workers == 1:
        return f"a team of {own} {'of this process' if result.placement == 'threads' else 'of a worker process'}"
    return f"{counted(result.workers, 'worker')}, each a team of {own}, {where}"


def _finish_job(job: Callable[..., Any], display: Any, outputs: Outputs, line: PhaseLine) -> Any:
    """Run it under a display and save its result, which the caller tells once the display is left. Where it cannot be
    saved, it is told here, before the error, so that training was not in vain."""
    import warnings

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: display.say(f"warning: {message}")
        result = job()
    line.stop()
    for text in result.warnings:
        if text != result.reason:  # which is said at the end
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
