"""Keys: secret files stay secret, names stay in their folder, a list of keys counts from one moment to the next."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flegel.cli.cluster_daemons import _dialer
from flegel.cli.cluster_jobs import open_client
from flegel.cli.main import app
from flegel.cluster import client
from flegel.cluster.transport import keys
from flegel.errors import ExitCode, FlegelError, Terminated, UsageError
from flegel.runtime.transport.curve import derive_public, new_key_pair

OTHER = new_key_pair()


def test_a_pair_is_written_for_its_owner_alone_and_read_back(tmp_path: Path) -> None:
    pair = keys.create("me", tmp_path)
    file = tmp_path / "me.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert keys.load("me", tmp_path) == pair
    assert derive_public(pair.secret) == pair.public
    assert pair.secret not in repr(pair)


def test_a_pair_that_exists_is_never_overwritten(tmp_path: Path) -> None:
    pair = keys.create("me", tmp_path)
    with pytest.raises(UsageError, match="already"):
        keys.create("me", tmp_path)
    assert keys.ensure("me", tmp_path) == pair


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    keys.create("me", tmp_path)
    (tmp_path / "me.key").chmod(mode)
    with pytest.raises(UsageError, match="Others can read"):
        keys.load("me", tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"not json", b'{"public":"00","secret":"11"}', b'{"public":"' + b"ab" * 32 + b'"}']
)
def test_a_damaged_pair_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    keys.create("me", tmp_path)
    (tmp_path / "me.key").write_bytes(content)
    with pytest.raises(UsageError, match="damaged"):
        keys.load("me", tmp_path)


def test_halves_of_two_pairs_are_no_pair(tmp_path: Path) -> None:
    pair = keys.create("me", tmp_path)
    (tmp_path / "me.key").write_text(f'{{"public":"{OTHER.public}","secret":"{pair.secret}"}}')
    with pytest.raises(UsageError, match="do not belong together"):
        keys.load("me", tmp_path)


def test_a_link_is_not_followed_to_a_secret(tmp_path: Path) -> None:
    keys.create("me", tmp_path)
    (tmp_path / "you.key").symlink_to(tmp_path / "me.key")
    with pytest.raises(UsageError):
        keys.load("you", tmp_path)


@pytest.mark.parametrize("name", ["", "..", "../me", "a/b", "/etc/x", ".hidden", "a\0b", "a b", "x" * 65, "-rf"])
def test_a_name_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    for act in (lambda: keys.create(name, tmp_path), lambda: keys.load(name, tmp_path)):
        with pytest.raises(UsageError, match="cannot name a key"):
            act()
    if name:
        with pytest.raises(UsageError):
            keys.KeyRegistry(tmp_path).add(OTHER.public, "read", name)
    assert not list(tmp_path.rglob("*.key"))


def test_adding_and_revoking_count_for_a_registry_that_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "KEYS_CACHE_SECONDS", 0.0)
    running, hand = keys.KeyRegistry(tmp_path), keys.KeyRegistry(tmp_path)
    assert not running.admit(OTHER.public)
    hand.add(OTHER.public, "read", "ann")
    entry = running.find(OTHER.public)
    assert entry is not None and (entry.role, entry.name) == ("read", "ann")
    hand.add(OTHER.public, "submit", "ann")
    entry = running.find(OTHER.public)
    assert entry is not None and entry.role == "submit"
    hand.revoke("ann")
    assert running.find(OTHER.public) is None and not running.entries()


def test_a_list_that_was_tampered_with_lets_nobody_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEYS_CACHE_SECONDS", 0.0)
    registry = keys.KeyRegistry(tmp_path)
    registry.add(OTHER.public, "submit")
    assert registry.admit(OTHER.public)
    file = tmp_path / "allowed" / f"{OTHER.public}.json"
    renamed = file.with_name(f"{'ab' * 32}.json")
    file.rename(renamed)  # the key in the file is not that of its name
    assert not registry.admit(OTHER.public) and not registry.admit("ab" * 32)
    renamed.write_text("{")
    assert not registry.admit("ab" * 32)
    renamed.unlink()
    (tmp_path / "allowed").rmdir()
    assert registry.entries() == []


def test_who_is_known_is_let_in_while_no_file_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEYS_CACHE_SECONDS", 0.0)
    registry, hand = keys.KeyRegistry(tmp_path), keys.KeyRegistry(tmp_path)
    known, revoked, new = OTHER.public, new_key_pair().public, new_key_pair().public
    hand.add(known, "slave")
    hand.add(revoked, "slave")
    assert registry.admit(known) and registry.admit(revoked)
    hand.revoke(revoked)
    hand.add(new, "slave")
    with every_descriptor_taken():  # as strangers do it with connections
        assert [registry.admit(key) for key in (known, revoked, new)] == [True, False, False]
    assert [registry.admit(key) for key in (known, revoked, new)] == [True, False, True]


def test_a_key_that_could_not_be_read_is_read_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEYS_CACHE_SECONDS", 0.0)
    registry = keys.KeyRegistry(tmp_path)
    keys.KeyRegistry(tmp_path).add(OTHER.public, "slave")

    def no_descriptor(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", no_descriptor)
        assert not registry.admit(OTHER.public)
    assert registry.admit(OTHER.public)


@contextlib.contextmanager
def every_descriptor_taken() -> Iterator[None]:
    """This process may open no other file meanwhile."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_master_is_trusted_but_not_let_in(tmp_path: Path) -> None:
    registry = keys.KeyRegistry(tmp_path)
    registry.add(OTHER.public, "master", address="tcp://head:7077")
    assert not registry.admit(OTHER.public)
    assert registry.master("tcp://head:7077") == OTHER.public
    with pytest.raises(UsageError, match="not known"):
        registry.master("tcp://other:7077")


@pytest.mark.parametrize("words", [["top"], ["top", "--once"], ["jobs"], ["status"]])
def test_without_a_master_commands_say_that_nothing_listens(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEGEL_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = f"tcp://127.0.0.1:{busy.getsockname()[1]}"
        done = CliRunner().invoke(app, [*words, "--master", address])
        assert done.exit_code == 2 and "is not known here; ask its owner" in done.output
    done = CliRunner().invoke(app, [*words, "--master", address])
    assert done.exit_code == 1 and f"Nothing listens at {address}; start a master" in done.output
    assert "--dashboard" in done.output


def test_the_first_start_of_a_master_makes_keys_once(tmp_path: Path) -> None:
    pair = keys.first_start(tmp_path)
    registry = keys.KeyRegistry(tmp_path)
    assert {e.role for e in registry.entries()} == {"master", "slave", "submit"}
    registry.revoke("local-submit")
    assert keys.first_start(tmp_path) == pair
    assert {e.role for e in registry.entries()} == {"master", "slave"}, "what was revoked stays revoked"


@pytest.mark.parametrize("writes", range(4))
def test_a_first_start_that_was_ended_in_the_middle_is_completed_by_the_next(
    writes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, done = keys.KeyRegistry.write, []

    def write(self: keys.KeyRegistry, entry: keys.KeyEntry) -> keys.KeyEntry:
        if len(done) == writes:
            raise Terminated(ExitCode.TERMINATED)
        done.append(entry)
        return real(self, entry)

    monkeypatch.setattr(keys.KeyRegistry, "write", write)
    with contextlib.suppress(Terminated):
        keys.first_start(tmp_path)
    registry = keys.KeyRegistry(tmp_path)
    assert bool(registry.masters("tcp://127.0.0.1:1")) == (writes == 3), "who finds it finds the others, too"
    monkeypatch.undo()
    pair = keys.first_start(tmp_path)
    assert {e.role for e in registry.entries()} == {"master", "slave", "submit"}
    assert registry.master("tcp://127.0.0.1:1") == pair.public
    assert not list(tmp_path.glob("first*"))


class StartingMaster:
    """A clock whose sleeps take no time, and a master of this host that has made its keys after some of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path, sleeps: int) -> None:
        self.now, self.sleeps_left = 0.0, sleeps
        monkeypatch.setenv("FLEGEL_HOME", str(home))
        monkeypatch.setattr(client.clock, "now", lambda: self.now)
        monkeypatch.setattr(client.clock, "sleep", self.sleep)
        monkeypatch.setattr(client, "listens", lambda address: False)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps_left -= 1
        if self.sleeps_left == 0:
            keys.first_start()


def test_a_slave_and_a_submitter_that_start_before_the_master_of_their_host_wait_for_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = "tcp://127.0.0.1:1"
    starting = StartingMaster(monkeypatch, tmp_path / "slave", sleeps=20)
    _dialer(address, insecure=False)
    assert starting.sleeps_left == 0
    assert f"no master has started at {address} yet; waiting up to 30 s for it" in capsys.readouterr().err
    starting = StartingMaster(monkeypatch, tmp_path / "submitter", sleeps=20)
    open_client(address, False, client.MASTER_START_SECONDS).close()
    assert starting.sleeps_left == 0


def test_the_wait_for_a_master_has_an_end_and_is_for_this_host_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = StartingMaster(monkeypatch, tmp_path, sleeps=10**6)
    with pytest.raises(UsageError, match="is not known here"):
        _dialer("tcp://127.0.0.1:1", insecure=False)
    assert client.MASTER_START_SECONDS <= starting.now <= client.MASTER_START_SECONDS + 1
    with pytest.raises(FlegelError, match="Nothing listens"):
        open_client("tcp://127.0.0.1:1", False, client.MASTER_START_SECONDS)
    waited = starting.now
    with pytest.raises(UsageError, match="is not known here"):
        _dialer("tcp://192.0.2.7:7077", insecure=False)  # an address of documentation
    assert starting.now == waited


def test_the_command_line_makes_shows_adds_and_revokes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEGEL_HOME", str(tmp_path))

    def flegel(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["keys", *words])
        assert done.exit_code == code, done.output
        return done.output

    public = keys.own_pairs()
    assert public == {}
    assert "flegel keys add" in flegel("new", "--role", "slave")
    made = keys.load("slave")
    assert made.public in flegel("show") and made.secret not in flegel("show")
    assert "with role slave" in flegel("add", made.public, "--role", "slave", "--name", "node7")
    assert "node7" in flegel("show")
    assert '"role": "slave"' in flegel("show", "--json")
    flegel("revoke", made.public[:10])
    assert "node7" not in flegel("show")
    for wrong in (["add", "xyz"], ["add", made.public, "--role", "king"], ["revoke", "node7"], ["new", "--role", "x"]):
        flegel(*wrong, code=2)
