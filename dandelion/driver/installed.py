"""Finding backends by the entry points of the group ``dandelion.backends``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable

from dandelion.driver.contracts import Driver
from dandelion.entry_points import entry_points
from dandelion.errors import BackendUnavailable, InvalidInput, nearest

GROUP = "dandelion.backends"
FUNCTIONS_GROUP = "dandelion.functions"
"""Names of functions of the platform, with the modules of their backends."""


def backend_names() -> list[str]:
    """List the names of the installed backends, whether or not they work."""
    return sorted(entry_points(GROUP))


def load_driver(name: str) -> Driver:
    """Load a backend by name.

    Raises:
        InvalidInput: the name is unknown.
        BackendUnavailable: it is installed, but a module that it imports is not.
    """
    point = entry_points(GROUP).get(name)
    if point is None:
        raise unknown_backend("backends", name)
    module_name = point.value
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise BackendUnavailable(name, f"no module '{error.name}'") from None
    make: Callable[[], Driver] | None = getattr(module, "driver", None)
    if not callable(make):
        raise BackendUnavailable(name, f"a function 'driver' in {module_name}")
    return make()


def backends_of_functions() -> dict[str, str]:
    """Give the functions that installed backends provide, and the names of these; loads nothing."""
    backends = {point.value: name for name, point in entry_points(GROUP).items()}
    points = entry_points(FUNCTIONS_GROUP)
    return {name: backends[p.value] for name, p in points.items() if p.value in backends}


def needed_backends(entries: Iterable[str], formats: Collection[str]) -> tuple[str, ...]:
    """Leave out the backends that run code, but none of these formats: starting them takes time.

    Args:
        entries: as in `Settings.backends`.
        formats: of the code objects of all functions that will be called.
    """
    return tuple([e for e in entries if any(_is_needed(name, formats) for name in e.split("|"))])


def _is_needed(name: str, formats: Collection[str]) -> bool:
    try:
        driver = load_driver(name)
    except BackendUnavailable:
        return True  # the node says what is missing
    return bool(driver.platform_functions) or not driver.formats.isdisjoint(formats)


def unknown_backend(where: str, name: str) -> InvalidInput:
    """Return the error for an unknown backend, with the nearest installed one.

    Args:
        where: the setting with the name.
        name: the name as written there.
    """
    known = backend_names()
    close = nearest(name, known)
    hint = f"did you mean '{close}'?" if close else f"installed are {', '.join(known)}"
    return InvalidInput(where, f"unknown backend '{name}'", hint)
