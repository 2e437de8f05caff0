"""Nodes that keep invocations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from dandelion import Node
from dandelion.settings import Settings
from tests.node.served import DOCUMENT, SETTINGS, GateDriver

LIMIT_S = 20.0


def settings_of(**changes: Any) -> Settings:
    changed: Settings = msgspec.structs.replace(SETTINGS, **changes)
    return changed


@contextlib.contextmanager
def node_of(driver: GateDriver | None = None, **changes: Any) -> Iterator[Node]:
    driver = driver or GateDriver()
    with Node(settings_of(**changes), [driver]) as node:
        node.register(DOCUMENT)
        assert node.wait_ready()
        yield node
        driver.gate.open(1000)
