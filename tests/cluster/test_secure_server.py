"""The secure server: which role may send what, what is never dispatched, conversations that survive restarts."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flegel.cluster.transport import keys, protocol
from flegel.cluster.transport.framing import is_loopback
from flegel.cluster.transport.secure_client import SecureClient, dial
from flegel.cluster.transport.secure_server import ANYBODY, Limits, SecureServer, listen
from flegel.errors import FlegelError, PeerRefused, PeerSlow, UsageError
from flegel.runtime import clock
from flegel.runtime.transport.curve import new_key_pair

CHAOS = Path(__file__).resolve().parents[2] / "bench" / "chaos"
ROLES = keys.ROLES


def chaos(name: str) -> Any:
    """One of the programs in bench/chaos, as a module."""
    spec = importlib.util.spec_from_file_location(f"chaos_{name}", CHAOS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Ask(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    n: int


class Tell(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    n: int


class Quiet(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    pass


RIGHTS = {Ask: ["submit", "read"], Quiet: ["slave"]}


class Host:
    """A server that answers every `Ask` with `Tell`, in a thread."""

    def __init__(self, folder: Path, address: str = "tcp://127.0.0.1:0", **options: Any) -> None:
        self.pair, self.registry = keys.first_start(folder), keys.KeyRegistry(folder)
        self.server = listen(address, RIGHTS, pair=self.pair, registry=self.registry, **options)
        self.got: list[tuple[str, Any, tuple[bytes, ...]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def _loop(self) -> None:
        while not self._over.is_set():
            for sender, body, frames in self.server.receive(0.05):
                self.got.append((sender.role, body, frames))
                if isinstance(body, Ask):
                    self.server.send(sender, Tell(body.n), frames)

    def client(self, name: str, **options: Any) -> SecureClient:
        return dial(self.server.address, [Tell], pair=keys.load(name, self.folder), server=self.pair.public, **options)

    @property
    def folder(self) -> Path:
        return self.registry.path.parent

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.server.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def until(condition: Callable[[], bool], client: SecureClient | None = None) -> None:
    """Keeps a client going until a condition holds; a minute guards against hangs."""
    deadline = clock.now() + 60
    while not condition():
        assert clock.now() < deadline, "waited for a minute"
        if client is None:
            clock.sleep(0.005)
        else:
            list(client.receive(0.02))


def answers(client: SecureClient, count: int) -> list[Any]:
    got: list[Any] = []
    deadline = clock.now() + 60
    while len(got) < count and clock.now() < deadline:
        got += client.receive(0.1)
    return got


def test_a_message_carries_the_role_of_its_key_and_its_frames(host: Host) -> None:
    with host.client("submit") as client:
        client.send(Ask(7), [b"abc", b"x" * 200_000])
        [(body, frames)] = answers(client, 1)
    assert body == Tell(7) and frames == (b"abc", b"x" * 200_000)
    assert host.got[0][0] == "submit"


def test_a_wrong_role_is_told_so(host: Host) -> None:
    with host.client("slave") as client:
        client.send(Ask(1))
        with pytest.raises(PeerRefused, match="role slave may not send Ask; that takes read or submit"):
            until(lambda: False, client)
    assert host.got == [] and host.server.refused["wrong role"] == 1


def test_an_unknown_key_is_told_what_to_do(host: Host) -> None:
    with (
        dial(host.server.address, [Tell], pair=new_key_pair(), server=host.pair.public) as client,
        pytest.raises(PeerRefused, match="flegel keys add"),
    ):
        client.wait_ready(30.0)


@pytest.mark.parametrize("plain", [True, False])
def test_no_key_and_another_servers_key_end_in_a_sentence(host: Host, plain: bool) -> None:
    mine = keys.load("submit", host.folder)
    options = {"insecure": True} if plain else {"pair": mine, "server": new_key_pair().public}
    with (
        dial(host.server.address, [Tell], **options) as client,  # type: ignore[arg-type]
        pytest.raises(FlegelError, match=r"another key|uses no keys"),
    ):
        client.wait_ready(0.5)
    assert host.got == []


def test_a_key_is_revoked_in_the_middle_of_its_conversation(host: Host) -> None:
    with host.client("submit") as client:
        client.send(Ask(1))
        assert len(answers(client, 1)) == 1
        keys.KeyRegistry(host.folder).revoke("local-submit")
        clock.sleep(2 * keys.KEYS_CACHE_SECONDS)
        client.send(Ask(2))
        with pytest.raises(PeerRefused, match="not known here any more"):
            until(lambda: False, client)
        (sender,) = [p.sender for p in host.server._peers.values()]
        with pytest.raises(PeerRefused, match="revoked"):
            host.server.send(sender, Tell(0))
    assert [body for _, body, _ in host.got] == [Ask(1)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_authenticator_that_died_is_replaced(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    authenticator = host.server.authenticator
    assert authenticator is not None

    def dies(question: list[bytes]) -> list[bytes]:
        raise SystemExit

    first, authenticator._answer = authenticator._thread, dies  # type: ignore[method-assign]
    with host.client("submit"):
        until(lambda: authenticator._thread is not first)
    del authenticator._answer  # type: ignore[method-assign]
    with host.client("submit") as client:
        client.send(Ask(1))
        assert len(answers(client, 1)) == 1
    assert "authenticator died" in caplog.text


@pytest.mark.parametrize("kind", ["unknown key", "plain client", "wrong server key", "revoked key"])
def test_intruders_without_a_valid_key(tmp_path: Path, kind: str) -> None:
    for found in chaos("intruder").attack(tmp_path, 30, [kind]):
        assert found["reached_the_dispatcher"] == 0, found


def test_intruders_of_all_other_kinds(tmp_path: Path) -> None:
    intruder = chaos("intruder")
    kinds = ["dead authenticator", "forged identity", "wrong role", "replay", "recording", "beyond limits", "raw bytes"]
    assert set(kinds) < set(intruder.KINDS)
    for found in intruder.attack(tmp_path, 7 * 40, kinds):
        assert found["reached_the_dispatcher"] == 0, found


@pytest.mark.parametrize("role", ROLES)
def test_every_message_of_a_master_comes_from_the_roles_in_its_table_and_no_other(tmp_path: Path, role: str) -> None:
    import random

    example, rng = chaos("decoder").example, random.Random(1)
    target = chaos("intruder").AttackedServer(tmp_path)
    try:
        with dial(target.address, [], pair=target.pairs[role], server=target.pair.public) as client:
            for kind in protocol.RIGHTS:
                client.send(example(kind, rng))
                deadline = clock.now() + 60
                while client.channel.pending and clock.now() < deadline:
                    try:
                        list(client.receive(0.05))
                    except PeerRefused as refused:
                        assert f"role {role} may not send {kind.__name__}" in str(refused)
                assert not client.channel.pending
    finally:
        target.close()
    assert target.through == [(role, kind.__name__) for kind, roles in protocol.RIGHTS.items() if role in roles]
    assert target.server.refused["wrong role"] == sum(role not in roles for roles in protocol.RIGHTS.values())


def test_a_conversation_goes_on_after_the_server_restarted(tmp_path: Path) -> None:
    first = Host(tmp_path)
    address = first.server.address
    client = first.client("submit")
    client.send(Ask(1))
    assert answers(client, 1) == [(Tell(1), ())]
    first.close()
    client.send(Ask(2))
    second = Host(tmp_path, address)
    try:
        assert answers(client, 1) == [(Tell(2), ())]
        client.send(Ask(3))
        assert answers(client, 1) == [(Tell(3), ())]
        assert [body for _, body, _ in second.got] == [Ask(2), Ask(3)]
    finally:
        client.close()
        second.close()


def test_a_peer_that_reads_nothing_fills_a_window_and_no_more(host: Host) -> None:
    with host.client("submit", window=5) as client:
        for n in range(5):
            client.send(Ask(n))
        with pytest.raises(PeerSlow, match="5 messages"):
            client.send(Ask(5))
        until(lambda: not client.channel.pending, client)
        client.send(Ask(5))
        until(lambda: len(host.got) == 6, client)
    assert [body.n for _, body, _ in host.got] == [0, 1, 2, 3, 4, 5]


def test_a_frozen_process_costs_a_window_and_gets_everything_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEGEL_HOME", str(tmp_path))
    run = chaos("slow_peer").Run(5000, 1)
    try:
        found = run.go()
    finally:
        run.close()
    assert found["sent"] == found["acknowledged"] == found["received"] == 5000
    assert found["pending"] == found["out_of_order_or_twice"] == found["broken_checks"] == 0
    assert found["to_a_frozen_peer"]["taken"] == found["most_pending"] == 1000
    assert found["growth_mb"] < 32


def test_conversations_beyond_the_most_are_forgotten_and_do_not_come_back(host: Host, monkeypatch: Any) -> None:
    """Clients here insist on their old number; real ones begin a new conversation."""

    def insist(client: SecureClient, floor: int) -> None:
        raise PeerRefused(f"dial again, above {floor}")

    monkeypatch.setattr("flegel.cluster.transport.secure_server.MAX_SESSIONS", 2)
    monkeypatch.setattr(SecureClient, "_begin_again", insist)
    clients = [host.client("submit") for _ in range(3)]
    over: set[SecureClient] = set()
    try:
        deadline = clock.now() + 60
        while not over and clock.now() < deadline:
            for n, client in enumerate(clients):
                with contextlib.suppress(PeerSlow):
                    client.send(Ask(n))
                try:
                    list(client.receive(0.05))
                except PeerRefused as refused:
                    assert "dial again" in str(refused)
                    over.add(client)
        (first, *_) = over
        said, n = len(host.got), 100
        first.send(Ask(n))
        with pytest.raises(PeerRefused, match="dial again"):
            until(lambda: False, first)
        assert Ask(n) not in [body for _, body, _ in host.got[said:]]
    finally:
        for client in clients:
            client.close()


def test_listening_without_keys_must_be_typed() -> None:
    for address in ("tcp://0.0.0.0:0", "tcp://127.0.0.1:0"):
        with pytest.raises(UsageError, match="--insecure"):
            listen(address, RIGHTS)
    with pytest.raises(UsageError, match="--insecure"):
        dial("tcp://127.0.0.1:1", [Tell])
    with (
        listen("tcp://127.0.0.1:0", RIGHTS, insecure=True) as server,
        dial(server.address, [Tell], insecure=True) as client,
    ):
        client.send(Ask(1))
        (received,) = _first(server, client)
        assert received.sender.role == ANYBODY and received.sender.key == ""


def _first(server: SecureServer, client: SecureClient) -> list[Any]:
    got: list[Any] = []
    deadline = clock.now() + 60
    while not got and clock.now() < deadline:
        got += server.receive(0.1)
    return got


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1:70", "tcp://", "tcp://x", "ipc://x", "tcp://h:99999", "tcp://h:1/x", "http://h:1", "tcp://h:x"],
)
def test_what_is_no_address_is_one_sentence(address: str) -> None:
    with pytest.raises(UsageError, match="not an address"):
        listen(address, RIGHTS, insecure=True)


def test_an_address_that_is_taken_is_one_sentence(host: Host) -> None:
    with pytest.raises(UsageError, match="Cannot listen"):
        listen(host.server.address, RIGHTS, insecure=True)


def test_loopback_is_told_from_the_rest() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.3.4.5", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))


def test_a_table_with_loose_messages_or_roles_that_do_not_exist_is_refused() -> None:
    class Loose(msgspec.Struct, tag=True):
        pass

    with pytest.raises(TypeError, match="forbid_unknown_fields"):
        listen("tcp://127.0.0.1:0", {Loose: ["read"]}, insecure=True)
    with pytest.raises(TypeError, match="do not exist"):
        listen("tcp://127.0.0.1:0", {Ask: ["king"]}, insecure=True)


@pytest.mark.parametrize("frames", [[b""] * 65, [b"x" * ((16 << 20) + 1)]])
def test_what_the_server_would_drop_is_refused_by_its_sender(host: Host, frames: list[bytes]) -> None:
    with host.client("submit") as client:
        with pytest.raises(UsageError, match="in pieces"):
            client.send(Ask(1), frames)
        client.send(Ask(2), [b"x" * (16 << 20)])
        ((body, _),) = answers(client, 1)
    assert body == Tell(2) and [b.n for _, b, _ in host.got] == [2]


def test_limits_are_the_largest_frame() -> None:
    assert Limits(header=5, frame=3).largest == 5 and Limits(header=5, frame=30).largest == 30
