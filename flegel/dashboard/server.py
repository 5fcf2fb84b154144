"""The HTTP server of a dashboard: files, a stream of frames, and actions. Starlette on uvicorn, in a thread of its own.

Every request needs a known Host and a session; see `access.py`. Everything is read with GET; actions are POST, from the
page's own origin, and need a role that may act. Frames are sent by server-sent events.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from flegel.dashboard.access import FULL_ROLE, READ_ROLE, Access
from flegel.dashboard.hub import Hub
from flegel.dashboard.page import CONTENT_POLICY, files
from flegel.errors import UNDECODABLE, FlegelError, UsageError
from flegel.runtime import clock

SECURITY_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
MAX_REQUEST_BYTES = 4096  # of an action, which takes some 100
KEEP_ALIVE_SECONDS = 10.0  # between two comments on an idle stream, by which closed pages are found
LAST_FRAMES_SECONDS = 2.0  # that pages have to read the last frames when the server ends


class ActionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What a button asks for."""

    action: str
    run: str
    workers: int | None = None


class Actions(Protocol):
    """Carries out the requests of buttons; raises `FlegelError` where one is refused."""

    def act(self, request: ActionRequest) -> str: ...


class Guard:
    """In front of everything: the Host, the session, and headers of every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse requests of foreign origin, open a session for a valid token, and pass on only what comes with a
        session."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        answer = self._refusal(request) or self._new_session(request)
        if answer is None:
            role = self._access.role(request.cookies.get(self._access.cookie, ""))
            scope["role"] = role
            answer = None if role else PlainTextResponse("Open the link with the token that was printed.", 403)
        await (answer or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, request: Request) -> Response | None:
        if not self._access.knows_host(request.headers.get("host", "")):
            return PlainTextResponse("This dashboard is not known under that name.", 400)
        return None

    def _new_session(self, request: Request) -> Response | None:
        """Exchange the token of a link for a session in a cookie; None where the request has no token."""
        token = request.query_params.get("token")
        if token is None or request.url.path != "/":
            return None
        session = self._access.open_session(token)
        if session is None:
            return PlainTextResponse("That token is not valid (any more).", 403)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(self._access.cookie, session, httponly=True, samesite="strict", path="/")
        return answer


def _with_headers(send: Send) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in SECURITY_HEADERS.items())]
        await send(message)

    return sending


def make_app(hub: Hub, actions: Actions | None, access: Access) -> ASGIApp:
    """The application; without `actions` every session may only read."""
    content = files()

    async def file(request: Request) -> Response:
        body, kind = content[request.url.path]
        return Response(body, media_type=kind)

    async def rights(request: Request) -> Response:
        return Response(msgspec.json.encode({"act": actions is not None and request.scope["role"] == FULL_ROLE}))

    async def events(request: Request) -> Response:
        return StreamingResponse(stream(hub), media_type="text/event-stream")

    async def action(request: Request) -> Response:
        """Carry out a button's request, if the session may act and the request comes from the page itself."""
        if actions is None or request.scope["role"] != FULL_ROLE:
            return PlainTextResponse("This session may only read.", 403)
        if not access.knows_origin(request.headers.get("origin", "")):
            return PlainTextResponse("Actions come from the page itself.", 403)
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_REQUEST_BYTES:
                return PlainTextResponse("Too long.", 413)
        try:
            wanted = msgspec.json.decode(body, type=ActionRequest)
            text = await asyncio.to_thread(actions.act, wanted)
        except UNDECODABLE:
            return PlainTextResponse("That is no action.", 400)
        except FlegelError as error:
            return PlainTextResponse(str(error), 409 if isinstance(error, UsageError) else 502)
        return PlainTextResponse(text)

    routes = [Route(path, file, methods=["GET"]) for path in content]
    routes += [
        Route("/events", events, methods=["GET"]),
        Route("/rights", rights, methods=["GET"]),
        Route("/action", action, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), access)


async def stream(hub: Hub) -> AsyncIterator[bytes]:
    """Frames for one page, until it or the dashboard ends."""
    loop, wake = asyncio.get_running_loop(), asyncio.Event()

    def wake_up() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(wake.set)

    page = hub.subscribe(wake_up)
    try:
        yield b"retry: 2000\n\n"
        while True:
            wake.clear()
            for frame in page.take():
                yield b"data: " + frame + b"\n\n"
            if hub.closed:
                return
            try:
                await asyncio.wait_for(wake.wait(), KEEP_ALIVE_SECONDS)
            except TimeoutError:
                yield b": alive\n\n"
    finally:
        page.close()


class DashboardServer:
    """Serves until it is closed."""

    def __init__(self, hub: Hub, actions: Actions | None, address: tuple[str, int], also: tuple[str, ...] = ()) -> None:
        """Listen and serve in a thread. Without `actions` no session may act; `also` are further names of this host."""
        self._hub, (host, port) = hub, address
        self._socket = _listen(host, port)
        self.access = Access(host, self._socket.getsockname()[1], also, may_act=actions is not None)
        config = uvicorn.Config(
            make_app(hub, actions, self.access),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            lifespan="off",
            ws="none",
            limit_concurrency=200,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="dashboard", daemon=True
        )
        self._thread.start()

    @property
    def link(self) -> str:
        """With the right to act, where there is one."""
        return self.access.link(FULL_ROLE if FULL_ROLE in self.access.tokens else READ_ROLE)

    def wait(self) -> None:
        """Until the process is interrupted."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """Let open pages take the last frames, then end the server and its thread."""
        self._hub.close()
        until = clock.now() + LAST_FRAMES_SECONDS
        while self._hub.pages and clock.now() < until:
            clock.sleep(0.02)
        self._server.should_exit = True
        self._thread.join(5.0)
        self._socket.close()


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; an error in one sentence where that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(64)
    except OSError as error:
        found.close()
        raise UsageError(f"Cannot listen at {host}:{port}: {error.strerror or error}; choose another port.") from None
    return found
