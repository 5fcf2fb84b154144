"""The server of the dashboard: who gets in, what every answer carries, what buttons may do, pages that do not read."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest

from tests import needs

needs.library("starlette")
needs.library("uvicorn")
needs.library("httpx")

from starlette.testclient import TestClient

from flegel.dashboard.access import FULL_ROLE, READ_ROLE, Access
from flegel.dashboard.frames import RunHistory
from flegel.dashboard.hub import MAX_QUEUED_FRAMES, Hub
from flegel.dashboard.page import CONTENT_POLICY
from flegel.dashboard.server import ActionRequest, DashboardServer, make_app
from flegel.errors import UsageError
from flegel.machine.coordinator.events import TraceRow
from flegel.runtime import clock

ORIGIN = "http://127.0.0.1:8787"


class Buttons:
    def __init__(self) -> None:
        self.pressed: list[ActionRequest] = []

    def act(self, request: ActionRequest) -> str:
        if request.action != "cancel":
            raise UsageError("That action is not known here.")
        self.pressed.append(request)
        return "done"


@pytest.fixture
def buttons() -> Buttons:
    return Buttons()


@pytest.fixture
def access() -> Access:
    return Access("127.0.0.1", 8787)


@pytest.fixture
def client(access: Access, buttons: Buttons) -> Iterator[TestClient]:
    with TestClient(make_app(Hub(), buttons, access), base_url=ORIGIN, follow_redirects=False) as client:
        yield client


def login(client: TestClient, access: Access, role: str) -> None:
    answer = client.get("/", params={"token": access.tokens[role]})
    assert answer.status_code == 303 and answer.headers["location"] == "/"


@pytest.mark.parametrize("path", ["/", "/events", "/rights", "/app.js", "/nothing", "/?token=guess"])
def test_without_a_token_everything_is_forbidden(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 403


def test_a_link_becomes_a_cookie_that_scripts_cannot_read(client: TestClient, access: Access) -> None:
    answer = client.get("/", params={"token": access.tokens[READ_ROLE]})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    page = client.get("/")
    assert page.status_code == 200 and "<title>Flegel</title>" in page.text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:9999", "evil.example:8787"])
def test_another_host_is_a_bad_request(client: TestClient, access: Access, host: str) -> None:
    login(client, access, FULL_ROLE)
    assert client.get("/", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("path", ["/", "/app.js", "/favicon.svg", "/nothing"])
def test_every_answer_carries_the_policy(client: TestClient, access: Access, path: str) -> None:
    login(client, access, READ_ROLE)
    answer = client.get(path)
    assert answer.headers["content-security-policy"] == CONTENT_POLICY and CONTENT_POLICY.startswith(
        "default-src 'none'"
    )
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["cache-control"] == "no-store"


def test_actions_need_post_the_own_origin_and_the_right(client: TestClient, access: Access, buttons: Buttons) -> None:
    body = {"action": "cancel", "run": "job"}
    assert client.post("/action", json=body, headers={"origin": ORIGIN}).status_code == 403, "no session"
    login(client, access, READ_ROLE)
    assert client.get("/rights").json() == {"act": False}
    assert client.post("/action", json=body, headers={"origin": ORIGIN}).status_code == 403, "may only read"
    login(client, access, FULL_ROLE)
    assert client.get("/rights").json() == {"act": True}
    assert client.get("/action").status_code == 405
    assert client.post("/action", json=body, headers={"origin": "http://evil.example"}).status_code == 403
    assert client.post("/action", json=body).status_code == 403
    assert not buttons.pressed
    assert client.post("/action", json=body, headers={"origin": ORIGIN}).text == "done"
    assert buttons.pressed == [ActionRequest("cancel", "job")]


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"", 400), (b"[]", 400), (b'{"action":"x"}', 400), (b'{"action":"fly","run":"job"}', 409), (b"x" * 5000, 413)],
)
def test_wrong_actions_are_refused(client: TestClient, access: Access, body: bytes, code: int) -> None:
    login(client, access, FULL_ROLE)
    assert client.post("/action", content=body, headers={"origin": ORIGIN}).status_code == code


def test_a_browser_that_does_not_read_is_dropped_frames_and_publishing_never_waits() -> None:
    hub, history = Hub(), RunHistory("job", {"title": "t", "sync": "fsp"})
    hub.add(history)
    server = DashboardServer(hub, None, ("127.0.0.1", 0))
    try:
        host = server.link.partition("//")[2].partition("/")[0]
        connection = http.client.HTTPConnection(host, timeout=120)
        connection.request("GET", "/" + server.link.rpartition("/")[2])
        cookie = connection.getresponse().headers["set-cookie"].partition(";")[0]
        name, port = host.split(":")
        with socket.create_connection((name, int(port))) as dead:
            dead.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            dead.sendall(f"GET /events HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n".encode())
            until = clock.now() + 120
            while not hub.pages and clock.now() < until:
                clock.sleep(0.01)
            (page,) = hub.pages
            large = [(0, 0.1 * k, 0.1 * k + 0.05, 5, 0.04, 0.01, 0.0) for k in range(400)]
            for i in range(64 * MAX_QUEUED_FRAMES):
                if page.dropped >= MAX_QUEUED_FRAMES:
                    break  # how many frames that takes depends on how much the system keeps for a socket
                row = TraceRow(float(i), i, 1.0, 0.1, 1.0, 10, 0.0, "", large)
                hub.publish(lambda row=row: history.take_rows([row]))  # type: ignore[misc]
            assert page.dropped >= MAX_QUEUED_FRAMES
        until = clock.now() + 120
        while hub.pages and clock.now() < until:
            hub.publish(lambda: history.log([("", "still there?")]))
            clock.sleep(0.05)
        assert not hub.pages, "a page that has gone is forgotten"
    finally:
        server.close()


def test_a_taken_port_is_refused_with_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="choose another port"):
            DashboardServer(Hub(), None, ("127.0.0.1", taken.getsockname()[1]))
