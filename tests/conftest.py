"""What holds for all tests.

They never write to the user's folders: nodes of all tests keep their catalogue in memory, and all
tests of a run share one folder for caches, which is removed at its end. A test of the durable
catalogue names its folder.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies

from dandelion import extension_modules
from dandelion.frontend import collector


def pytest_configure(config: pytest.Config) -> None:
    """Refuse extension modules of older sources; set the folders of programs that tests start."""
    outdated = extension_modules.outdated()
    if outdated:
        names = ", ".join(path.name for path in outdated)
        raise pytest.UsageError(f"older than their sources: {names}; {extension_modules.REMEDY}")
    os.environ["DANDELION_CATALOG"] = "memory:"
    # Each further thread of OpenBLAS computes for 100 ms after numpy is imported, before it sleeps.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not hasattr(config, "workerinput"):  # workers inherit it
        caches = tempfile.mkdtemp(prefix="dandelion-tests-")
        os.environ["XDG_CACHE_HOME"] = caches
        config.add_cleanup(lambda: shutil.rmtree(caches, ignore_errors=True))


def pytest_collection_finish() -> None:
    """Keep the collector off what importing and collecting the tests made.

    Many tests look for garbage after each call, and each server collects as it starts. Without
    this, each of these collections walks through some thousand tests and their modules, which takes
    longer than most of the tests. Servers in this process leave to it what is frozen.
    """
    _use_hypothesis()  # at first it looks for referrers, and finds no frozen ones
    unchanged = {"freeze": lambda: None, "unfreeze": lambda: None}
    collector.gc = SimpleNamespace(**vars(gc) | unchanged)
    gc.collect()
    gc.freeze()


def _use_hypothesis() -> None:
    @settings(max_examples=1, database=None)
    @given(strategies.none())
    def used(_: None) -> None:
        pass

    used()
