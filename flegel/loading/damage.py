"""Whatever goes wrong while foreign bytes are interpreted becomes one error of ours.

Parsers raise anything for bytes that are not what they should be: NumPy alone lets errors of Python's tokenizer,
`SyntaxError` and `OverflowError` out. `OSError` is not among it: that is the disk.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from flegel.errors import FlegelError, StorageError


@contextmanager
def damage_as(text: str, error: type[FlegelError] = StorageError) -> Iterator[None]:
    """`with damage_as("The model in m is damaged"):` around the interpretation of bytes."""
    try:
        yield
    except FlegelError:
        raise
    except OSError as found:
        if found.errno != errno.EINVAL:  # a position that cannot be, from a header
            raise
        raise error(f"{text}: it names a position that cannot be.") from None
    except Exception as found:  # noqa: BLE001 - see above
        said = " ".join(str(found).split())[:200].rstrip(".") or type(found).__name__
        raise error(f"{text}: {said.rstrip('.')}.") from None
