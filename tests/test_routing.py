"""The table of routes: templates, precedence, refused tables."""

from __future__ import annotations

import pytest

from dandelion.errors import InvalidInput
from dandelion.frontend.asgi import Request, Response
from dandelion.frontend.routing import ANY_METHOD, Route, RouteTable


async def nothing(request: Request) -> Response:
    raise AssertionError("it is never called")


def table(*routes: tuple[str, str]) -> RouteTable:
    return RouteTable(Route(method, path, nothing, None) for method, path in routes)


ROUTES = table(
    ("GET", "/"),
    ("GET", "/v1/things"),
    ("GET", "/v1/things/{name...}"),
    ("DELETE", "/v1/things/{name...}"),
    ("GET", "/v1/things/{name}/graph"),
    ("GET", "/v1/things/all"),
    ("POST", "/hot/{any...}"),
    (ANY_METHOD, "/register/{kind}"),
    ("GET", "/register/{kind}"),
)


@pytest.mark.parametrize(
    ("path", "template", "parameters"),
    [
        ("/", "/", {}),
        ("/v1/things", "/v1/things", {}),
        ("/v1/things/a", "/v1/things/{name...}", {"name": "a"}),
        ("/v1/things/a/b/c", "/v1/things/{name...}", {"name": "a/b/c"}),
        ("/v1/things/a/graph", "/v1/things/{name}/graph", {"name": "a"}),
        ("/v1/things/a/b/graph", "/v1/things/{name...}", {"name": "a/b/graph"}),
        ("/v1/things/all", "/v1/things/all", {}),
        ("/v1/things/all/graph", "/v1/things/{name}/graph", {"name": "all"}),
        ("/v1/things//graph", "/v1/things/{name...}", {"name": "/graph"}),
    ],
)
def test_the_most_literal_template_wins(
    path: str, template: str, parameters: dict[str, str]
) -> None:
    for _ in range(2):  # the second time from the kept ones
        match = ROUTES.find(path)
        assert match is not None
        assert match.parameters == parameters
        route = match.route("GET")
        assert route is not None
        assert route.path == template


@pytest.mark.parametrize(
    "path", ["", "v1", "//", "/v1", "/v1/", "/v1/things/", "/hot", "/hot/", "/register/", "/v2/x"]
)
def test_other_paths_have_no_route(path: str) -> None:
    assert ROUTES.find(path) is None


def test_methods() -> None:
    match = ROUTES.find("/v1/things/a")
    assert match is not None
    assert set(match.methods) == {"GET", "DELETE"}
    assert match.route("HEAD") is match.route("GET")
    assert match.route("POST") is None
    match = ROUTES.find("/register/function")
    assert match is not None
    found = [match.route(method) for method in ("GET", "HEAD", "PUT", "WHAT")]
    assert [route.method for route in found if route] == ["GET", "GET", ANY_METHOD, ANY_METHOD]


def test_long_and_many_paths_are_found_and_not_kept() -> None:
    routes = table(("GET", "/a/{name...}"))
    for path in ("/a/" + "n" * 100_000, "/a/" + "/" * 50_000):
        match = routes.find(path)
        assert match is not None
        assert match.parameters == {"name": path[3:]}
    for number in range(10_000):
        assert routes.find(f"/a/{number}") is not None
    assert len(routes._known) <= 4096


@pytest.mark.parametrize(
    "routes",
    [
        (("GET", "/a"), ("GET", "/a")),
        (("GET", "/a/{b}"), ("GET", "/a/{c}")),
        (("GET", "/a/{b}"), ("POST", "/a/{c}")),
        (("GET", "/a/{b...}"), ("GET", "/a/{b...}")),
    ],
)
def test_routes_that_clash_are_refused(routes: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(InvalidInput, match="/a") as caught:
        table(*routes)
    assert caught.value.where == "protocols"
