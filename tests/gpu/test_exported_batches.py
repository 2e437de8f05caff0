"""Exported models for any number of rows, and with several routes, on a real device."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")

import torch

from dandelion.export import export_module
from dandelion.export.report import relative_error
from dandelion.export.torch_binding import example_arrays
from dandelion.function import FunctionSpec
from dandelion.node import Node, Settings
from tests import torch_models

SIZES = (1, 4, 16)
ROWS = (3, 1, 16, 4, 2, 7)
CALLERS, CALLS_EACH = 8, 6
ERROR = 5e-3  # of tf32, as for the whole models
ROUTES = ("portable", "peak", "both")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    cache: Path = tmp_path_factory.mktemp("code")
    options = {"cuda": {"cache": str(cache), "pool_bytes": "2G", "weights": "1G", "workers": "0"}}
    with Node(Settings(backends=("null", "cuda"), options=options, arena_bytes=2 << 30)) as started:
        assert started.wait_ready(60)
        yield started


def wanted(module: Any, given: tuple[Any, ...], names: tuple[str, ...]) -> dict[str, Any]:
    """What the module computes with doubles."""
    wide = [one.double() if one.is_floating_point() else one for one in given]
    with torch.inference_mode():
        leaves = torch.utils._pytree.tree_leaves(module(*wide))
    return {name: leaf.numpy() for name, leaf in zip(names, leaves, strict=True)}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("model", ["resnet18", "bert_base"])
def test_calls_of_all_sizes_and_joined_calls(cuda: str, node: Node, model: str, route: str) -> None:
    module, examples = torch_models.model(model, 4, max(ROWS))
    target = "" if route == "portable" else f"cuda:{cuda.removeprefix('sm_')}"
    name = f"{model}_{route}"
    made = export_module(
        name, module, examples, precision="tf32", route=route, target=target, batch=SIZES,
        batch_wait_s=0.02,
    )  # fmt: skip
    node.register(functions=[made.function])
    whole = wanted(module.double(), examples, made.outputs)

    def check(first: int, last: int) -> None:
        given = tuple(one[first:last] for one in examples)
        found = node.invoke(name, **example_arrays(given, made.inputs))
        for label in made.outputs:
            array = found[label].numpy()
            assert array.shape[0] == last - first
            assert relative_error(array, whole[label][first:last]) <= ERROR, (label, first, last)

    for _ in range(3):  # candidates are timed in the second call of a size
        for rows in ROWS:
            check(0, rows)

    def caller(number: int) -> None:
        for step in range(CALLS_EACH):
            at = (number + step) % max(ROWS)
            check(at, at + 1)

    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(caller, range(CALLERS)))
    node.remove(FunctionSpec, name)
