"""A process of a job in namespaces of its own: which folders it sees, which it can change, whom it can signal. Linux.

The process itself, still with one thread, enters a user and a mount namespace, arranges its mounts and gives up the
rights to change them. Needs no privileges where the host allows user namespaces. Starts nothing, decides nothing about
jobs; `why_impossible` says in advance why a host does not allow it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from flegel.errors import FlegelError, in_words
from flegel.runtime import clock
from flegel.runtime.system.parent_death import die_with_parent

CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWIPC = 0x10000000, 0x00020000, 0x08000000  # linux/sched.h
MS_BIND, MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV = 0x1000, 0x4000, 0x40000, 0x2, 0x4  # linux/mount.h
MOUNT_SETATTR, LANDLOCK_CREATE, LANDLOCK_RESTRICT = 442, 444, 446  # the same on every architecture
MOUNT_ATTR_RDONLY, AT_FDCWD, AT_RECURSIVE = 1, -100, 0x8000  # linux/mount.h, linux/fcntl.h
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS, SCOPE_SINCE = 1, 2, 6  # linux/landlock.h, and the version that has them
PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 24, 38  # linux/prctl.h
CAPABILITY_VERSION = 0x20080522  # linux/capability.h, the third
MAX_PRIVATE_COPY_BYTES = 256 << 20
"""Largest size of what a job changes in folders that it has a private copy of."""
JOIN_TIMEOUT_SECONDS = 60.0
"""Seconds for a process of the same job to arrange its namespace, which this one joins."""
PROBE_TIMEOUT_SECONDS = 60.0  # for a trial in a process of its own


class Confinement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a process may see and change. Folders that do not exist are skipped."""

    hidden: tuple[str, ...] = ()
    """Empty for it."""
    visible: tuple[str, ...] = ()
    """Below hidden ones: there all the same, and writable."""
    private: tuple[str, ...] = ()
    """Its changes there are seen by its own job alone, and vanish with it."""
    fixed: tuple[str, ...] = ()
    """Read-only."""
    join: int | None = None
    """A process of the same job, whose namespace this one joins."""
    strict: bool = False
    """Everything but `visible`, `private` and `writable` is read-only, and no process outside can be signalled."""
    writable: tuple[str, ...] = ()


def confine(plan: Confinement) -> None:
    """Confine this process from now on. Raises `FlegelError` with a sentence where that failed."""
    try:
        if plan.join is None or not _join(plan.join):
            _enter()
            _arrange(plan)
        if plan.strict:
            _limit_signals()
        _give_up_rights()
    except OSError as error:
        raise FlegelError(f"A process could not be isolated: {in_words(error)}.") from None
    parent = os.getppid()
    die_with_parent()  # a change of rights may have cleared it
    if os.getppid() != parent:
        os._exit(1)


# -- namespaces --------------------------------------------------------------------------------------------


def _enter() -> None:
    user, group = os.geteuid(), os.getegid()
    _check(_libc().unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _join(pid: int) -> bool:
    """Whether the namespaces of this process were joined; not where it has ended."""
    own, until = _user_namespace("self"), clock.now() + JOIN_TIMEOUT_SECONDS
    while clock.now() < until:
        try:
            if _is_confined(pid, own):
                break
        except OSError:
            return False
        clock.sleep(0.01)
    else:
        return False
    spaces: list[int] = []
    try:
        spaces = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("user", "ipc", "mnt")]
    except OSError:
        for space in spaces:
            os.close(space)
        return False
    for space in spaces:
        _check(_libc().setns(space, 0), "setns")
        os.close(space)
    return True


def _user_namespace(pid: str) -> int:
    return Path(f"/proc/{pid}/ns/user").stat().st_ino


def _is_confined(pid: int, own: int) -> bool:
    """Whether a process is in another user namespace than this one and done with its mounts: it has given up its
    rights."""
    if _user_namespace(str(pid)) == own:
        return False
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(line.split() == ["NoNewPrivs:", "1"] for line in lines)


# -- mounts ------------------------------------------------------------------------------------------------


def _arrange(plan: Confinement) -> None:
    """Mount the file system as the plan says, inside the new mount namespace: fixed folders read-only, private ones as
    copies in memory, hidden ones empty, visible ones as they are."""
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    kept = [(name, os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) for name in _folders(plan.visible)]
    for name in _folders(plan.fixed):
        _mount(name, name, "", MS_BIND | MS_REC)
        _read_only(name, on=True)
    with tempfile.TemporaryDirectory() as base:
        _mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, f"size={MAX_PRIVATE_COPY_BYTES},mode=700")
        for number, name in enumerate(_folders(plan.private)):
            _copy_on_write(name, Path(base) / str(number))
        _check(_libc().umount2(base.encode(), 2), f"umount {base}")  # lives on below the copies
    if plan.strict:
        _read_only("/", on=True)
        for name in (*_folders(plan.private), "/dev", "/dev/shm", "/proc"):
            with contextlib.suppress(OSError):
                _read_only(name, on=False, recursive=False)
        for name in _folders((*plan.writable, "/tmp")):
            _mount(name, name, "", MS_BIND | MS_REC)
            _read_only(name, on=False)
    for name in sorted(plan.hidden):  # outer ones first; what they contain is gone then
        if Path(name).is_dir():
            _mount("tmpfs", name, "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=700")
    for name, place in kept:
        Path(name).mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{place}", name, "", MS_BIND | MS_REC)
        _read_only(name, on=False)
        os.close(place)


def _folders(names: tuple[str, ...]) -> list[str]:
    return [name for name in dict.fromkeys(names) if Path(name).is_dir()]


def _copy_on_write(name: str, base: Path) -> None:
    """Changes go to `base`; where the kernel cannot do that, the folder is read-only."""
    for part in ("upper", "work"):
        (base / part).mkdir(parents=True)
    try:
        if any(letter in name for letter in ",:\\"):
            raise OSError("this name cannot be an option of a mount")
        options = f"lowerdir={name},upperdir={base}/upper,workdir={base}/work,userxattr"
        _mount("overlay", name, "overlay", MS_NODEV, options)
    except OSError:
        _mount(name, name, "", MS_BIND | MS_REC)
        _read_only(name, on=True)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    given = [os.fsencode(each) if each else None for each in (source, target, kind, options)]
    code = _libc().mount(given[0], given[1], given[2], ctypes.c_ulong(flags), given[3])
    _check(code, f"mount {kind or 'bind'} {target}")


def _read_only(name: str, on: bool, recursive: bool = True) -> None:
    attributes = struct.pack("QQQQ", MOUNT_ATTR_RDONLY * on, MOUNT_ATTR_RDONLY * (not on), 0, 0)
    flags = AT_RECURSIVE if recursive else 0
    code = _libc().syscall(MOUNT_SETATTR, AT_FDCWD, os.fsencode(name), flags, attributes, len(attributes))
    _check(code, f"mount_setattr {name}")


# -- rights ------------------------------------------------------------------------------------------------


def _give_up_rights() -> None:
    """Give up the rights that came with the namespace: otherwise its mounts could be taken away again."""
    for capability in range(64):
        _libc().prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header, none = struct.pack("Ii", CAPABILITY_VERSION, 0), bytes(24)
    _check(_libc().capset(header, none), "capset")
    _check(_libc().prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")
    _check(_libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def _limit_signals() -> None:
    """Limit signals and abstract sockets to this process and its descendants, by Landlock."""
    if _libc().syscall(LANDLOCK_CREATE, None, 0, 1) < SCOPE_SINCE:
        raise OSError("this kernel cannot limit signals (Linux 6.12 can)")
    rules = struct.pack("QQQ", 0, 0, SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS)
    rights = _libc().syscall(LANDLOCK_CREATE, rules, len(rules), 0)
    _check(rights, "landlock_create_ruleset")
    _check(_libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    _check(_libc().syscall(LANDLOCK_RESTRICT, rights, 0), "landlock_restrict_self")
    os.close(rights)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(code: int, what: str) -> None:
    if code < 0:
        raise OSError(f"{what}: {os.strerror(ctypes.get_errno())}")


# -- whether it is possible --------------------------------------------------------------------------------


def why_impossible(strict: bool = False) -> str:
    """Why this host does not allow it, in a sentence; empty where it does. Tries it in a process of its own."""
    if sys.platform != "linux":
        return "Namespaces exist on Linux alone."
    command = [sys.executable, "-P", "-m", "flegel.runtime.system.confinement", *(["strict"] if strict else [])]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Namespaces could not be tried: {in_words(error)}."
    lines = [*found.stdout.splitlines(), *found.stderr.splitlines()]
    return "" if found.returncode == 0 else (lines or ["The trial died without a word."])[-1]


def _probe() -> None:
    """What a job's process does, with folders of its own."""
    with tempfile.TemporaryDirectory() as name:
        secret, own, copied = (Path(name) / part for part in ("secret", "secret/own", "copied"))
        own.mkdir(parents=True)
        copied.mkdir()
        (secret / "key").write_text("x")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                confine(Confinement((str(secret),), (str(own),), (str(copied),), strict="strict" in sys.argv))
                (own / "result").write_text("x")
                code = 2 if (secret / "key").exists() else 0
            except FlegelError as error:
                print(error, flush=True)
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 2:
        print("Folders could not be hidden.")
    sys.exit(code)


if __name__ == "__main__":
    _probe()
