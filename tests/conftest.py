"""Tests never write to the user's data folder: nodes of all tests keep their catalogue in memory.

A test of the durable catalogue names its folder.
"""

import os


def pytest_configure() -> None:
    """Set the catalogue of all programs that tests start."""
    os.environ["DANDELION_CATALOG"] = "memory:"
