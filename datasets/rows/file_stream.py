"""Streams that a path and a type of numbers describe: how such a description is made and read again."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Self

from flegel.datasets.rows.file_signature import check_unchanged, signature
from flegel.datasets.rows.source import Description, Stream


class FileStream(Stream):
    """One file, whose rows need no other options."""

    path: Path

    @abstractmethod
    def __init__(self, path: Path, dtype: str | None) -> None: ...

    def describe(self) -> Description:
        return {
            "kind": self.kind,
            "path": str(self.path),
            "signature": signature(self.path),
            "dtype": self.dtype.name,
        }

    @classmethod
    def from_description(cls, description: Description) -> Self:
        path = Path(description["path"])
        check_unchanged(path, description)
        return cls(path, description["dtype"])
