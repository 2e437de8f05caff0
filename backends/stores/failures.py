"""Why an item failed, before the engine adds the names of function and item."""

from __future__ import annotations

from dandelion.errors import RequestFailed, RequestInterrupted, RequestRefused
from dandelion.function import FunctionSpec


class ItemRefused(Exception):
    """The request of an item is not valid or not allowed, and nothing was sent."""


class ItemFailed(Exception):
    """The store did not do what an item asks for.

    Attributes:
        transient: the same request may succeed later.
    """

    def __init__(self, message: str, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


def typed_failure(
    error: ItemRefused | ItemFailed, function: FunctionSpec, item: str
) -> RequestFailed:
    """Make the error that a caller sees."""
    message = str(error)
    if isinstance(error, ItemRefused):
        return RequestRefused(function.name, item, message)
    if error.transient:
        return RequestInterrupted(function.name, item, message, may_repeat=function.idempotent)
    return RequestFailed(function.name, item, message)
