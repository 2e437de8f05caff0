"""What holds for all tests.

They never write to the user's data folder: nodes of all tests keep their catalogue in memory. A
test of the durable catalogue names its folder.
"""

from __future__ import annotations

import gc
import importlib
import os
from types import SimpleNamespace

import pytest

from dandelion import extension_modules
from dandelion.frontend import collector


def pytest_configure() -> None:
    """Refuse extension modules of older sources; set the catalogue of programs that tests start."""
    outdated = extension_modules.outdated()
    if outdated:
        names = ", ".join(path.name for path in outdated)
        raise pytest.UsageError(f"older than their sources: {names}; {extension_modules.REMEDY}")
    os.environ["DANDELION_CATALOG"] = "memory:"


def pytest_collection_finish() -> None:
    """Keep the collector off what importing and collecting the tests made.

    Many tests look for garbage after each call, and each server collects as it starts. Without
    this, each of these collections walks through some thousand tests and their modules, which takes
    longer than most of the tests. Servers in this process leave to it what is frozen.
    """
    importlib.import_module("hypothesis")  # looks for referrers, and finds no frozen ones
    unchanged = {"freeze": lambda: None, "unfreeze": lambda: None}
    collector.gc = SimpleNamespace(**vars(gc) | unchanged)
    gc.collect()
    gc.freeze()
