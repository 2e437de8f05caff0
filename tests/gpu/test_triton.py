"""Triton kernels on a real device: results against numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dandelion.documents import FunctionDocument, RegistrationDocument
from dandelion.node import Node, Settings

pytest.importorskip("triton", reason="the extra 'export' is not installed")

from tests import triton_kernels as kernels

CALLS = 4  # the first measures, the second captures a graph, the others replay it


@pytest.fixture(scope="module")
def node(cuda: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    cache = str(tmp_path_factory.mktemp("code"))
    options = {"cuda": {"cache": cache, "pool_bytes": "2G", "workers": "0"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        with Node(Settings(backends=("null", "cuda"), options=options)) as started:
            assert started.wait_ready(60)
            yield started


def register(node: Node, document: FunctionDocument) -> None:
    node.register(RegistrationDocument(functions=(document,)))


def result(node: Node, name: str, output: str, **inputs: Any) -> np.ndarray[Any, Any]:
    """The output of the last of some calls, which all have to give the same."""
    found = []
    for _ in range(CALLS):
        item_set = node.invoke(name, **inputs)[output]
        assert item_set is not None
        found.append(item_set.numpy().copy())
    assert all(np.array_equal(found[0], other) for other in found[1:])
    return found[-1]


def normal(*shape: int, dtype: str = "float32", seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("length", [1, 1000, 1024, 1_000_003])
def test_vectors(node: Node, cuda: str, length: int) -> None:
    register(node, kernels.add_function([cuda]))
    x, y = normal(length), normal(length, seed=2)
    assert np.array_equal(result(node, "add", "z", x=x, y=y), x + y)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 1000), (300, 1024)])
def test_softmax(node: Node, cuda: str, rows: int, columns: int) -> None:
    register(node, kernels.softmax_function([cuda]))
    x = normal(rows, columns)
    powers = np.exp(x - x.max(1, keepdims=True))
    expected = powers / powers.sum(1, keepdims=True)
    found = result(node, "softmax", "y", cfg=np.array([rows, columns]), x=x)
    assert np.allclose(found.reshape(rows, columns), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("float32", 2e-3)])
@pytest.mark.parametrize(("m", "n", "k"), [(512, 512, 512), (300, 144, 208)])
def test_matmul(
    node: Node, cuda: str, m: int, n: int, k: int, dtype: str, tolerance: float
) -> None:
    """With float32 the products are those of tf32, which has 10 bits."""
    register(node, kernels.matmul_function(m, n, k, dtype, [cuda], stages={cuda: 3}))
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=2)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    found = result(node, "matmul", "c", a=a, b=b)
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def test_weights_that_stay_on_the_device(node: Node, cuda: str) -> None:
    b = normal(512, 512, dtype="float16", seed=2)
    static = {"b": {"b": b}}
    register(node, kernels.matmul_function(512, 512, 512, targets=[cuda], static=static))
    for seed in (1, 3, 4):
        a = normal(512, 512, dtype="float16", seed=seed)
        expected = a.astype(np.float64) @ b.astype(np.float64)
        found = result(node, "matmul", "c", a=a)
        assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


def test_atomics_start_at_zero_in_each_call(node: Node, cuda: str) -> None:
    register(node, kernels.histogram_function([cuda]))
    x = np.random.default_rng(1).integers(0, 256, 100_000).astype(np.int32)
    assert np.array_equal(result(node, "histogram", "counts", x=x), np.bincount(x, minlength=256))


def test_descriptors_in_scratch_memory(node: Node, cuda: str) -> None:
    register(node, kernels.tiles_function([cuda]))
    x = normal(200, 320, dtype="float16")
    found = result(node, "tiles", "y", cfg=np.array([200, 320 // 16]), x=x)
    assert np.array_equal(found.reshape(x.shape), x)


def test_scalars_of_all_sizes(node: Node, cuda: str) -> None:
    register(node, kernels.scalars_function([cuda]))
    assert result(node, "scalars", "y", x=np.zeros(3, np.float32)) == [1 + 2.5 + 3 + 4 + 5 + 1]
