"""From a description that came over the network back to the source or stream that it describes.

Classes enter by being defined: `Source` and `Stream` register every subclass under its `kind`. The package's
`__init__` imports all modules that define one, so a worker knows every kind. Never imports a format itself.
"""

from __future__ import annotations

from flegel.datasets.rows.source import SOURCES, STREAMS, Description, Source, Stream
from flegel.errors import DataError


def source_from(description: Description) -> Source:
    """The source that `describe` was called on, or an equal one."""
    kind = description.get("kind")
    if not isinstance(kind, str) or kind not in SOURCES:
        raise DataError(f"This version of Flegel has no source of kind {kind!r}; install one version on all hosts.")
    return SOURCES[kind].from_description(description)


def stream_from(description: Description) -> Stream:
    """The stream that `describe` was called on, or an equal one."""
    kind = description.get("kind")
    if not isinstance(kind, str) or kind not in STREAMS:
        raise DataError(f"This version of Flegel has no stream of kind {kind!r}; install one version on all hosts.")
    return STREAMS[kind].from_description(description)
