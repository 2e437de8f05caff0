"""Finding backends: the entry points of the group ``dandelion.backends``, and nothing else."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable

from dandelion.driver.contracts import Driver
from dandelion.errors import BackendUnavailable, InvalidInput, nearest

GROUP = "dandelion.backends"


def backend_names() -> list[str]:
    """List the names of the backends that are installed, working or not."""
    return sorted({point.name for point in importlib.metadata.entry_points(group=GROUP)})


def load_driver(name: str) -> Driver:
    """Load a backend by name.

    Raises:
        InvalidInput: there is no such backend.
        BackendUnavailable: it is installed, but something that it imports is not.
    """
    points = importlib.metadata.entry_points(group=GROUP, name=name)
    if not points:
        raise unknown_backend("backends", name)
    module_name = next(iter(points)).value
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise BackendUnavailable(name, f"no module '{error.name}'") from None
    make: Callable[[], Driver] | None = getattr(module, "driver", None)
    if not callable(make):
        raise BackendUnavailable(name, f"a function 'driver' in {module_name}")
    return make()


def unknown_backend(where: str, name: str) -> InvalidInput:
    """Give the error for a name that no installed backend has, with the nearest one.

    Args:
        where: the setting that names it.
        name: as it is written there.
    """
    known = backend_names()
    close = nearest(name, known)
    hint = f"did you mean '{close}'?" if close else f"there are {', '.join(known)}"
    return InvalidInput(where, f"there is no backend '{name}'", hint)
