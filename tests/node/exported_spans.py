"""Nodes that export spans, and what a collector received."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from dandelion.node import Node, Settings
from dandelion.testing import wait_until
from tests.collector import EXPORT_LIMIT_S
from tests.node.served import DOCUMENT, GateDriver
from tests.processes import children

until = functools.partial(wait_until, limit_s=EXPORT_LIMIT_S)


@contextlib.contextmanager
def exporting(url: str, gate: GateDriver | None = None, **settings: Any) -> Iterator[Node]:
    """A node that exports spans; afterwards nothing of that is left."""
    before, threads = children(), set(threading.enumerate())
    made = Settings(
        **{"backends": ("null",), "arena_bytes": 16 << 20, "otlp_endpoint": url, **settings}
    )
    with Node(made, [gate or GateDriver()]) as node:
        node.register(DOCUMENT)
        yield node
    assert children() <= before
    assert {t for t in threading.enumerate() if t.name == "dandelion-spans"} <= threads


def dropped(node: Node) -> int:
    spans = node.info().spans
    assert spans is not None
    return spans.dropped


def exported(node: Node) -> int:
    spans = node.info().spans
    assert spans is not None
    return spans.exported
