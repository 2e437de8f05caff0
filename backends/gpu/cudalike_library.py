"""Operations of a vendor's library, as `.cudalike` launches them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from dandelion.blueprint.operation_calls import operand_calls

from .calls import Calls, LibrarySite
from .cudalike_code import Prepared
from .lowering import Libraries, Library
from .plan import LibraryCall


@dataclass(slots=True, eq=False)
class PreparedOperation(Prepared):
    """An operation of a library; `release` frees the library's handles of it, once."""

    release: Callable[[], None] = lambda: None


def libraries(calls: Calls, site: LibrarySite) -> Libraries:
    """The libraries of a device; none is loaded yet."""
    return Libraries(
        {kind: functools.partial(load, site) for kind, load in calls.libraries.items()}
    )


def prepare_operation(library: Library, step: LibraryCall, bases: tuple[int, int]) -> object:
    """Make an operation ready to be launched.

    Args:
        library: that the plan was made for.
        step: of the plan.
        bases: addresses of the pool and of the function's constants.
    """
    fields = dict(operand_calls(step.call))
    addresses = {
        name: bases[p.constant] + p.offset_bytes + fields[name].offset_bytes
        for name, p in step.operands.items()
    }
    room = (0, 0)
    if step.workspace is not None:
        room = (bases[0] + step.workspace.offset_bytes, step.workspace.size_bytes)
    return library.prepare(step.call, addresses, room)
