"""A server whose responses are cached, and a history of requests to it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from email.utils import formatdate

from aiohttp import web

from tests.http_sites import LOCAL, MIB, HttpEngine, a_call, get, only, run, settings, site

rules = importlib.import_module("dandelion.backends.http.cache_rules")
HttpRequest = importlib.import_module("dandelion.backends.http.request").HttpRequest
START_S = 1_800_000_000.0


@dataclass
class Origin:
    """A server with given answers, its client, and the clock of both.

    Attributes:
        answer: status, headers and body of the next answers; the body gets their number.
        requests: headers of those that arrived.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"body"
    requests: list[dict[str, str]] = field(default_factory=list)
    now_s: float = START_S
    url: str = ""
    engine: object = None
    answered: Callable[[web.Request], tuple[int, dict[str, str]]] | None = None

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append({name.lower(): value for name, value in request.headers.items()})
        status, headers = self.status, dict(self.headers)
        if self.answered is not None:
            status, headers = self.answered(request)
        headers.setdefault("Date", self.date())
        body = b"" if status == 304 else self.body + b" %d" % len(self.requests)
        return web.Response(status=status, headers=headers, body=body)

    def date(self, after_s: float = 0) -> str:
        return formatdate(self.now_s + after_s, usegmt=True)

    async def ask(
        self, *lines: str, path: str = "/", method: str = "GET", tenant: str = "t"
    ) -> tuple[str, str]:
        """Send a request; return head and body."""
        call = a_call(get(self.url + path, *lines, method=method))
        call.tenant = tenant
        head, body = only(await self.engine.run(call))  # type: ignore[attr-defined]
        return bytes(head).decode(), bytes(body).decode()

    @property
    def count(self) -> int:
        return len(self.requests)


@contextlib.asynccontextmanager
async def origin(cache_bytes: int = MIB, **options: str) -> AsyncIterator[Origin]:
    made = Origin()
    async with site(made.handle) as made.url:
        read = settings.read_settings({**LOCAL, "cache_bytes": str(cache_bytes), **options})
        made.engine = HttpEngine(read, None, lambda: made.now_s)
        try:
            yield made
        finally:
            await made.engine.close()  # type: ignore[attr-defined]


def scenario(test: Callable[[Origin], object]) -> Callable[[], None]:
    """Run a coroutine with an origin."""

    def run_it() -> None:
        async def body() -> None:
            async with origin() as o:
                await test(o)  # type: ignore[misc]

        run(body())

    run_it.__name__, run_it.__doc__ = test.__name__, test.__doc__
    return run_it


FRESH = {"Cache-Control": "max-age=60"}
