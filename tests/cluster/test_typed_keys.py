"""The exchange of keys in docs/security.md, typed at two hosts: this one, with a folder of keys for each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_cluster import WAIT, end_with_the_test

from flegel.runtime import clock
from tests.ports import free_port
from tests.typed_pages import ROOT, blocks

LINE = re.compile(r"(?P<host>\w+)\$  flegel (?P<words>[^#]*)")
KEY = re.compile(r"\b[0-9a-f]{64}\b")


class Host:
    """A prompt of the page: commands with its own keys, and at most one daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.daemon: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        self.log.touch()

    def _started(self, words: list[str], output: int) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "flegel.cli.main", *words],
                env={**os.environ, "FLEGEL_HOME": str(self.folder), "PYTHONPATH": str(ROOT)}, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=output, stderr=log, preexec_fn=end_with_the_test,
            )  # fmt: skip

    def said(self, words: list[str]) -> str:
        process = self._started(words, subprocess.PIPE)
        printed = process.communicate(timeout=WAIT)[0].decode()
        assert process.returncode == 0, (words, printed, self.log.read_text())
        return printed

    def serve(self, words: list[str], until: str) -> None:
        """In the place of the daemon that ran before: a reader ends that with Ctrl-C."""
        self.end()
        self.log.write_text("")
        self.daemon = self._started(words, subprocess.DEVNULL)
        self.wait(until)

    def wait(self, text: str) -> None:
        limit = clock.now() + WAIT
        while text not in self.log.read_text():
            assert clock.now() < limit and self.daemon is not None and self.daemon.poll() is None, self.log.read_text()
            clock.sleep(0.1)

    def end(self) -> None:
        if self.daemon is not None:
            self.daemon.terminate()
            self.daemon.wait(WAIT)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[dict[str, Host]]:
    made = {name: Host(tmp_path / name) for name in ("node", "head")}
    yield made
    for host in made.values():
        host.end()


@pytest.mark.slow
@pytest.mark.processes
def test_keys_are_exchanged_and_revoked_as_the_page_says(hosts: dict[str, Host]) -> None:
    """What a command prints replaces the keys of the page, which are cut short there."""
    (block,) = (b for b in blocks(ROOT / "docs" / "security.md") if b.needs == "hosts")
    address = f"127.0.0.1:{free_port()}"
    made = ""
    for line in block.text.splitlines():
        found = LINE.match(line)
        assert found is not None, line
        host = hosts[found["host"]]
        words = [
            made if word.endswith("…") else word for word in found["words"].replace("10.0.0.1:7077", address).split()
        ]
        if words == ["master"]:
            words += ["--listen", f"tcp://{address}"]  # other tests may have the usual port
        if words[0] in ("master", "slave"):
            host.serve(words, "listening at" if words[0] == "master" else "answers")
            continue
        printed = host.said(words)
        if words[:2] == ["keys", "new"]:
            made = KEY.findall(printed)[0]
            assert f"flegel keys add {made} --role slave" in printed
        elif words[:2] == ["keys", "show"]:
            made = next(line.split()[1] for line in printed.splitlines() if line.split()[:1] == ["master"])
    hosts["node"].wait("not known")
