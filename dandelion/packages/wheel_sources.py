"""Where wheels are looked for: a folder, or an index. Used in the process that prepares packages.

An index is read by its "simple" interface, in JSON or HTML. Its pages are untrusted as far as they
can be: only HTTP addresses are followed, only wheels with a SHA-256 are taken, and what is received
is counted.

Source: "Simple repository API", "Binary distribution format" of packaging.python.org.
"""

from __future__ import annotations

import contextlib
import hashlib
import html.parser
import io
import json
import os
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any, Protocol
from urllib.parse import unquote, urljoin, urlsplit

import urllib3
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from dandelion.function import Digest

_PAGE_BYTES = 64 << 20
_METADATA_BYTES = 4 << 20
_CHUNK_BYTES = 1 << 20
_REDIRECTS = 5
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
_TIMEOUT = urllib3.Timeout(connect=10, read=30)


class IndexUnavailable(Exception):
    """The index cannot be reached, or does not answer as one."""


class TooMuchDisk(Exception):
    """What was asked for is larger than the limit."""


NO_DIGEST = Digest("")


@dataclass(frozen=True)
class WheelFile:
    """A wheel that a source has.

    Attributes:
        name: of the file.
        project: canonical name.
        version, tags: by its name.
        requires_python: a specifier; empty if the source does not say.
        digest: SHA-256; empty if it must be computed from the content.
        yanked: its author withdrew it.
        url: of the file; empty in a folder.
        metadata_url: of its metadata alone; empty if there is none.
    """

    name: str
    project: str
    version: Version
    tags: frozenset[Any]
    requires_python: str = ""
    digest: Digest = NO_DIGEST
    yanked: bool = False
    url: str = ""
    metadata_url: str = ""


class WheelSource(Protocol):
    """Has wheels."""

    shown: str
    """The source, for messages."""

    def find(self, project: str) -> list[WheelFile]:
        """List the wheels of a project."""

    def others(self, project: str) -> list[str]:
        """List its files that are no wheels."""

    def refused(self, project: str) -> list[str]:
        """List its wheels that are not taken: without a SHA-256, or at other addresses."""

    def projects(self) -> list[str]:
        """List the known projects, for suggestions; empty if that is too much."""

    def metadata(self, wheel: WheelFile) -> bytes:
        """Read the metadata of a wheel."""

    def opened(self, wheel: WheelFile) -> IO[bytes]:
        """Open a wheel."""


class WheelFolder:
    """Wheels in a folder; no other folders are searched. What is no file there is no wheel.

    Args:
        folder: descriptor of it.
    """

    shown = "the wheel folder"

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._wheels: dict[str, list[WheelFile]] = {}
        self._others: list[str] = []
        for name in sorted(os.listdir(folder)):
            found = wheel_file(name)
            if found is not None and self._is_file(name):
                self._wheels.setdefault(found.project, []).append(found)
            elif name.endswith((".tar.gz", ".zip")):
                self._others.append(name)

    def _is_file(self, name: str) -> bool:
        try:
            return stat.S_ISREG(os.stat(name, dir_fd=self._folder).st_mode)
        except OSError:  # a link to nothing
            return False

    def find(self, project: str) -> list[WheelFile]:
        return self._wheels.get(project, [])

    def others(self, project: str) -> list[str]:
        return [n for n in self._others if canonicalize_name(n.rpartition("-")[0]) == project]

    def refused(self, project: str) -> list[str]:
        return []

    def projects(self) -> list[str]:
        return list(self._wheels)

    def metadata(self, wheel: WheelFile) -> bytes:
        with self.opened(wheel) as file:
            return metadata_of(file)

    def opened(self, wheel: WheelFile) -> IO[bytes]:
        return open(
            wheel.name, "rb", opener=lambda path, flags: os.open(path, flags, dir_fd=self._folder)
        )


class WheelIndex:
    """Wheels of an index.

    Args:
        url: of its "simple" interface; may have a user and a password.
        spend: is told how many bytes were received; raises `TooMuchDisk`.
    """

    def __init__(self, url: str, spend: Callable[[int], None]) -> None:
        parts = urlsplit(url)
        self.shown = f"the index {parts.scheme}://{parts.hostname}"
        self._base = url.rstrip("/") + "/"
        self._host = parts.hostname
        self._server = _server(url)
        self._schemes = ("https",) if parts.scheme == "https" else ("https", "http")
        self._headers = _credentials(parts.username, parts.password)
        self._spend = spend
        self._pool = urllib3.PoolManager(timeout=_TIMEOUT, retries=urllib3.Retry(2))
        self._pages: dict[str, tuple[list[WheelFile], list[str], list[str]]] = {}

    def find(self, project: str) -> list[WheelFile]:
        return self._page(project)[0]

    def others(self, project: str) -> list[str]:
        return self._page(project)[1]

    def refused(self, project: str) -> list[str]:
        return self._page(project)[2]

    def projects(self) -> list[str]:
        return []

    def metadata(self, wheel: WheelFile) -> bytes:
        if wheel.metadata_url:
            return self._read(wheel.metadata_url, _METADATA_BYTES)
        with self.opened(wheel) as file:
            return metadata_of(file)

    def opened(self, wheel: WheelFile) -> IO[bytes]:
        with ExitStack() as opened:
            file = opened.enter_context(tempfile.TemporaryFile(dir="."))
            response = opened.enter_context(contextlib.closing(self._request(wheel.url)))
            while chunk := self._more(response):
                self._spend(len(chunk))
                file.write(chunk)
            file.seek(0)
            response.close()
            opened.pop_all()
        return file

    def _page(self, project: str) -> tuple[list[WheelFile], list[str], list[str]]:
        if project not in self._pages:
            self._pages[project] = self._read_page(project)
        return self._pages[project]

    def _read_page(self, project: str) -> tuple[list[WheelFile], list[str], list[str]]:
        url = f"{self._base}{project}/"
        with self._request(url, missing=True) as response:
            if response.status == 404:
                return [], [], []
            data = self._bounded(response, _PAGE_BYTES)
            kind = response.headers.get("Content-Type", "")
        try:
            files = json.loads(data)["files"] if "json" in kind else _links(data)
            listed = [_listed(file, url) for file in files]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IndexUnavailable(f"its page of '{project}' cannot be read: {error}") from None
        wheels = [one for one in listed if isinstance(one, WheelFile) and one.project == project]
        usable = [one for one in wheels if self._may_take(one)]
        refused = [one.name for one in wheels if not self._may_take(one)]
        return usable, [one for one in listed if isinstance(one, str)], refused

    def _may_take(self, wheel: WheelFile) -> bool:
        return bool(wheel.digest) and self._may_follow(wheel.url)

    def _may_follow(self, url: str) -> bool:
        parts = urlsplit(url)
        return parts.scheme == "https" or (
            parts.scheme in self._schemes and parts.hostname == self._host
        )

    def _read(self, url: str, limit: int) -> bytes:
        with self._request(url) as response:
            return self._bounded(response, limit)

    def _bounded(self, response: urllib3.BaseHTTPResponse, limit: int) -> bytes:
        data = bytearray()
        while chunk := self._more(response):
            data += chunk
            if len(data) > limit:
                raise IndexUnavailable(f"a page of it is larger than {limit} bytes")
        return bytes(data)

    def _more(self, response: urllib3.BaseHTTPResponse) -> bytes:
        """Read the next part of what it sends; empty at the end."""
        try:
            return response.read(_CHUNK_BYTES)
        except urllib3.exceptions.HTTPError as error:
            reason = type(error).__name__
            raise IndexUnavailable(f"{self._host} did not send everything ({reason})") from None

    def _request(self, url: str, missing: bool = False) -> urllib3.BaseHTTPResponse:
        for _ in range(_REDIRECTS):
            response = self._answer(url)
            target = response.get_redirect_location()
            if not target:
                break
            response.close()
            try:
                url = urljoin(url, target)
                may_follow = self._may_follow(url)
            except ValueError:
                may_follow = False
            if not may_follow:
                raise IndexUnavailable(f"{self._host} redirects to another protocol")
        if response.status == 200 or (missing and response.status == 404):
            return response
        response.close()
        raise IndexUnavailable(f"{self._host} answered with status {response.status}")

    def _answer(self, url: str) -> urllib3.BaseHTTPResponse:
        own = _server(url) == self._server
        headers = {"Accept": _ACCEPT, **(self._headers if own else {})}
        plain = urlsplit(url)._replace(netloc=urlsplit(url).netloc.rpartition("@")[2]).geturl()
        try:
            return self._pool.request(
                "GET", plain, headers=headers, preload_content=False, redirect=False
            )
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            reason = type(getattr(error, "reason", None) or error).__name__
            raise IndexUnavailable(f"{self._host} cannot be reached ({reason})") from None


def _server(url: str) -> tuple[str | None, str]:
    """Return the host and the port of an address; the port is empty if it is not named."""
    parts = urlsplit(url)
    return parts.hostname, parts.netloc.rpartition("@")[2].rpartition("]")[2].partition(":")[2]


def _credentials(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    text = f"{unquote(user)}:{unquote(password or '')}"
    return dict(urllib3.util.make_headers(basic_auth=text))


class _Anchors(html.parser.HTMLParser):
    """Collects the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append(dict(attrs))


def _links(page: bytes) -> Iterator[dict[str, Any]]:
    """Yield the files of a page in HTML as those of a page in JSON."""
    parser = _Anchors()
    parser.feed(page.decode("utf-8", "replace"))
    for link in parser.found:
        url, _, fragment = (link.get("href") or "").partition("#")
        algorithm, _, digest = fragment.partition("=")
        yield {
            "filename": unquote(url.rpartition("/")[2]),
            "url": url,
            "hashes": {algorithm: digest},
            "requires-python": link.get("data-requires-python"),
            "yanked": "data-yanked" in link,
            "core-metadata": link.get("data-core-metadata", link.get("data-dist-info-metadata")),
        }


def _listed(file: dict[str, Any], page: str) -> WheelFile | str | None:
    """Read one file of a page; the name alone if it is no wheel."""
    name = str(file["filename"])
    found = wheel_file(name)
    if found is None:
        return name
    url = urljoin(page, str(file["url"]))
    with_metadata = file.get("core-metadata") or file.get("dist-info-metadata")
    return WheelFile(
        found.name,
        found.project,
        found.version,
        found.tags,
        str(file.get("requires-python") or ""),
        Digest(str(file.get("hashes", {}).get("sha256", "")).lower()),
        bool(file.get("yanked")),
        url,
        f"{url}.metadata" if with_metadata else "",
    )


def wheel_file(name: str) -> WheelFile | None:
    """Read the name of a wheel; None if it is not one."""
    try:
        project, version, _, tags = parse_wheel_filename(name)
    except InvalidWheelFilename:
        return None
    return WheelFile(name, project, version, tags)


def metadata_of(file: IO[bytes]) -> bytes:
    """Read the metadata of an open wheel.

    Raises:
        zipfile.BadZipFile, KeyError, ValueError: it is not a wheel, or its metadata is too large.
    """
    with zipfile.ZipFile(file) as archive:
        names = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        own = [n for n in names if n.count("/") == 1]
        if len(own) != 1:
            raise KeyError("it does not have one METADATA")
        if archive.getinfo(own[0]).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("its METADATA is compressed in another way")
        with archive.open(own[0]) as member:
            data = member.read(_METADATA_BYTES + 1)
    if len(data) > _METADATA_BYTES:
        raise ValueError("its METADATA is too large")
    return data


def digest_of_file(file: IO[bytes]) -> Digest:
    """Return the SHA-256 of an open file, and rewind it."""
    hashed = hashlib.sha256()
    file.seek(0, io.SEEK_SET)
    while chunk := file.read(_CHUNK_BYTES):
        hashed.update(chunk)
    file.seek(0, io.SEEK_SET)
    return Digest(hashed.hexdigest())
