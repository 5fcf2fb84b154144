"""Downloads from a server that is slow, cuts connections, lies about lengths and sends wrong bytes."""

from __future__ import annotations

import hashlib
import http.server
import io
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flegel.datasets import open_data
from flegel.datasets.catalog.entry import CatalogEntry, RemoteFile
from flegel.datasets.catalog.fetch import FetchError, fetch, fetch_entry, unpack
from flegel.errors import DataError, UsageError

BODY = bytes(range(256)) * 4000
GOOD = f"sha256:{hashlib.sha256(BODY).hexdigest()}"


class Server:
    """Serves BODY in a way that the test chooses, and remembers what was asked for."""

    def __init__(self) -> None:
        self.ranges: list[str | None] = []
        self.answer: Callable[[http.server.BaseHTTPRequestHandler, int], None] = plain
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                given = self.headers.get("Range")
                outer.ranges.append(given)
                outer.answer(self, int(given[6:-1]) if given else 0)

            def log_message(self, *_: object) -> None:
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """The client hangs up on lies; that is what is tested."""

        self.http = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/data.bin"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def send(
    handler: http.server.BaseHTTPRequestHandler,
    start: int,
    body: bytes,
    *,
    length: int | None = None,
    total: int = 0,
) -> None:
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{total or len(BODY)}")
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


def plain(handler: http.server.BaseHTTPRequestHandler, start: int) -> None:
    if start >= len(BODY):
        handler.send_response(416)
        handler.send_header("Content-Range", f"bytes */{len(BODY)}")
        handler.end_headers()
        return
    send(handler, start, BODY[start:])


def cuts(handler: http.server.BaseHTTPRequestHandler, start: int) -> None:
    send(handler, start, BODY[start : start + 300_000], length=len(BODY) - start)


def trickles(handler: http.server.BaseHTTPRequestHandler, start: int) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(BODY)))
    handler.end_headers()
    for lo in range(0, len(BODY), 50_000):
        handler.wfile.write(BODY[lo : lo + 50_000])
        handler.wfile.flush()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def get(server: Server, folder: Path, checksum: str | None = GOOD, **options: object) -> Path:
    return fetch(RemoteFile(server.url, "data.bin", checksum), folder, pause=lambda _: None, **options)  # type: ignore[arg-type]


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if not p.name.endswith(".lock"))


def test_a_plain_download_with_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = get(server, tmp_path, progress=lambda *what: seen.append(what))
    assert path.read_bytes() == BODY
    assert seen[-1] == ("data.bin", len(BODY), len(BODY))
    assert [size for _, size, _ in seen] == sorted(size for _, size, _ in seen)
    assert left(tmp_path) == ["data.bin"]
    get(server, tmp_path)
    assert len(server.ranges) == 1


def test_a_slow_server(server: Server, tmp_path: Path) -> None:
    server.answer = trickles
    assert get(server, tmp_path).read_bytes() == BODY


def test_a_server_that_cuts_the_connection_is_asked_for_the_rest(server: Server, tmp_path: Path) -> None:
    server.answer = cuts
    assert get(server, tmp_path).read_bytes() == BODY
    assert server.ranges == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]


def test_what_arrived_is_kept_for_the_next_fetch(server: Server, tmp_path: Path) -> None:
    server.answer = cuts
    with pytest.raises(FetchError, match="600,000 bytes are kept") as caught:
        get(server, tmp_path, tries=2)
    assert caught.value.exit_code == 1
    assert left(tmp_path) == ["data.bin.part"]
    server.answer = plain
    assert get(server, tmp_path).read_bytes() == BODY
    assert server.ranges[-1] == "bytes=600000-"


def test_a_server_that_cannot_resume_starts_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(b"x" * 1000)
    server.answer = lambda handler, _: send(handler, 0, BODY)
    assert get(server, tmp_path).read_bytes() == BODY


def test_a_server_that_resumes_elsewhere_is_not_believed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(BODY[:1000])

    def elsewhere(handler: http.server.BaseHTTPRequestHandler, start: int) -> None:
        send(handler, start + 7, BODY[start + 7 :])

    server.answer = elsewhere
    with pytest.raises(FetchError, match="instead of 1000"):
        get(server, tmp_path, tries=2)


def test_a_length_that_is_too_long_or_too_short_is_found_out(server: Server, tmp_path: Path) -> None:
    server.answer = lambda handler, start: send(
        handler, start, BODY[start:], length=len(BODY) - start + 10, total=10**7
    )
    with pytest.raises(FetchError, match="could not be fetched"):
        get(server, tmp_path, tries=2)
    (tmp_path / "data.bin.part").unlink()
    server.answer = lambda handler, start: send(handler, start, BODY[start:], length=1000)
    with pytest.raises(FetchError, match="other bytes than expected"):
        get(server, tmp_path, tries=1)
    assert left(tmp_path) == []


def test_wrong_bytes_are_thrown_away(server: Server, tmp_path: Path) -> None:
    server.answer = lambda handler, start: send(handler, start, BODY[:-1] + b"!")
    with pytest.raises(FetchError, match="other bytes than expected"):
        get(server, tmp_path)
    assert left(tmp_path) == []


def test_a_part_that_is_too_long_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(BODY + b"more")
    assert get(server, tmp_path).read_bytes() == BODY


def test_a_complete_part_needs_no_download(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(BODY)
    assert get(server, tmp_path).read_bytes() == BODY


def test_a_missing_file_and_a_dead_server_are_named(server: Server, tmp_path: Path) -> None:
    server.answer = lambda handler, _: handler.send_error(404)
    with pytest.raises(FetchError, match="404"):
        get(server, tmp_path)
    assert len(server.ranges) == 1
    with pytest.raises(FetchError, match="in 2 tries"):
        fetch(RemoteFile("http://127.0.0.1:9/x", "x"), tmp_path, tries=2, pause=lambda _: None)


@pytest.mark.parametrize("name", ["../x", "a/b", "", "..", "a\\b"])
def test_a_name_that_points_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no file name"):
        fetch(RemoteFile("http://127.0.0.1:9/x", name), tmp_path)


def test_an_encrypted_zip_is_not_to_be_fetched_again(tmp_path: Path) -> None:
    path = tmp_path / "secret.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rows.csv", "1,2\n")
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag of encryption, in the directory
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"\(rows.csv is encrypted\); unpack it with another program"):
        unpack(path, tmp_path)


def test_a_zip_member_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("good.csv", "1,2\n")
        archive.writestr("../evil.csv", "1,2\n")
    with pytest.raises(DataError, match="points out of its folder"):
        unpack(tmp_path / "bad.zip", folder)
    assert not list(folder.iterdir())
    assert not (tmp_path / "evil.csv").exists()


def test_fetching_a_registered_set_unpacks_it_and_makes_it_real(
    server: Server, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("ml/ratings.csv", "userId,movieId,rating,timestamp\n1,1,4,0\n2,2,5,0\n")
    server.answer = lambda handler, _: send(handler, 0, packed.getvalue())

    class Tiny(CatalogEntry):
        name, title, home, licence = "ml25m", "t", "h", "l"
        rows, columns = 2, 2
        remotes = (RemoteFile(server.url, "ml.zip"),)
        files = ("**/ratings.csv",)

    assert fetch_entry(Tiny) == cache_folder / "ml25m"
    data = open_data("ml25m")
    assert (data.rows, data.columns, data.stand_in) == (2, 2, False)


def test_a_generated_set_has_nothing_to_fetch() -> None:
    from flegel.datasets.catalog.registry import entry

    with pytest.raises(UsageError, match="generated"):
        fetch_entry(entry("blobs"))


def test_an_address_is_data(server: Server) -> None:
    server.url = server.url.replace("data.bin", "table.csv")
    server.answer = lambda handler, _: send(handler, 0, b"a,b\n1,2\n3,4\n")
    data = open_data(server.url)
    assert data.load()[0].tolist() == [[1, 2], [3, 4]]
    assert data.shard(0, 2).features.shape == (1, 2)
    assert len(server.ranges) == 1
