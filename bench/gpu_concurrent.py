"""What do workers that share a device buy, and what does a fault of one of them cost?

``python -m dandelion.bench.gpu_concurrent [--keep MACHINE]``. Nodes with no worker, two and eight
are compared on the same device, each asked by as many threads as keep its engines busy; throughput is
counted over a fixed time. Then eight callers at once, one of which touches memory that is not its
own: one error, seven right results, and the time until the device serves again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dandelion.bench.measure import Sample, keep_name, report
from dandelion.compositions.inference import bundle as inference
from dandelion.compositions.matmul import bundle as matmul

from dandelion.documents import FunctionDocument, RegistrationDocument, gpu_function
from dandelion.errors import DandelionError
from dandelion.function import Limits
from dandelion.node import Node, Settings

BACKEND = "cuda|hip"
SECONDS = 3.0
QUESTION = "what do workers that share a device buy?"
SOURCE = """#include "dandelion.h"
KERNEL void spin(GLOBAL u64 *a, u64 rounds) {
    u64 x = a[0] + LOCAL_ID(0);
    for (u64 i = 0; i < rounds; i++) { x = x * 6364136223846793005UL + 1442695040888963407UL; }
    if (LOCAL_ID(0) == 0) { a[0] = x; }
}
KERNEL void stray(GLOBAL u64 *a) {
    GLOBAL volatile u64 *far = (GLOBAL volatile u64 *)(u64)8;
    a[0] = *far;
}
"""


def function(name: str, arguments: str) -> FunctionDocument:
    """A function of one kernel, one block of 32 threads, in place on its input `a`."""
    launch = f"""["{name}", [{{"Ptr": "a"}}{arguments}], {{"block_dim_x": {{"Absolute": 32}}}}]"""
    blueprint = f"""{{
      "modules": {{"work": "work.c"}}, "kernels": {{"{name}": "work"}},
      "blueprint": {{"inputs": ["a"], "buffers": {{}}, "outputs": ["a"],
        "control_flow": [{{"ExecKernel": {launch}}}]}}
    }}"""
    files = {"work.c": SOURCE}
    limits = Limits(wall_s=10.0)
    return gpu_function(name, blueprint, inputs=["a"], outputs=["a"], files=files, limits=limits)


DOCUMENTS = (
    matmul.document(),
    inference.document(),
    RegistrationDocument(
        functions=(function("spin", ', {"Constant": 2000000}'), function("stray", ""))
    ),
)
ONE = np.ones(1, np.uint64)


def start(workers: int) -> Node:
    """Start a node whose device has so many workers, and wait for them."""
    options = {name: {"workers": str(workers)} for name in BACKEND.split("|")}
    node = Node(Settings(backends=(BACKEND,), options=options, max_waiting=64))
    node.start()
    while len([e for e in node.engines() if e.state == "ready"]) < workers + 1:
        if not node.wait_ready(60.0) or any(e.reason and e.name for e in node.engines()):
            raise SystemExit(f"the engines did not come up: {node.engines()}")
        if not any(e.state in ("ready", "starting") for e in node.engines()):
            raise SystemExit("; ".join(e.reason for e in node.engines()))
        time.sleep(0.05)
    for document in DOCUMENTS:
        node.register(document)
    return node


def throughput(call: Callable[[], object], threads: int) -> float:
    """Calls in a second, with so many callers that each wait for their own."""
    counts = [0] * threads
    end = time.monotonic() + SECONDS

    def ask(caller: int) -> None:
        while time.monotonic() < end:
            call()
            counts[caller] += 1

    begin = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(ask, i) for i in range(threads)]:
            done.result()
    return sum(counts) / (time.monotonic() - begin)


@dataclass(frozen=True, slots=True)
class Load:
    """Something that is called again and again."""

    name: str
    function: str
    inputs: Mapping[str, Any]


LOADS = (
    Load("one-block kernel", "spin", {"a": ONE}),
    Load("inference x500, unsaturated", "inference", inference.example_inputs(1, 500, 1)),
    Load("inference x100, batch 16, saturated", "inference", inference.example_inputs(1, 100, 16)),
)


def measure(workers: int) -> dict[str, float]:
    """Give the throughput of every load, and say where the calls went."""
    node = start(workers)
    try:
        found = {}
        for load in LOADS:
            call = partial(node.invoke, load.function, **load.inputs)
            for _ in range(4 * (workers + 1)):
                call()
            found[load.name] = throughput(call, max(2, 2 * workers))
        for engine in node.engines():
            if engine.name:
                print(
                    f"{workers} workers: {engine.name} {engine.calls} calls, {engine.description}"
                )
        return found
    finally:
        node.close()


def fault(workers: int) -> tuple[float, int, int]:
    """One bad call among eight: seconds until the device serves, errors, right results."""
    node = start(workers)
    inputs = matmul.example_inputs(1)
    wanted = matmul.expected(inputs)
    barrier = threading.Barrier(8)

    def good(_: int) -> bool:
        barrier.wait()
        return bool(matmul.agrees(matmul.results(node.invoke("matmul", **inputs)), wanted))

    def bad() -> DandelionError | None:
        barrier.wait()
        try:
            node.invoke("stray", a=ONE)
        except DandelionError as error:
            return error
        return None

    try:
        for _ in range(8):
            node.invoke("matmul", **inputs)
        with ThreadPoolExecutor(8) as pool:
            failed = pool.submit(bad)
            results = list(pool.map(good, range(7)))
            error = failed.result()
        begin = time.monotonic()
        node.invoke("matmul", **inputs)
        again = time.monotonic() - begin
        print(f"{workers} workers: the bad call got {type(error).__name__}: {error}"[:160])
        return again, int(error is not None), sum(results)
    finally:
        node.close()


def main() -> None:
    """Run and print."""
    samples = []
    base = measure(0)
    for load, rate in base.items():
        samples.append(Sample(f"{load}: sequential, us a call", 1, 1e6 / rate, 0, 0))
    for workers, budget in ((2, ">= 1.9x unsaturated"), (8, ">= 7x one-block")):
        for load, rate in measure(workers).items():
            samples.append(
                Sample(
                    f"{load}: {workers} workers, throughput ratio",
                    *(1, 1e6 / rate, 0, 0),
                    baseline="sequential",
                    ratio=rate / base[load],
                    budget=budget,
                )
            )
    for workers in (0, 2, 8):
        again_s, errors, right = fault(workers)
        name = (
            f"fault among 8 callers, {workers} workers: {errors} error, {right} right; serves after"
        )
        samples.append(Sample(name, 1, again_s * 1e6, 0, 0, budget="1 error, 7 right"))
    report("gpu_concurrent", QUESTION, samples, keep_name())


if __name__ == "__main__":
    main()
