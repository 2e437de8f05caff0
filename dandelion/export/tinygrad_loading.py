"""Importing tinygrad with the settings that exports need."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

from dandelion.errors import BackendUnavailable

VERSION = "0.14"
"""The only version: schedules and code differ between versions."""

_ENVIRONMENT = {"DEV": "NULL:OPENCL", "NO_MEMORY_PLANNER": "1", "CACHELEVEL": "0"}


def load() -> Any:
    """Import tinygrad; it reads its settings from the environment when it is imported.

    Raises:
        BackendUnavailable: it is not installed, or in another version.
    """
    remedy = "pip install 'dandelion-engine[export]'"
    try:
        with _environment():
            tinygrad: Any = importlib.import_module("tinygrad")
            importlib.import_module("tinygrad.codegen")
    except ImportError as error:
        raise BackendUnavailable("tinygrad", str(error), remedy) from error
    found = importlib.import_module("importlib.metadata").version("tinygrad")
    if not found.startswith(f"{VERSION}."):
        missing = f"version {found} is installed, version {VERSION} is needed"
        raise BackendUnavailable("tinygrad", missing, remedy)
    return tinygrad


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
