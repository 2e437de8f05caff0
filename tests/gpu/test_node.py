"""Compositions and faults on a real device, through a node and its engine process."""

from __future__ import annotations

from collections.abc import Iterator

import dandelion.compositions as compositions
import numpy as np
import pytest
from dandelion.compositions.digits import bundle as digits
from dandelion.compositions.matmul import bundle as matmul

from dandelion.documents import RegistrationDocument, gpu_function
from dandelion.errors import (
    DandelionError,
    DeviceFull,
    Faulted,
    InvalidBlueprint,
    InvalidFunction,
    TimedOut,
)
from dandelion.function import Limits
from dandelion.node import Node, Settings

KERNELS = {
    "stray": "a[0] = *(GLOBAL volatile u64 *)(u64)8;",
    "skewed": "a[0] = *(GLOBAL volatile u64 *)((GLOBAL u8 *)a + 1);",
    "spin": "while (*(GLOBAL volatile u64 *)a == 0) { }",
    "trapped": "__trap(); a[0] = 1;",
    "claims": "assert(a[0] == 99);",
    "grabs": "void *p = malloc(64); a[0] = p != 0; if (p) free(p);",
    "fine": "a[0] += 1;",
}


def source(kernel: str) -> str:
    """A file with one kernel of that name, or with `fine`."""
    name = kernel if kernel in KERNELS else "fine"
    return f'#include "dandelion.h"\nKERNEL void {name}(GLOBAL u64 *a) {{ {KERNELS[name]} }}\n'


def registration(kernel: str, **launch: int) -> RegistrationDocument:
    """A function of the kernel's name."""
    numbers = ", ".join(f'"{k}": {v}' for k, v in launch.items())
    blueprint = f"""{{
      "modules": {{"bad": "bad.c"}}, "kernels": {{"{kernel}": "bad"}},
      "blueprint": {{"inputs": ["a"], "buffers": {{}}, "outputs": ["a"],
        "control_flow": [{{"ExecKernel": ["{kernel}", [{{"Ptr": "a"}}], {{{numbers}}}]}}]}}
    }}"""
    function = gpu_function(
        kernel,
        blueprint,
        inputs=["a"],
        outputs=["a"],
        files={"bad.c": source(kernel)},
        limits=Limits(wall_s=1.0 if kernel == "spin" else 30.0),  # a fault may take seconds
    )
    return RegistrationDocument(functions=(function,))


@pytest.fixture(scope="module")
def node(cuda: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    options = {"cuda": {"cache": str(tmp_path_factory.mktemp("code")), "pool_bytes": "4G"}}
    options["http"] = {"allow": "127.0.0.1"}
    settings = Settings(
        backends=("null", "process", "http", "cuda"), options=options, engines={"process": 1}
    )
    with Node(settings) as started:
        assert started.wait_ready(60)
        started.register(matmul.document())
        yield started


def assert_works(node: Node) -> None:
    inputs = matmul.example_inputs(1)
    outputs = node.invoke("matmul", **inputs)
    assert matmul.agrees(matmul.results(outputs), matmul.expected(inputs))


@pytest.mark.parametrize("name", ["heat_plate", "inference", "matmul", "vector_add"])
def test_a_node_gives_what_the_oracle_gives(node: Node, name: str) -> None:
    bundle = compositions.load(name)
    node.register(bundle.document())
    for seed in (1, 2, 3):
        inputs = bundle.example_inputs(seed)
        results = bundle.results(node.invoke(name, **inputs))
        assert bundle.agrees(results, bundle.expected(inputs))


def test_digits_on_the_gpu(node: Node) -> None:
    """The network alone: the rest of the composition is no matter of a GPU."""
    node.register(RegistrationDocument(functions=(digits.classify(),)))
    from dandelion.compositions.digits import oracle

    images = oracle.pixels_to_images(digits.held_out().pixels[:40])
    wanted = oracle.logits(images, digits.weights())
    for image, expected in zip(images, wanted, strict=True):
        found = node.invoke("classify", image=image)["logits"].numpy(np.float32)  # type: ignore[union-attr]
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("kernel", ["stray", "skewed", "trapped", "claims"])
def test_a_fault_ends_its_call_alone(node: Node, kernel: str) -> None:
    node.register(registration(kernel))
    with pytest.raises(Faulted, match=kernel):
        node.invoke(kernel, a=np.zeros(1, np.uint64))
    assert_works(node)


def test_an_endless_kernel_ends_at_its_limit(node: Node) -> None:
    node.register(registration("spin"))
    with pytest.raises(TimedOut):
        node.invoke("spin", a=np.zeros(1, np.uint64))
    assert_works(node)


def test_kernels_that_allocate_are_refused(node: Node) -> None:
    node.register(registration("grabs"))
    with pytest.raises(InvalidFunction, match="cannot allocate"):
        node.invoke("grabs", a=np.zeros(1, np.uint64))
    assert_works(node)


def test_launches_beyond_the_device_are_refused(node: Node) -> None:
    node.register(registration("fine", shared_mem_bytes=300_000))
    with pytest.raises(InvalidBlueprint, match="local memory"):
        node.invoke("fine", a=np.zeros(1, np.uint64))
    node.register(registration("absent"))
    with pytest.raises(DandelionError, match="absent"):
        node.invoke("absent", a=np.zeros(1, np.uint64))
    assert_works(node)


def test_more_than_the_pool_is_refused(node: Node) -> None:
    text = """{
      "modules": {"bad": "bad.c"}, "kernels": {"fine": "bad"},
      "blueprint": {"inputs": ["a"], "buffers": {"b": 8589934592}, "outputs": ["a"],
        "control_flow": [{"ExecKernel": ["fine", [{"Ptr": "b"}], {}]}]}
    }"""
    function = gpu_function(
        "large", text, inputs=["a"], outputs=["a"], files={"bad.c": source("fine")}
    )
    node.register(RegistrationDocument(functions=(function,)))
    with pytest.raises(DeviceFull):
        node.invoke("large", a=np.zeros(1, np.uint64))
    assert_works(node)
