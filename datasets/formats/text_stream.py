"""Text tables that can only be read from their beginning: compressed ones, and ones with text labels.

Never holds more than one piece of the file in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flegel.datasets.formats.compressed import line_pieces
from flegel.datasets.formats.text_dialect import LINE_LIMIT, Dialect
from flegel.datasets.formats.text_parse import parse
from flegel.datasets.rows.file_signature import check_unchanged, signature
from flegel.datasets.rows.source import Chunk, Description, Stream

TEXT_PIECE_BYTES = 8 << 20  # that are parsed at a time


class TextStream(Stream):
    """One text table, in order."""

    kind = "text-stream"

    def __init__(self, path: Path, dialect: Dialect, dtype: str) -> None:
        self.path, self.dialect = path, dialect
        self.origin = str(path)
        self.dtype = np.dtype(dtype)
        self.columns = len(dialect.features)
        self.names = dialect.feature_names
        self.labelled = dialect.label is not None
        self.named_classes = dialect.text_label

    def chunks(self) -> Iterator[Chunk]:
        """Blank lines are dropped at the end of the file and refused elsewhere. Those at the end of a piece are put
        before the next one, because only that tells which of the two they are."""
        line = self.dialect.skip_lines + 1
        blank = b""
        for piece in line_pieces(self.path, self.dialect.header, TEXT_PIECE_BYTES, LINE_LIMIT):
            text = blank + piece
            written = len(text.rstrip(b"\r\n \t"))
            end = text.index(b"\n", written) + 1 if written else 0  # a tab at the end of a line may end a field
            body, blank = text[:end], text[end:]
            if not body:
                continue
            lines = body.count(b"\n")
            columns, labels = parse(body, self.dialect, self.dtype, lines, line, self.origin)
            line += lines
            yield Chunk(np.stack(columns, axis=1), labels)

    def describe(self) -> Description:
        return {
            "kind": self.kind,
            "path": str(self.path),
            "signature": signature(self.path),
            "dialect": self.dialect.plain(),
            "dtype": self.dtype.name,
        }

    @classmethod
    def from_description(cls, description: Description) -> TextStream:
        path = Path(description["path"])
        check_unchanged(path, description)
        return cls(path, Dialect(**description["dialect"]), description["dtype"])
