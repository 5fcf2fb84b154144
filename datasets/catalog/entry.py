"""One registered data set: its title, licence, shape, files and stand-in.

Never downloads or reads anything by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from flegel.datasets.formats.readers import open_files
from flegel.datasets.rows.cache_folder import data_folder
from flegel.datasets.rows.options import Options
from flegel.datasets.rows.source import Source


class RemoteFile(NamedTuple):
    """A file to fetch. The checksum is `algorithm:hexdigest`, or None where none is published."""

    url: str
    name: str
    checksum: str | None = None


class CatalogEntry:
    """One data set. Subclasses set the attributes and define the stand-in for the real rows."""

    name: ClassVar[str]
    title: ClassVar[str]
    home: ClassVar[str]
    licence: ClassVar[str]
    rows: ClassVar[int]
    columns: ClassVar[int]
    label: ClassVar[str | int | None] = None
    """Column of the label in the real file, where it is a column."""
    meaning: ClassVar[str | None] = None
    """What the label is, where it is no column of the file."""
    suits: ClassVar[tuple[str, ...]] = ()
    remotes: ClassVar[tuple[RemoteFile, ...]] = ()
    files: ClassVar[tuple[str, ...]] = ()
    """Patterns of the real file, searched in the set's folder and in the cache folder; the first match is used."""
    generated: ClassVar[bool] = False
    """True for a set that has no real rows, so its generated rows are no stand-in."""
    default_rows: ClassVar[int] = 1_000_000
    unit: ClassVar[str] = "rows"
    remark: ClassVar[str] = ""
    """How good the stand-in is."""
    advice: ClassVar[str | None] = None
    """What the user has to do after fetching."""

    @classmethod
    def folder(cls) -> Path:
        return data_folder() / cls.name

    @classmethod
    def real_path(cls) -> Path | None:
        """The real file, or None where it is not in the cache folder."""
        for folder in (cls.folder(), data_folder()):
            for pattern in cls.files:
                found = sorted(folder.glob(pattern))
                if found:
                    return found[0]
        return None

    @classmethod
    def open_real(cls, path: Path, options: Options) -> Source:
        chosen = options if options.label is not None else options._replace(label=cls.label)
        return open_files([path], chosen, cls.name)

    @classmethod
    def stand_in(cls, rows: int) -> Source:
        """Generated rows in the shape of the real ones."""
        raise NotImplementedError

    @classmethod
    def info(cls) -> dict[str, Any]:
        """What `flegel data info` shows."""
        path = cls.real_path()
        return {
            "name": cls.name,
            "title": cls.title,
            "rows": cls.rows,
            "columns": cls.columns,
            "label": cls.meaning or (None if cls.label is None else f"column {cls.label}"),
            "suits": list(cls.suits),
            "home": cls.home,
            "licence": cls.licence,
            "files": [{"url": r.url, "name": r.name, "checksum": r.checksum} for r in cls.remotes],
            "in_cache": None if path is None else str(path),
            "advice": cls.advice,
            "without_it": "always generated"
            if cls.generated
            else f"a stand-in of {cls.default_rows:,} {cls.unit}, {cls.remark}",
        }
