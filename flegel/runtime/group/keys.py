"""Keys of groups: what they write is signed (Ed25519), and encrypted where the key file says so (AES-256-GCM).

A signature covers the name of the object and its content, so nothing can be changed, forged or moved to another name.
Status and contributions of a group are accepted from that group alone; results and the package from any of the job's
groups. It does not hide that an object exists, its name, its size or when it was written, and it does not stop a group
that has a key from sending wrong statistics. Without a key file objects carry a checksum of name and content, so that
damage is noticed, and the bucket's own access control is all the protection.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from flegel.errors import UNDECODABLE, StorageError, UsageError, in_words
from flegel.group_options import GroupSpec
from flegel.machine.group.records import NAME
from flegel.wording import option

SEALED_MARK, AUTHENTICATED_MARK = b"FLGS", b"FLGC"
OWNER = re.compile(r"(members|starts|ends)/(?P<member>[^/]+)|rounds/\d+/(?P<sender>[^/]+)\.[0-9a-f]+")
MAX_ADDED_BYTES = 1024  # that signing adds to an object, at most


class RefusedObject(Exception):
    """An object that is damaged, or not signed by who should have written it. `tag`: of what is there, if known."""

    def __init__(self, why: str, tag: str = "") -> None:
        super().__init__(why)
        self.tag = tag


class KeyMissing(RefusedObject):
    """The object is signed, and this group was started without a key."""


class _Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    signer: str
    signature: bytes
    nonce: bytes = b""


class PlainObjects:
    """No keys: a checksum over name and content, so that what was cut off, altered or put elsewhere is noticed."""

    code: frozenset[str] = frozenset()
    """Nobody's code is trusted where nobody signs."""

    def signer(self, content: bytes) -> str:
        return ""

    def seal(self, key: str, content: bytes) -> bytes:
        return b"".join([AUTHENTICATED_MARK, _checksum(key, content), content])

    def open(self, key: str, content: bytes) -> bytes:
        """The content of an object of a group without a key: only its checksum, which covers its name, is verified."""
        if content[:4] == SEALED_MARK:
            raise KeyMissing(f"it is signed, and this group has no key; give {option('group_key')}")
        if content[:4] != AUTHENTICATED_MARK:
            raise RefusedObject("it is no object of a group")
        if content[4:36] != _checksum(key, content[36:]):
            raise RefusedObject("it is damaged, or was written under another name")
        return content[36:]


@dataclass(frozen=True)
class SignedObjects:
    """One group's secret key, the public keys of all, and the key of encryption, if any."""

    group: str
    secret: Any
    public: dict[str, Any]
    cipher: Any = None
    code: frozenset[str] = frozenset()
    """Groups whose code may run here, where they have signed the package."""

    def signer(self, content: bytes) -> str:
        """Who signed an object that `open` has accepted."""
        size = int.from_bytes(content[4:8], "little")
        return msgspec.msgpack.decode(content[8 : 8 + size], type=_Frame).signer

    def seal(self, key: str, content: bytes) -> bytes:
        """The object as it is stored: signed by this group together with its name, and encrypted where there is a
        common secret."""
        nonce = b""
        if self.cipher is not None:
            nonce = os.urandom(12)  # bytes, as AES-GCM wants
            content = self.cipher.encrypt(nonce, content, key.encode())
        signature = self.secret.sign(_signed(key, nonce, content))
        frame = msgspec.msgpack.encode(_Frame(self.group, signature, nonce))
        return b"".join([SEALED_MARK, len(frame).to_bytes(4, "little"), frame, content])

    def open(self, key: str, content: bytes) -> bytes:
        """The content of a signed object, after its signer is known to be the owner of that key."""
        size = int.from_bytes(content[4:8], "little")
        if content[:4] != SEALED_MARK or size > MAX_ADDED_BYTES:
            raise RefusedObject("it is not signed")
        try:
            frame = msgspec.msgpack.decode(content[8 : 8 + size], type=_Frame)
        except UNDECODABLE as error:
            raise RefusedObject(f"its signature cannot be read ({error})") from None
        found = OWNER.fullmatch(key)
        owner = (found["member"] or found["sender"]) if found else frame.signer
        if frame.signer not in self.public:
            raise RefusedObject(f"it is signed by {frame.signer[:64]!r}, which is no group of this job")
        if owner != frame.signer:
            raise RefusedObject(f"it is signed by {frame.signer} and should be by {owner}")
        return self._checked(key, frame, content[8 + size :])

    def _checked(self, key: str, frame: _Frame, body: bytes) -> bytes:
        """Verify the signature over key, nonce and body, then decrypt where the job encrypts."""
        from cryptography.exceptions import InvalidSignature, InvalidTag

        try:
            self.public[frame.signer].verify(frame.signature, _signed(key, frame.nonce, body))
        except InvalidSignature:
            raise RefusedObject(f"its content is not what {frame.signer} signed") from None
        if bool(frame.nonce) != (self.cipher is not None):
            raise RefusedObject("encryption is on in one group and off in another")
        if self.cipher is None:
            return body
        try:
            return bytes(self.cipher.decrypt(frame.nonce, body, key.encode()))
        except (InvalidTag, ValueError):  # ValueError: a nonce of another length
            raise RefusedObject("it is encrypted with another key") from None


def _checksum(key: str, content: bytes) -> bytes:
    return hashlib.sha256(b"\0".join([b"flegel group object 1", key.encode(), content])).digest()


def _signed(key: str, nonce: bytes, content: bytes) -> bytes:
    return b"\0".join([b"flegel group object 1", key.encode(), nonce.hex().encode(), content])


Seal = PlainObjects | SignedObjects


class _KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    group: str
    secret: str
    groups: dict[str, str]
    encryption: str = ""
    code: tuple[str, ...] = ()


def read_key_file(path: str, group: str) -> Seal:
    """The key file of a group, or of any where that does not matter; no file: plain objects."""
    if not path:
        return PlainObjects()
    ed25519, aead = _library()
    try:
        kept = msgspec.json.decode(Path(path).expanduser().read_bytes(), type=_KeyFile)
        if group and kept.group != group:
            raise UsageError(f"{option('group_key', path)} is the key of {kept.group}, not of {group}.")
        secret = ed25519.Ed25519PrivateKey.from_private_bytes(_bytes(kept.secret))
        public = {name: ed25519.Ed25519PublicKey.from_public_bytes(_bytes(text)) for name, text in kept.groups.items()}
        cipher = aead.AESGCM(_bytes(kept.encryption)) if kept.encryption else None
        return SignedObjects(kept.group, secret, public, cipher, frozenset(kept.code))
    except OSError as error:
        raise UsageError(f"{option('group_key', path)} cannot be read ({error.strerror or error}).") from None
    except (*UNDECODABLE, ValueError) as error:
        raise UsageError(
            f"{option('group_key', path)} is no key file of a group ({error}); see `flegel keys groups`."
        ) from None


def check_keys(sites: GroupSpec) -> None:
    """Refuse a key that is not this group's, and an open port without one; before any data are read."""
    read_key_file(sites.group_key, sites.group)
    if sites.group_listen and not sites.group_key:
        raise UsageError(
            f"{option('group_listen')} needs {option('group_key')}: without keys anybody could send wrong messages."
        )


def make_key_files(folder: Path, groups: list[str], encrypt: bool, code: Sequence[str] = ()) -> list[Path]:
    """One file for each group, with its secret key and everybody's public keys. Groups that have a file keep their
    keys, so that others can be added. `code`: groups whose code the others run, beside those of before."""
    ed25519, aead = _library()
    folder.mkdir(parents=True, exist_ok=True)
    for name in groups:
        if not NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name of a group; use letters, digits, - and _.")
    try:
        files = sorted(folder.glob("*.json"))
        kept = {path.stem: msgspec.json.decode(path.read_bytes(), type=_KeyFile) for path in files}
        secrets = {name: _bytes(file.secret) for name, file in kept.items()}
    except (*UNDECODABLE, ValueError, OSError) as error:
        raise UsageError(
            f"{folder} holds files that are no keys of groups ({in_words(error)}); choose another folder."
        ) from None
    for name in groups:
        if name not in secrets:
            secrets[name] = ed25519.Ed25519PrivateKey.generate().private_bytes_raw()
    shared = next((file.encryption for file in kept.values() if file.encryption), "")
    shared = shared or (_text(aead.AESGCM.generate_key(256)) if encrypt else "")
    if strangers := [name for name in code if name not in secrets]:
        raise UsageError(f"--code {strangers[0]} is none of the groups {', '.join(sorted(secrets))}.")
    trusted = tuple(sorted({*code, *(name for file in kept.values() for name in file.code)}))
    public = {
        name: _text(ed25519.Ed25519PrivateKey.from_private_bytes(raw).public_key().public_bytes_raw())
        for name, raw in sorted(secrets.items())
    }
    written = []
    for name, raw in sorted(secrets.items()):
        path = folder / f"{name}.json"
        text = json.dumps(msgspec.to_builtins(_KeyFile(name, _text(raw), public, shared, trusted)), indent=1)
        _write_private(path, text)
        written.append(path)
    return written


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read; it appears complete or not at all."""
    scratch = path.with_suffix(".part")
    try:
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(text + "\n")
        scratch.replace(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror or error}).") from None


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
        from cryptography.hazmat.primitives.ciphers import aead
    except ImportError:
        raise UsageError("Keys of groups need cryptography: pip install 'flegel[sites]'.") from None
    return ed25519, aead


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
