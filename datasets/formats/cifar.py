"""CIFAR-10 in its binary form (records of one label byte and 3,072 pixel bytes), read from the published archive.

Never unpacks the archive to disk, never reads the pickled form.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flegel.datasets.rows.file_stream import FileStream
from flegel.datasets.rows.source import Chunk
from flegel.errors import DataError, in_words

_RECORD = 3073  # bytes: a label and 32 × 32 pixels of three colours


class CifarStream(FileStream):
    """The five training batches; a row is 3 × 32 × 32 pixels, red first."""

    kind = "cifar"
    labelled = True
    columns = _RECORD - 1

    def __init__(self, path: Path, dtype: str | None) -> None:
        self.path, self.origin = path, str(path)
        self.dtype = np.dtype(dtype or "float32")

    def chunks(self) -> Iterator[Chunk]:
        """One chunk for each training batch in the archive, in the order of their names."""
        try:
            with tarfile.open(self.path) as archive:
                members = sorted(
                    (m for m in archive.getmembers() if Path(m.name).name.startswith("data_batch_")),
                    key=lambda m: m.name,
                )
                for member in members:
                    file = archive.extractfile(member)
                    data = file.read() if file else b""
                    if not data or len(data) % _RECORD:
                        raise DataError(
                            f"{self.path}: {member.name} has {len(data)} bytes, which is no multiple of {_RECORD}; "
                            "fetch the archive again."
                        )
                    records = np.frombuffer(data, np.uint8).reshape(-1, _RECORD)
                    yield Chunk(np.ascontiguousarray(records[:, 1:]), records[:, 0].astype(np.float64))
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise DataError(
                f"{self.path} is no complete CIFAR-10 archive ({in_words(error)}); fetch it again."
            ) from None
