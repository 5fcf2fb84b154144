"""From a description that came over the wire back to the source or stream that it describes.

Knows every kind.
"""

from __future__ import annotations

from flegel.datasets.cache import SourceStream, columnar
from flegel.datasets.formats.arrays import ArraySource, SparseSource
from flegel.datasets.formats.cifar import CifarStream
from flegel.datasets.formats.packed_arrays import IdxStream, NpzStream
from flegel.datasets.formats.ratings import JesterStream, RatingsStream
from flegel.datasets.formats.several_files import Several
from flegel.datasets.formats.svmlight import SvmlightStream
from flegel.datasets.formats.tables import TableSource, TableStream
from flegel.datasets.formats.text import TextSource
from flegel.datasets.formats.text_stream import TextStream
from flegel.datasets.source import Description, Source, Stream
from flegel.datasets.synthetic import generators
from flegel.datasets.synthetic.copula import CopulaSource
from flegel.errors import DataError

_READ: tuple[type[Source], ...] = (ArraySource, SparseSource, TextSource, TableSource, Several, CopulaSource)
_SOURCES: dict[str, type[Source]] = {cls.kind: cls for cls in (*_READ, *generators.SOURCES)}
_STREAMS: dict[str, type[Stream]] = {
    cls.kind: cls
    for cls in (
        SourceStream,
        TextStream,
        TableStream,
        SvmlightStream,
        IdxStream,
        NpzStream,
        RatingsStream,
        JesterStream,
        CifarStream,
    )
}


def source_from(description: Description) -> Source:
    kind = description.get("kind")
    if kind == "cached":
        return columnar(stream_from(description["origin"]))
    if not isinstance(kind, str) or kind not in _SOURCES:
        raise DataError(f"This version knows no source of rows of the kind {kind!r}; are all hosts on one version?")
    return _SOURCES[kind].from_description(description)


def stream_from(description: Description) -> Stream:
    kind = description.get("kind")
    if not isinstance(kind, str) or kind not in _STREAMS:
        raise DataError(f"This version knows no stream of rows of the kind {kind!r}; are all hosts on one version?")
    return _STREAMS[kind].from_description(description)
