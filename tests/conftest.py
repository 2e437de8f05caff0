"""What holds for all tests."""

from __future__ import annotations

import gc
import importlib


def pytest_collection_finish() -> None:
    """Keep the collector off what importing and collecting the tests made.

    Many tests look for garbage after each call. Without this, each of these collections walks
    through some thousand tests and their modules, which takes longer than most of the tests.
    """
    importlib.import_module("hypothesis")  # looks for referrers, and finds no frozen ones
    gc.collect()
    gc.freeze()
