"""Files that hyper-parameters name: the one way in which algorithms read them. Never opens what is not allowed.

A hyper-parameter that may name a file says so in its annotation: `Annotated[str, NamesFile(("random",))]`. The command
line then makes the path absolute before a job leaves this host, and a slave that was started with `--data FOLDER` lets
its jobs read such files below those folders only.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from flegel.errors import UsageError
from flegel.loading.array_files import read_npy

FOLDERS_VARIABLE = "FLEGEL_DATA_FOLDERS"
"""Environment variable of a job's processes on a slave: folders that files may be read from; unset for all."""


@dataclass(frozen=True)
class NamesFile:
    """Marks a hyper-parameter that is the path of a file, unless it is one of `words`."""

    words: tuple[str, ...] = ()


def files_of(markers: Mapping[str, NamesFile], values: Mapping[str, Any]) -> dict[str, str]:
    """Hyper-parameters that name a file, and the file."""
    named = {name: values.get(name) for name in markers}
    return {k: v for k, v in named.items() if isinstance(v, str) and v not in markers[k].words}


def absolute(path: str) -> str:
    """As other processes find it; addresses stay as they are."""
    return path if "://" in path else str(Path(path).expanduser().absolute())


def allowed_folders() -> tuple[Path, ...]:
    """Folders that this process may read such files from; empty for all."""
    return tuple(map(Path, filter(None, os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep))))


def check_allowed(path: str, folders: Collection[Path], owner: str) -> None:
    """Check where a path leads in the end, whatever links and dots are on the way."""
    end = Path(path).expanduser().resolve()
    if folders and not any(end.is_relative_to(folder.resolve()) for folder in folders):
        allowed = ", ".join(map(str, folders))
        raise UsageError(f"{owner}: files are read from {allowed} only, not {path}.")


def read_array(path: str, owner: str) -> npt.NDArray[Any]:
    """The array of a `.npy` file that a hyper-parameter of `owner` names."""
    check_allowed(path, allowed_folders(), owner)
    try:
        return read_npy(Path(path).expanduser(), UsageError)
    except UsageError as error:
        raise UsageError(f"{owner}: {error}") from None
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise UsageError(f"{owner}: {path} cannot be read ({error.strerror or error}).") from None
