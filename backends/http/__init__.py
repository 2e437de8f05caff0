"""HTTP: the platform function by which a composition sends HTTP requests.

``HTTP (requests) => (headers, bodies)``, and ``HTTP_RESPONSE (request) => (response, body)``, whose
first output also has the body. Each item of `requests` is one request, written as text.
It is sent once, and results in one item in each output, with the name and key of the request. The
requests of a call are sent concurrently, up to `HttpSettings.concurrency`. Any status is a success.
A request without a response fails the call; the error names its item. ``docs/http-function.md`` has
the format and the settings.

Files: `settings` (the operator's settings), `policy` (which addresses may be reached), `request`
(item to request, response to item, redirects), `engine` (requests over aiohttp), `cache_rules` and
`cache` (responses that are used again).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import ClassVar

from dandelion.data import SetSpec
from dandelion.driver import (
    AsyncEngine,
    Checker,
    Driver,
    EngineFactory,
    Hosting,
    Resource,
)
from dandelion.errors import BackendUnavailable, InvalidFunction, Problem
from dandelion.function import CodeObject, Function, FunctionSpec

from .settings import WHOLE_RESPONSE, HttpSettings, read_settings

HTTP = FunctionSpec(
    "HTTP",
    inputs=(SetSpec("requests"),),
    outputs=(SetSpec("headers"), SetSpec("bodies")),
    code=(CodeObject("http"),),
    kind="io",
)

HTTP_RESPONSE = FunctionSpec(
    "HTTP_RESPONSE",
    inputs=(SetSpec("request"),),
    outputs=(SetSpec("response"), SetSpec("body")),
    code=(CodeObject("http", options={WHOLE_RESPONSE: "yes"}),),
    kind="io",
)


class HttpDriver(Driver):
    """Performs functions of the format ``http`` on the node's event loop.

    Args:
        settings: see `settings.read_settings`; by default only public addresses can be reached.
    """

    name: ClassVar[str] = "http"
    formats: ClassVar[frozenset[str]] = frozenset({"http"})
    hosting: ClassVar[Hosting] = Hosting.LOOP
    platform_functions: ClassVar[tuple[FunctionSpec, ...]] = (HTTP, HTTP_RESPONSE)

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._checker = HttpChecker()
        self._factory = HttpFactory(read_settings(settings or {}))

    def configure(self, options: Mapping[str, str]) -> None:
        self._factory.settings = read_settings(options)

    def checker(self) -> Checker:
        return self._checker

    def factory(self) -> HttpFactory:
        return self._factory


class HttpChecker(Checker):
    """Checks sets, kind and options."""

    def check(self, functions: Sequence[Function]) -> None:
        problems = [problem for function in functions for problem in _problems(function)]
        if problems:
            raise InvalidFunction(tuple(problems))


class HttpFactory(EngineFactory):
    """Starts engines.

    Attributes:
        settings: of new engines.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self.settings = settings

    def probe(self) -> list[Resource]:
        if importlib.util.find_spec("aiohttp") is None:
            raise BackendUnavailable("http", "no module 'aiohttp'", "pip install aiohttp")
        return [Resource("http", "HTTP/1.1 over the node's event loop")]

    def engine(self, resource: str) -> AsyncEngine:
        self.probe()
        from .engine import HttpEngine

        return HttpEngine(self.settings)


def _problems(function: Function) -> list[Problem]:
    spec = function.spec
    problems = []
    if (len(spec.inputs), len(spec.outputs)) != (1, 2):
        problems.append(
            Problem(
                "bad-sets",
                "an HTTP function has one set of requests, and sets for headers and bodies",
                "inputs, outputs",
                expected="1 and 2 sets",
                found=f"{len(spec.inputs)} and {len(spec.outputs)}",
            )
        )
    if spec.kind != "io":
        problems.append(
            Problem(
                "not-pure", "requests may not be repeated", "kind", expected="io", found=spec.kind
            )
        )
    problems.extend(
        Problem("unknown-option", f"unknown option '{option}'", f"code.options.{option}")
        for option in function.code.options
        if option != WHOLE_RESPONSE
    )
    return problems


def driver(settings: Mapping[str, str] | None = None) -> HttpDriver:
    """Make the driver of this backend."""
    return HttpDriver(settings)
