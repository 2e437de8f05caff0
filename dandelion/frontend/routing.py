"""Routes: which handler serves a method of a path, and the right that its caller needs.

A path is a template such as ``/v1/compositions/{name}/graph``. A parameter takes one segment that
is not empty; ``{rest...}`` at the end takes all remaining segments, perhaps none. A literal segment
wins over a parameter, and a parameter over the rest, so the order of registration has no meaning.
``/{rest...}`` serves only paths whose first segment begins no other route, so that a mistyped path
of one protocol is not served by another one.

Paths that were found lately are kept in a bounded table, so the usual request costs one look-up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dandelion.errors import InvalidInput
from dandelion.frontend.asgi import ProblemWriter, Request, Response
from dandelion.frontend.problem_response import problem_response
from dandelion.tokens import Right

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
Json: TypeAlias = dict[str, Any]
"""A part of an OpenAPI document."""

ANY_METHOD = "*"
_KNOWN_LIMIT = 4096
_KNOWN_PATH_LIMIT = 256  # characters; longer paths are matched each time
_REST = "...}"


@dataclass(frozen=True, slots=True)
class Route:
    """What serves one method of a path.

    Attributes:
        method: such as ``GET``, which also serves ``HEAD``; `ANY_METHOD` serves all others.
        path: a template.
        handler: finds the values of the template's parameters in `Request.parameters`.
        right: what the caller needs. None is a public route: its response is the same for all
            callers and contains nothing of a tenant.
        operation: its OpenAPI operation; None leaves the route out of the document.
        problem: makes the responses for errors.
        also: a second right that the caller needs.
        change: what it does to the catalogue, for the audit log: ``register`` or ``remove``.
    """

    method: str
    path: str
    handler: Handler
    right: Right | None
    operation: Json | None = None
    problem: ProblemWriter = problem_response
    also: Right | None = None
    change: str = ""

    @property
    def documented_path(self) -> str:
        """The path as OpenAPI writes it."""
        return self.path.replace(_REST, "}")


@dataclass(frozen=True, slots=True)
class Match:
    """A path that was found.

    Attributes:
        methods: its routes, by method.
        parameters: their values.
        problem: makes responses for errors that do not depend on the method.
    """

    methods: Mapping[str, Route]
    parameters: Mapping[str, str]
    problem: ProblemWriter

    def route(self, method: str) -> Route | None:
        """Return the route of a method; None if the path does not have it."""
        methods = self.methods
        found = methods.get(method)
        if found is None and method == "HEAD":
            found = methods.get("GET")
        return methods.get(ANY_METHOD) if found is None else found

    @property
    def is_public(self) -> bool:
        """Whether callers need no token."""
        return all(route.right is None for route in self.methods.values())


@dataclass(slots=True)
class _Segment:
    """A node of the tree of templates."""

    literals: dict[str, _Segment] = field(default_factory=dict)
    parameter: _Segment | None = None
    rest: dict[str, Route] = field(default_factory=dict)
    methods: dict[str, Route] = field(default_factory=dict)


class RouteTable:
    """All routes of a server.

    Args:
        routes: in any order.

    Raises:
        InvalidInput: two routes have the same path and method, or name its parameters differently.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Segment()
        self._routes: list[Route] = []
        self._known: dict[str, Match] = {}
        for route in routes:
            self._add(route)

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def find(self, path: str) -> Match | None:
        """Find the routes of a path; None if there is none."""
        match = self._known.get(path)
        if match is not None:
            return match
        found = _find(self._root, path.split("/")[1:])
        if found is None:
            return None
        methods, values = found
        if methods is self._root.rest and path.split("/")[1] in self._root.literals:
            return None
        first = next(iter(methods.values()))
        match = Match(methods, dict(zip(_names(first), values, strict=True)), first.problem)
        if len(path) <= _KNOWN_PATH_LIMIT:
            if len(self._known) >= _KNOWN_LIMIT:
                self._known.clear()
            self._known[path] = match
        return match

    def _add(self, route: Route) -> None:
        at = self._root
        methods: dict[str, Route] | None = None
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{") and segment.endswith(_REST):
                methods = at.rest
            elif segment.startswith("{"):
                at.parameter = at = at.parameter or _Segment()
            else:
                at = at.literals.setdefault(segment, _Segment())
        methods = at.methods if methods is None else methods
        clash = methods.get(route.method)
        clash = clash or next((o for o in methods.values() if _names(o) != _names(route)), None)
        if clash is not None:
            message = f"two of them serve {route.path} and {clash.path}"
            raise InvalidInput("protocols", message, "leave one of them out")
        methods[route.method] = route
        self._routes.append(route)


def _find(at: _Segment, path: list[str]) -> tuple[dict[str, Route], list[str]] | None:
    """Find the routes below a segment; depth is bounded by the longest template."""
    if not path:
        return (at.methods, []) if at.methods else None
    first, further = path[0], path[1:]
    literal = at.literals.get(first)
    found = None if literal is None else _find(literal, further)
    if found is None and at.parameter is not None and first:
        below = _find(at.parameter, further)
        if below is not None:
            found = below[0], [first, *below[1]]
    if found is None and at.rest and (first or further):
        found = at.rest, ["/".join(path)]
    return found


def _names(route: Route) -> list[str]:
    segments = [s for s in route.path.split("/") if s.startswith("{")]
    return [segment[1:].removesuffix(_REST).removesuffix("}") for segment in segments]
