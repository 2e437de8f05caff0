"""Nodes on a fake CUDA device: the backend and its engine processes are real."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from dandelion.backends.gpu import compiling_checker

from dandelion.node import Node, Settings
from tests.fake_driver import build

MIB = 1 << 20
LIMIT_S = 60.0


def missing() -> str:
    """Name what the fake device needs and is not there, or return an empty text."""
    if importlib.util.find_spec("cuda") is None or not importlib.util.find_spec("cuda.bindings"):
        return "cuda-bindings"
    return build.missing()


def built(folder: Path) -> Path:
    """Build the fake device's libraries in a folder; return it."""
    build.build("cuda", folder)
    return folder


@contextmanager
def cuda_node(
    libraries: Path, patch: pytest.MonkeyPatch, cache: Path, options: Mapping[str, str]
) -> Iterator[Node]:
    """Start a node on the fake device."""
    for name, value in build.environment(libraries).items():
        patch.setenv(name, value)
    # The fixture's compiler needs what the compile process gives up; engines compile themselves.
    patch.setattr(compiling_checker, "compile_apart", lambda *_: ())
    own = {"standby": "false", "pool_bytes": "8M", "cache": str(cache), **options}
    settings = Settings(backends=("cuda",), options={"cuda": own}, arena_bytes=128 * MIB)
    with Node(settings) as made:
        assert made.wait_ready(LIMIT_S)
        yield made
