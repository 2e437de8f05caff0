"""The contract of protocols: what serves clients of one kind over the node's HTTP server.

A protocol is a module with a function ``adapter(context: AdapterContext) -> Adapter``, named by an
entry point of the group ``dandelion.protocols``. The setting `protocols` lists those that a node
serves. An adapter has routes; a handler reads the body of a request into sets, invokes through
`AdapterContext.node`, and writes a response. It never looks at tokens: the application checks the
right of the route first, and `Request.grant` says whose request it is.

An adapter is made in every frontend process. What all callers of a node share must lie with the
node, behind `Service`.
"""

from __future__ import annotations

import abc
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dandelion.entry_points import entry_points
from dandelion.errors import BackendUnavailable, InvalidInput, nearest
from dandelion.frontend.conversion.converter import Converter
from dandelion.frontend.routing import Json, Route
from dandelion.frontend.service import Service

GROUP = "dandelion.protocols"


@dataclass(frozen=True, slots=True)
class AdapterContext:
    """What an adapter works with.

    Attributes:
        node: serves the requests.
        converter: reads and writes documents that would block the event loop.
    """

    node: Service
    converter: Converter


class Adapter(abc.ABC):
    """One protocol of a server.

    Attributes:
        begins_without_task: handlers are called outside of a task of asyncio until they first wait,
            which saves each request a turn of the loop. Until then there is no
            `asyncio.current_task`, so they must not use `asyncio.timeout` or `asyncio.TaskGroup`.
    """

    begins_without_task: ClassVar[bool] = False

    @abc.abstractmethod
    def routes(self) -> Sequence[Route]:
        """List the routes. Called once."""

    def schemas(self) -> Mapping[str, Json]:
        """Give the OpenAPI schemas that the operations of the routes refer to, by name."""
        return {}

    async def start(self) -> None:
        """Prepare, on the server's loop, before it accepts connections.

        Raises:
            DandelionError: the server cannot start.
        """

    async def stop(self) -> None:
        """End what keeps requests open, when the server begins to drain; must not raise."""

    def close(self) -> None:
        """Release everything, in a thread, after the last request. May be called twice."""


def protocol_names() -> list[str]:
    """List the names of the installed protocols."""
    return sorted(entry_points(GROUP))


def load_adapter(name: str, context: AdapterContext) -> Adapter:
    """Make the adapter of a protocol.

    Raises:
        InvalidInput: the name is unknown, or a setting of the protocol is bad.
        BackendUnavailable: a module that it imports is not installed.
    """
    point = entry_points(GROUP).get(name)
    if point is None:
        known = protocol_names()
        close = nearest(name, known)
        listed = ", ".join(known) or "none"
        hint = f"did you mean '{close}'?" if close else f"installed are: {listed}"
        raise InvalidInput("protocols", f"unknown protocol '{name}'", hint)
    module_name = point.value
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise BackendUnavailable(name, f"no module '{error.name}'") from None
    make: Callable[[AdapterContext], Adapter] | None = getattr(module, "adapter", None)
    if not callable(make):
        raise BackendUnavailable(name, f"a function 'adapter' in {module_name}")
    return make(context)
