"""`flegel submit` without Typer, where its words are plain: known options in their long form, each with a good value.

Typer takes 0.4 s to import, to declare all commands and to read one (docs/adr/submit-without-typer.md). Whatever is not
plain, such as `--help`, a cluster, or a word that is wrong, is left to it, and so are all messages about words.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from flegel.cli.job_options import FLAGS, default_of, for_this_host
from flegel.options import NamedOption
from flegel.runtime.system.signals import imports_are_over, terminate

OWN_OPTIONS = {"--data": "data", "--set": "hyper", "--out": "out", "--json": "json_to"}
SWITCHES = {"--save": ("save", True), "--no-save": ("save", False)}
DECIDING_VARIABLES = ("FLEGEL_MASTER", "FLEGEL_INSECURE", "FLEGEL_CANCEL_ON_INTERRUPT", "_FLEGEL_COMPLETE")
"""Variables of the environment that change what the words mean; with one of them Typer reads the words."""
PLAIN_TYPES = (int, float, str)
Unusual = (ValueError, KeyError, StopIteration)


class Submission(NamedTuple):
    """What `flegel submit` was told."""

    algorithm: str
    data: str
    hyper: list[str]
    out: Path | None
    json_to: str | None
    save: bool
    options: dict[str, Any]


def plain_submission(words: list[str]) -> Submission | None:
    """The words after `flegel submit`; None where they are for Typer."""
    if any(os.environ.get(name) for name in DECIDING_VARIABLES):
        return None
    known = {option.flag: option for option in FLAGS.values()}
    told: dict[str, Any] = {"hyper": [], "save": True, "out": None, "json_to": None}
    options = {name: _default(option) for name, option in FLAGS.items()}
    left = iter(words)
    try:
        for word in left:
            flag, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
            if flag in SWITCHES and not equals:
                name, told_value = SWITCHES[flag]
                told[name] = told_value
            elif flag in OWN_OPTIONS:
                _note(told, OWN_OPTIONS[flag], value if equals else next(left))
            elif flag in known:
                options[known[flag].name] = _value(known[flag], value if equals else next(left))
            elif word.startswith("-") or "algorithm" in told:
                return None
            else:
                told["algorithm"] = word
        return Submission(options=options, **told) if "algorithm" in told and "data" in told else None
    except Unusual:
        return None


def _default(option: NamedOption) -> Any:
    """In the type of the option's values, as Typer gives it."""
    value = default_of(option)
    return value if value is None else option.word_type(value)


def _note(told: dict[str, Any], name: str, value: str) -> None:
    if not value or (value.startswith("-") and value != "-"):
        raise ValueError(value)
    if name == "hyper":
        told[name].append(value)
    else:
        told[name] = Path(value) if name == "out" else value


def _value(option: NamedOption, value: str) -> Any:
    """The text as the type that Typer would give it; raises `ValueError` for what Typer might read in another way."""
    kind = option.word_type
    odd = (
        value.strip() != value
        or (kind is str and value.startswith("-"))
        or (kind is not str and ("_" in value or not value.isascii()))
    )
    if kind not in PLAIN_TYPES or not value or odd:
        raise ValueError(value)
    return kind(value)


def main(waiting: bool) -> bool:
    """Submit, and return True; False where nothing was done, because the words are not plain. `waiting`: a line on the
    terminal says that the program starts, and is to be removed."""
    told = plain_submission(sys.argv[2:])
    if told is None:
        return False
    if waiting:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    from flegel.runtime.system.descendants import ended_with_this_block
    from flegel.runtime.system.standard_streams import protect

    protect("stdout", "stderr")
    signal.signal(signal.SIGTERM, terminate)
    with ended_with_this_block():
        submit(told)
    return True


def submit(told: Submission) -> None:
    """Run a job on this host as `flegel.cli.submit.submit` does."""
    from flegel.cli.local_job import Outputs, Served, folder_for, make_algorithm, start_logging, train_here
    from flegel.runtime.processes import fork_server
    from flegel.terminal.reporting import WORKERS_STOPPED, PhaseLine, errors_as_sentences

    start_logging(verbose=False, as_json=False)
    line = PhaseLine(sys.stderr, told.data)
    with errors_as_sentences(WORKERS_STOPPED), fork_server.prepared(), line:
        line.begin("importing")
        if ":" in told.algorithm:  # a class of the user's, which numba compiles
            fork_server.preload("numba")
        import_module("flegel.algorithm")
        imports_are_over()
        chosen = make_algorithm(told.algorithm, told.hyper)
        outputs = Outputs(folder_for(told.save, told.out, told.algorithm, told.data), told.json_to, None)
        outputs.check()
        served = Served(None, None, f"{told.algorithm} on {told.data}")
        train_here(chosen, told.data, for_this_host(told.options, detach=False), outputs, served, None, line)
