"""Key files and the list of keys that may connect, each bound to one role. Opens no socket.

Everything is in one folder, `$FLEGEL_HOME/keys` or `~/.config/flegel/keys`: own pairs as NAME.key (readable by the
owner alone) and allowed/KEY.json for each key that others may use. A list is a folder of files, so adding and revoking
are single atomic steps, and a running master sees them at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path

import msgspec

from flegel.errors import UNDECODABLE, FlegelError, UsageError, nearest
from flegel.runtime import clock
from flegel.runtime.transport.curve import KeyPair, derive_public, new_key_pair, private_bytes, raw

ROLES = ("submit", "slave", "read")
"""What a key may be added for; `master` beside them names masters that this host trusts."""
MASTER, JOB = "master", "job"
RESERVED_KEY_NAMES = ("local-submit", "local-slave", "this-host")
"""Names that a master's first start gives to the keys of its own user."""
KEYS_CACHE_SECONDS = 0.1
"""For which the list of keys is not read again: every message asks for a key."""
_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_ENTRY_BYTES = 4096
"""Of the file of one key that are read; an entry takes some 200."""


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key that may connect (or, for role `master`, a master that is trusted)."""

    key: str
    role: str
    name: str = ""
    address: str = ""
    """For role `master`: where it listens; empty for any address."""
    admin: bool = False
    """It may change everybody's jobs: the key of the user who runs the master."""


def folder() -> Path:
    """Where this user's keys are."""
    home = os.environ.get("FLEGEL_HOME")
    return (Path(home) if home else Path.home() / ".config" / "flegel") / "keys"


def check_name(name: str) -> str:
    """A name that cannot leave its folder."""
    if not _KEY_NAME.fullmatch(name):
        raise UsageError(f"{name[:80]!r} cannot name a key; use letters, digits, dots, dashes and underscores.")
    return name


# -- own pairs ---------------------------------------------------------------------------------------------


def create(name: str, where: Path | None = None) -> KeyPair:
    """A new pair under that name; one that exists is never overwritten."""
    path = _own(name, where)
    pair = new_key_pair()
    _make_folder(path.parent)
    try:
        _write_new(path, msgspec.json.encode(pair) + b"\n")
    except FileExistsError:
        raise UsageError(f"There is a key {path} already; choose another name or remove it first.") from None
    return pair


def load(name: str, where: Path | None = None) -> KeyPair:
    """One's own pair; refused if others can read it."""
    return load_file(_own(name, where))


def load_file(path: Path) -> KeyPair:
    """A pair from a file that only its owner can read."""
    content = private_bytes(path)
    try:
        pair = msgspec.json.decode(content, type=KeyPair)
        raw(pair.public), raw(pair.secret)
        if derive_public(pair.secret) != pair.public:
            raise UsageError("its halves do not belong together")
    except (*UNDECODABLE, UsageError) as error:
        raise UsageError(f"The key {path} is damaged ({error}); make a new one with `flegel keys new`.") from None
    return pair


def ensure(name: str, where: Path | None = None) -> KeyPair:
    """One's own pair, created if it is missing."""
    if _own(name, where).exists():
        return load(name, where)
    try:
        return create(name, where)
    except UsageError:
        return load(name, where)  # another process was faster


def write_file(path: Path, pair: KeyPair) -> None:
    """A pair for a process that is started next; the file must not exist."""
    _write_new(path, msgspec.json.encode(pair) + b"\n")


def own_pairs(where: Path | None = None) -> dict[str, str]:
    """Names of the pairs here, and their public halves; damaged or exposed ones show as empty."""
    found = {}
    for path in sorted((where or folder()).glob("*.key")):
        try:
            found[path.stem] = load_file(path).public
        except FlegelError:
            found[path.stem] = ""
    return found


def _own(name: str, where: Path | None) -> Path:
    return (where or folder()) / f"{check_name(name)}.key"


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise FlegelError(f"No folder for keys can be made at {path}: {error.strerror}.") from None


def _write_new(path: Path, content: bytes) -> None:
    """Whole or not at all, mode 0600 from the start, never replacing an existing file."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(scratch, path)
    finally:
        scratch.unlink()


# -- keys of others ----------------------------------------------------------------------------------------


class KeyRegistry:
    """Which keys may connect, and in which role. Thread-safe; changes on disk count within `KEYS_CACHE_SECONDS`.

    `extra` are keys known to this process only, such as those of a job's own workers.
    """

    def __init__(self, where: Path | None = None, extra: dict[str, KeyEntry] | None = None) -> None:
        self.path = (where or folder()) / "allowed"
        self.extra = extra or {}
        self._lock = threading.Lock()
        self._seen_files: dict[str, tuple[int, int]] = {}
        """Files that were read, as they were then."""
        self._entries: dict[str, KeyEntry] = {}
        self._read_at = float("-inf")

    def find(self, key: str) -> KeyEntry | None:
        """What this key is registered as, if it may connect."""
        if key in self.extra:
            return self.extra[key]
        entry = self._current().get(key)
        return entry if entry is not None and entry.role in ROLES else None

    def admit(self, key: str) -> bool:
        return self.find(key) is not None

    def entries(self) -> list[KeyEntry]:
        self._read_at = float("-inf")
        return sorted(self._current().values(), key=lambda e: (e.role, e.name, e.key))

    def master(self, address: str) -> str:
        """The key of the master that listens there, as this host was told."""
        fitting = self.masters(address)
        if len(fitting) != 1:
            raise UsageError(
                f"The key of the master at {address} is {'ambiguous' if fitting else 'not known'} here; ask its owner "
                f"for `flegel keys show`, then run `flegel keys add KEY --role master --address {address}`."
            )
        return fitting[0].key

    def masters(self, address: str) -> list[KeyEntry]:
        """Keys that the master at this address may have: those added for the address, otherwise those for any."""
        known = [e for e in self.entries() if e.role == MASTER]
        return [e for e in known if e.address == address] or [e for e in known if not e.address]

    def add(self, key: str, role: str, name: str = "", address: str = "") -> KeyEntry:
        """Let this key connect from now on; a key has one role, so a second one replaces the first."""
        raw(key)
        if role not in (*ROLES, MASTER):
            raise UsageError(f"There is no role {role!r}{nearest(role, [*ROLES, MASTER])}")
        if name:
            self._check_new_name(name, key.lower())
        if address and role != MASTER:
            raise UsageError("Only a master has an --address; other keys are known by the key alone.")
        return self.write(KeyEntry(key.lower(), role, name, address))

    def _check_new_name(self, name: str, key: str) -> None:
        """People tell keys apart by name: no two keys have the same, and none has one that means this host's own."""
        check_name(name)
        if name in RESERVED_KEY_NAMES:
            raise UsageError(f"The name {name} is reserved for keys that a master makes itself; choose another --name.")
        for other in self.entries():
            if name in (other.name, other.key[:8]) and other.key != key:
                raise UsageError(
                    f"{name} is the name of the key {other.key[:8]}… already; choose another --name, or revoke it."
                )

    def write(self, entry: KeyEntry) -> KeyEntry:
        """Store an entry as it is."""
        _make_folder(self.path)
        scratch = self.path / f".{entry.key}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            scratch.unlink()
        _write_new(scratch, msgspec.json.encode(entry) + b"\n")
        scratch.replace(self.path / f"{entry.key}.json")
        self._read_at = float("-inf")
        return entry

    def revoke(self, which: str) -> KeyEntry:
        """Messages of this key are refused from now on; `which` is the key, its first digits, or its name."""
        if not which:
            raise UsageError("Name the key to revoke: the key, its first 8 or more digits, or its name.")
        found = [e for e in self.entries() if which in (e.key, e.name) or (len(which) >= 8 and e.key.startswith(which))]
        if len(found) != 1:
            count = "no key" if not found else f"{len(found)} keys"
            raise UsageError(f"{which[:80]!r} fits {count}; `flegel keys show` lists them.")
        (self.path / f"{found[0].key}.json").unlink(missing_ok=True)
        self._read_at = float("-inf")
        return found[0]

    def _current(self) -> dict[str, KeyEntry]:
        with self._lock:
            now = clock.now()
            if now - self._read_at >= KEYS_CACHE_SECONDS:
                self._read()
                self._read_at = now
            return self._entries

    def _read(self) -> None:
        """Read what has changed. Where the folder cannot be listed, files count that were read before and are as they
        were then: strangers may hold all descriptors of this process, and must not lock out who is known."""
        try:
            with os.scandir(self.path) as files:
                listed = [f for f in files if f.name.endswith(".json") and f.is_file(follow_symlinks=False)]
                found = {f.name: _state_of(f.stat()) for f in sorted(listed, key=lambda f: f.name)}
        except OSError:
            found = {name: state for name, state in self._seen_files.items() if self._is_as_read(name, state)}
        if found == self._seen_files:
            return
        seen, entries = {}, {}
        for name, state in found.items():
            key = name.removesuffix(".json")
            try:
                if self._seen_files.get(name) != state:
                    entry = msgspec.json.decode((self.path / name).read_bytes()[:_MAX_ENTRY_BYTES], type=KeyEntry)
                    if entry.key == key:
                        entries[key] = entry
                elif key in self._entries:
                    entries[key] = self._entries[key]
            except OSError:
                continue  # it is read the next time
            except UNDECODABLE:
                pass
            seen[name] = state
        self._seen_files, self._entries = seen, entries

    def _is_as_read(self, name: str, state: tuple[int, int]) -> bool:
        """Asks without a descriptor."""
        try:
            return _state_of((self.path / name).lstat()) == state
        except OSError:
            return False


def _state_of(file: os.stat_result) -> tuple[int, int]:
    """What changes where a file is replaced or written to."""
    return file.st_mtime_ns, file.st_ino


def first_start(where: Path | None = None) -> KeyPair:
    """The master's own pair. With it, once, pairs for a slave and a submitter of the same user on the same host.

    A first start that was ended in the middle is completed by the next one. The master's entry is written last: who
    waits for it (`flegel.cluster.client.await_key_of_master`) finds the other keys as well.
    """
    unfinished = _own(MASTER, where).with_name("first-start")
    if not _own(MASTER, where).exists():
        _make_folder(unfinished.parent)
        unfinished.touch(mode=0o600)
    pair = ensure(MASTER, where)
    registry = KeyRegistry(where)
    if unfinished.exists():
        registry.write(KeyEntry(ensure("slave", where).public, "slave", "local-slave"))
        registry.write(KeyEntry(ensure("submit", where).public, "submit", "local-submit", admin=True))
        registry.write(KeyEntry(pair.public, MASTER, "this-host"))
        unfinished.unlink(missing_ok=True)
    elif _own("submit", where).exists():  # a folder of an earlier version, which knew the administrator by name
        entry = registry.find(load("submit", where).public)
        if entry is not None and entry.name == "local-submit" and not entry.admin:
            registry.write(msgspec.structs.replace(entry, admin=True))
    return pair
