"""Who may see a dashboard and who may act: tokens in links, sessions in cookies, names of hosts. Reads no socket.

A link carries a token; it is exchanged for a session at once, so that it stands neither in the history of the browser
nor in a referrer. Tokens and sessions are random; they are compared in constant time and live as long as the process.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

FULL_ROLE, READ_ROLE = "full", "read"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MAX_SESSIONS = 1000  # the oldest is forgotten for a new one: a stranger with the link must not fill the memory


class Access:
    """`may_act`: there is a token for actions besides the one for reading."""

    def __init__(self, host: str, port: int, also: Iterable[str] = (), may_act: bool = True) -> None:
        """`also`: further names of this host in links. `may_act`: a second token may end jobs."""
        self.tokens = {READ_ROLE: secrets.token_urlsafe(24)} | (
            {FULL_ROLE: secrets.token_urlsafe(24)} if may_act else {}
        )
        self.cookie = f"flegel-{port}"
        self._sessions: dict[str, str] = {}
        shown = f"[{host}]" if ":" in host else host
        names = {shown, *also} | (set(LOOPBACK) if host in ("127.0.0.1", "::1", "localhost") else set())
        self._hosts = {f"{name.lower()}:{port}" for name in names} | {name.lower() for name in also}
        self._origin = f"http://{shown}:{port}"

    def link(self, role: str) -> str:
        return f"{self._origin}/?token={self.tokens[role]}"

    def knows_host(self, header: str) -> bool:
        """Other names of this address are refused: a page elsewhere could have made its name point here."""
        return header.lower() in self._hosts

    def knows_origin(self, header: str) -> bool:
        return header.lower().partition("://")[2] in self._hosts

    def open_session(self, token: str) -> str | None:
        """A session for a token; None for a wrong one."""
        for role, known in self.tokens.items():
            if secrets.compare_digest(token.encode(), known.encode()):
                if len(self._sessions) >= MAX_SESSIONS:
                    self._sessions.pop(next(iter(self._sessions)))
                session = secrets.token_urlsafe(24)
                self._sessions[session] = role
                return session
        return None

    def role(self, session: str) -> str | None:
        return self._sessions.get(session)
