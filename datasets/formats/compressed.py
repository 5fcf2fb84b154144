"""The uncompressed bytes of a file (gzip, bzip2, xz, a zip of one file, or plain).

Never writes, never unpacks to disk.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from flegel.errors import DataError, in_words
from flegel.loading.array_files import check_zip_member

PACKED = (".gz", ".bz2", ".xz", ".zip")


def suffixes(path: Path) -> tuple[str, str]:
    """(format, packing) by name: `a.csv.gz` gives ('.csv', '.gz'). For a zip, the format is that of its only file."""
    packing = path.suffix.lower()
    if packing not in PACKED:
        return packing, ""
    name = _zip_member(path) if packing == ".zip" else path.with_suffix("").name
    return Path(name).suffix.lower(), packing


def _zip_member(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [m.filename for m in archive.infolist() if not m.is_dir()]
            for info in archive.infolist():
                check_zip_member(info)
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise DataError(f"{path} is no complete zip archive ({in_words(error)}); get the file again.") from None
    if len(members) != 1:
        raise DataError(f"{path} holds {len(members)} files; unpack it and give the path of one.")
    return members[0]


@contextlib.contextmanager
def open_unpacked(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading its uncompressed bytes; damage is raised as a DataError."""
    packing = path.suffix.lower()
    try:
        with contextlib.ExitStack() as stack:
            file: IO[bytes]
            if packing == ".gz":
                file = cast("IO[bytes]", stack.enter_context(gzip.open(path, "rb")))
            elif packing == ".bz2":
                file = stack.enter_context(bz2.open(path, "rb"))
            elif packing == ".xz":
                file = stack.enter_context(lzma.open(path, "rb"))
            elif packing == ".zip":
                member = _zip_member(path)
                file = stack.enter_context(stack.enter_context(zipfile.ZipFile(path)).open(member))
            else:
                file = stack.enter_context(path.open("rb"))
            yield file
    except EOFError:
        raise DataError(f"{path} is truncated: its compressed data end too early; get the file again.") from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is damaged or not in the format of its name ({error}); get the file again, or rename it."
        ) from None
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the path.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}); check its permissions.") from None


def read_head(path: Path, size: int) -> tuple[bytes, bool]:
    """The first `size` uncompressed bytes, and whether the file ends there."""
    with open_unpacked(path) as file:
        head = file.read(size + 1)
    return head[:size], len(head) <= size


def line_pieces(path: Path, skip: int, piece: int, longest: int) -> Iterator[bytes]:
    """Uncompressed text after `skip` bytes, in pieces of whole lines; a missing last line end is added."""
    rest = b""
    with open_unpacked(path) as file:
        while skip:
            got = len(file.read(min(skip, piece)))
            if not got:
                return
            skip -= got
        while data := file.read(piece):
            end = data.rfind(b"\n") + 1
            if end == 0:
                rest += data
                if len(rest) > longest:
                    raise DataError(f"{path} has a line longer than {longest:,} bytes; is this a table of numbers?")
                continue
            yield rest + data[:end]
            rest = data[end:]
    if rest.strip():
        yield rest + b"\n"
