"""Text that is not UTF-8, inside records that are otherwise well formed: damage in one sentence, wherever it is read.

Found by fuzzing a journal. Of the readers below, that of a coordinator's reports mattered most: a submitted class could
end its slave with one line.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from flegel.algorithm import HyperParameter
from flegel.cluster.master import journal
from flegel.cluster.slave import child_processes
from flegel.cluster.slave.attempt_processes import AttemptProcesses
from flegel.cluster.slave.attempts import Attempts
from flegel.cluster.slave.settings import SlaveSettings
from flegel.cluster.transport import keys
from flegel.compare import record
from flegel.errors import FlegelError
from flegel.runtime.checkpoint.format import seal
from flegel.runtime.checkpoint.reader import read
from flegel.runtime.checkpoint.store import FolderStore

BAD = b"\xc3\x28"


def test_a_journal(tmp_path: Path) -> None:
    body = msgspec.msgpack.encode({"type": "Begun", "job": "j", "at": 1.0, "attempt": 1}).replace(
        b"\xa1j", b"\xa2" + BAD
    )
    whole = journal.JOURNAL_HEADER + 2 * (struct.pack("<II", len(body), zlib.crc32(body)) + body)
    try:
        table, _ = journal.read(whole)
        assert not table.jobs
    except FlegelError as error:
        assert str(error)


def test_checkpoints(tmp_path: Path) -> None:
    for name in ("job", "00000001-e1.manifest"):
        (tmp_path / name).write_bytes(seal(b'{"format":1,"epoch":1,"x":"' + BAD + b'"}'))
    with pytest.raises(FlegelError):
        read(FolderStore(tmp_path))


def test_a_comparison(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b'{"' + BAD + b'":"' + BAD + b'","format":"' + BAD + b'"}')
    with pytest.raises(FlegelError, match="is no record"):
        record.read(tmp_path / "x.json")


def test_keys(tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir(parents=True)
    (tmp_path / "allowed" / f"{'0' * 64}.json").write_bytes(b'{"key":"' + BAD + b'"}')
    assert not keys.KeyRegistry(tmp_path).entries()
    own = tmp_path / "mine.key"
    own.write_bytes(b'{"public":"' + BAD + b'"}')
    own.chmod(0o600)
    with pytest.raises(FlegelError, match="is damaged"):
        keys.load_file(own)


def test_reports_of_a_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SlaveSettings("s0", 1, "127.0.0.1", tmp_path, 1 << 30, 1.0)
    attempts = Attempts(tmp_path / "jobs")
    processes = AttemptProcesses(settings, attempts, "owner")
    lines = [b'{"type":"' + BAD + b'"}', b'{"type":"PhaseChanged","name":"' + BAD + b'"}', b"[" * 100_000]
    monkeypatch.setattr(child_processes, "reports", lambda child: iter(lines))
    processes._read_reports(attempts.open("j", 1), cast(Any, None))
    assert not processes.changed, "none of them counts"


def test_hyper_parameters() -> None:
    with pytest.raises(FlegelError, match="does not fit"):
        HyperParameter("names", list[str], [], "").convert('["\udcff"]', "x")
