"""Wheels from an index: both forms of its pages, and what is not followed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dandelion.errors import BackendUnavailable, InvalidFunction
from dandelion.packages import Environments, PackageSource
from dandelion.packages.records import PrepareLimits
from dandelion.packages.resolving import CannotResolve, resolve
from dandelion.packages.wheel_sources import IndexUnavailable, TooMuchDisk, WheelIndex
from tests.packages.wheels import digest, wheel

JSON = "application/vnd.pypi.simple.v1+json"


class Index:
    """An index on the loopback address.

    Attributes:
        pages: kind and content by path.
        moved: targets of redirects by path.
        requested: paths and credentials of all requests.
        missing_bytes: how much of each content is announced and not sent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages: dict[str, tuple[str, bytes]] = {}
        self.moved: dict[str, str] = {}
        self.requested: list[tuple[str, str | None]] = []
        self.missing_bytes = 0
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.answer(self)

            def log_message(self, *parts: object) -> None:
                """Write nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.requested.append((request.path, request.headers["Authorization"]))
        if request.path in self.moved:
            request.send_response(302)
            request.send_header("Location", self.moved[request.path])
            request.end_headers()
            return
        file = self.folder / Path(request.path).name
        found = self.pages.get(request.path)
        if found is None and request.path.startswith("/files/") and file.is_file():
            found = ("application/octet-stream", file.read_bytes())
        kind, data = found or ("text/plain", b"")
        request.send_response(404 if found is None else 200)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(data) + self.missing_bytes))
        request.end_headers()
        request.wfile.write(data)

    def list_as_json(self, project: str, *paths: Path, **further: object) -> None:
        files = [
            {
                "filename": path.name,
                "url": f"/files/{path.name}",
                "hashes": {"sha256": digest(path)},
                **further,
            }
            for path in paths
        ]
        self.pages[f"/simple/{project}/"] = (JSON, json.dumps({"files": files}).encode())


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.chdir(tmp_path)  # downloads go to the current folder
    made = Index(tmp_path / "files")
    made.folder.mkdir()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def chosen(index: Index, *wanted: str, url: str = "") -> list[str]:
    source = WheelIndex(url or index.url, lambda size_bytes: None)
    return [one.name for one, _ in resolve(wanted, [source], {}, {})]


def test_pages_in_json(index: Index) -> None:
    old, new = wheel(index.folder, "a", "1.0"), wheel(index.folder, "a", "2.0")
    index.list_as_json("a", old, new)
    assert chosen(index, "a") == [new.name]
    assert chosen(index, "a<2") == [old.name]
    index.list_as_json("a", old, new, yanked="it is broken")
    with pytest.raises(CannotResolve):
        chosen(index, "a>=2")
    assert chosen(index, "a==2.0") == [new.name]
    index.list_as_json("a", old, **{"requires-python": "<3"})
    with pytest.raises(CannotResolve, match="no wheel of 'a' fits"):
        chosen(index, "a")


def test_pages_in_html_and_metadata_apart(index: Index) -> None:
    path = wheel(index.folder, "a", "1.0", requires=["missing"])
    text = (
        f'<a href="../../files/{path.name}#sha256={digest(path)}" data-core-metadata="true"'
        f' data-requires-python="&gt;=3">{path.name}</a><a href="../../files/a-1.0.tar.gz">s</a>'
    )
    index.pages["/simple/a/"] = ("text/html; charset=utf-8", text.encode())
    metadata = b"Metadata-Version: 2.1\nName: a\nVersion: 1.0\n"
    index.pages[f"/files/{path.name}.metadata"] = ("text/plain", metadata)
    assert chosen(index, "a") == [path.name]
    assert f"/files/{path.name}" not in [requested for requested, _ in index.requested]


def test_wheels_without_digest_or_on_other_hosts_are_left_out(index: Index) -> None:
    path = wheel(index.folder, "a", "1.0")
    index.list_as_json("a", path, hashes={"md5": "0" * 32})
    with pytest.raises(CannotResolve, match="no SHA-256"):
        chosen(index, "a")
    for url in ("file:///etc/passwd", "http://10.0.0.1/a.whl", "ftp://127.0.0.1/a.whl"):
        index.list_as_json("a", path, url=url)
        with pytest.raises(CannotResolve, match="elsewhere"):
            chosen(index, "a")


def test_redirects_stay_on_the_host(index: Index) -> None:
    path = wheel(index.folder, "a", "1.0")
    index.list_as_json("b", path)
    index.moved["/simple/a/"] = "/simple/b/"
    assert chosen(index, "a") == [path.name]
    for target in ("http://10.0.0.1/", "file:///etc/passwd"):
        index.moved["/simple/a/"] = target
        with pytest.raises(IndexUnavailable, match="redirects"):
            chosen(index, "a")
    index.moved["/simple/a/"] = "/simple/a/"
    with pytest.raises(IndexUnavailable):
        chosen(index, "a")


def test_credentials_go_to_the_index_and_into_no_message(index: Index) -> None:
    path = wheel(index.folder, "a", "1.0")
    index.list_as_json("a", path)
    url = index.url.replace("http://", "http://user:pass%40word@")
    assert chosen(index, "a", url=url) == [path.name]
    assert {given for _, given in index.requested} == {"Basic dXNlcjpwYXNzQHdvcmQ="}
    with pytest.raises(CannotResolve) as caught:
        chosen(index, "missing", url=url)
    assert "pass" not in str(caught.value)


def test_credentials_do_not_go_to_another_port(index: Index, tmp_path: Path) -> None:
    other = Index(index.folder)
    thread = threading.Thread(target=other.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        path = wheel(index.folder, "a", "1.0")
        index.list_as_json("a", path, url=other.url.replace("simple", f"files/{path.name}"))
        url = index.url.replace("http://", "http://user:word@")
        assert chosen(index, "a", url=url) == [path.name]
    finally:
        other.server.shutdown()
        other.server.server_close()
        thread.join()
    assert [given is None for _, given in index.requested] == [False]
    assert other.requested == [(f"/files/{path.name}", None)]


def test_an_answer_that_ends_early(index: Index) -> None:
    path = wheel(index.folder, "a", "1.0")
    index.list_as_json("a", path)
    source = WheelIndex(index.url, lambda size_bytes: None)
    found = source.find("a")[0]
    index.missing_bytes = 1
    with pytest.raises(IndexUnavailable, match="everything"):
        source.opened(found)
    with pytest.raises(IndexUnavailable, match="everything"):
        chosen(index, "a")


def test_a_redirect_to_no_address(index: Index) -> None:
    index.moved["/simple/a/"] = "http://[::1/"
    with pytest.raises(IndexUnavailable):
        chosen(index, "a")


def test_pages_that_are_none(index: Index) -> None:
    for content in (b"{", b"[]", b'{"files": 3}', b'{"files": [{}]}', b"\xff"):
        index.pages["/simple/a/"] = (JSON, content)
        with pytest.raises(IndexUnavailable):
            chosen(index, "a")


def test_downloads_are_counted(index: Index) -> None:
    path = wheel(index.folder, "a", "1.0")
    index.list_as_json("a", path)

    def full(size_bytes: int) -> None:
        raise TooMuchDisk

    source = WheelIndex(index.url, full)
    with pytest.raises(TooMuchDisk):
        source.opened(source.find("a")[0])


def test_an_environment_from_an_index(index: Index, tmp_path: Path) -> None:
    path = wheel(index.folder, "a", "1.0")
    index.list_as_json("a", path, **{"core-metadata": False})
    source = PackageSource(index=index.url)
    store = Environments(tmp_path / "cache", source, PrepareLimits(wall_s=60), list)
    with store.prepare(["a"], {}, "here") as (_, wheels):
        assert wheels == {path.name: digest(path)}
    store.close()
    wheel(index.folder, "a", "1.0", {"a.py": "other"})  # the page still has the digest of before
    again = Environments(tmp_path / "again", source, PrepareLimits(wall_s=60), list)
    with pytest.raises(InvalidFunction, match="digest"), again.prepare(["a"], {}, "here"):
        pass
    index.server.shutdown()
    index.server.server_close()
    with pytest.raises(BackendUnavailable, match=r"127\.0\.0\.1"), again.prepare(["a"], {}, "here"):
        pass
