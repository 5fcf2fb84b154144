"""Where users write settings: words of a command line, a TOML file, the environment, a block in Python.

A TOML file has one table for each subject:

    [interval]
    stage_ends_below = 0.5
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flegel.configuration.active import Settings, active_changes, changed, checked, using
from flegel.errors import UsageError, in_words
from flegel.loading.regular_files import read_regular

VARIABLE = "FLEGEL_SETTINGS"
"""The environment variable with a TOML file, or with name=value,…"""
LARGEST_FILE_BYTES = 1 << 20  # of a file with settings; a larger one is refused


@contextmanager
def settings(changes: Mapping[str, float] | str | os.PathLike[str]) -> Iterator[None]:
    """Jobs and simulations of this block have other settings: `{"interval.shortest_seconds": 0.001}`, or a TOML file.

    `flegel settings` lists all of them with their units, defaults and reasons.
    """
    with using(parse_settings(changes)):
        yield


def changes_outside() -> dict[str, float]:
    """What differs from the defaults where a job is submitted: by the environment, and by blocks around the call."""
    return {**changes_of_environment(), **active_changes()}


def settings_outside() -> Settings:
    """Settings of what is no job: the ranks of a network that PyTorch trains. Kept by whoever asks, as its threads have
    no settings of their own."""
    return changed(changes_outside())


def changes_of_environment() -> dict[str, float]:
    """What `FLEGEL_SETTINGS` says."""
    return parse_settings(os.environ.get(VARIABLE, ""))


def check_settings(given: Mapping[str, float], shown: str = "") -> None:
    """Names and values of the changes of a job."""
    parse_settings(given)


def parse_settings(given: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, float]:
    """Changes by full name; from a mapping, from `name=value,…` or from the path of a TOML file."""
    if isinstance(given, Mapping):
        return {str(name): checked(str(name), value) for name, value in given.items()}
    if not isinstance(given, str | os.PathLike):
        raise UsageError(f"Settings are a dictionary of names and numbers, name=value,… or a TOML file, not {given!r}.")
    text = os.fspath(given).strip()
    if "=" in text and not text.endswith(".toml"):
        return dict(_word(word) for word in text.split(",") if word.strip())
    return _of_file(Path(text)) if text else {}


def _word(word: str) -> tuple[str, float]:
    """Name and value of a setting written as `name=number`, checked."""
    name, _, value = (part.strip() for part in word.partition("="))
    try:
        number: float = int(value) if value.lstrip("+-").isdigit() else float(value)
    except ValueError:
        raise UsageError(
            f"{word.strip()!r} is no setting; write name=number, such as interval.first_measured_part=0.1."
        ) from None
    return name, checked(name, number)


def _of_file(path: Path) -> dict[str, float]:
    """Settings by name (`interval.speed_rounds`), from a TOML file with one table for each subject."""
    try:
        tables = tomllib.loads(read_regular(path, LARGEST_FILE_BYTES).decode())
    except FileNotFoundError:
        raise UsageError(
            f"There is no file {path} with settings; give the path of a TOML file, or name=number."
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"The settings in {path} cannot be read ({in_words(error)}); write a TOML file, or name=number."
        ) from None
    found: dict[str, float] = {}
    for subject, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {subject} must be a table, such as [interval], with one line for each setting.")
        for field, value in table.items():
            name = f"{subject}.{field}"
            found[name] = checked(name, value)
    return found
