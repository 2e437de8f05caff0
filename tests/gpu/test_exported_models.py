"""Exported models on a real device: errors beside torch's own, times beside torch's CUDA graphs.

Times are printed as JSON, a line for each case (``pytest -s``). ``EXPORT_CASES`` in the environment
is a part of a case's name: only cases with it are run, such as ``_peak`` or ``bert``.
``EXPORT_RUNS`` is how often each is measured, in turns; it is exported once.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")

import torch
import uvloop

from dandelion.data import ItemSet
from dandelion.export.report import relative_error
from dandelion.export.torch_binding import example_arrays
from dandelion.function import FunctionSpec
from dandelion.node import Node, Settings
from dandelion.set_values import item_set
from tests import torch_models
from tests.gpu.exported_cases import Case, exported, module_of, read

CALLS = 60
ERRORS = {"f32": 1e-4, "tf32": 5e-3, "bf16": 5e-2}
MEASURED = [
    (name, batch, precision)
    for name in ("resnet50", "vit_b_16", "bert_base")
    for batch in (1, 16)
    for precision in ("f32", "tf32", "bf16")
]
OTHERS = [
    (name, 1, "tf32") for name in ("resnet18", "gpt2", "unet", "mobilenet_v3", "diffusion_step")
] + [("lstm", 1, "f32")]  # of which torch computes no product with tf32
ALL = [
    Case(*one, route)
    for route in ("peak", "portable")
    for one in (*MEASURED, *OTHERS)
    if not (route == "peak" and one[2] == "f32" and one in MEASURED)
]
RUNS = int(os.environ.get("EXPORT_RUNS", "1"))
CASES = [case for case in ALL if os.environ.get("EXPORT_CASES", "") in case.name]


@pytest.fixture(scope="module")
def documents(cuda: str, tmp_path_factory: pytest.TempPathFactory) -> Mapping[Case, Future[Path]]:
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return exported(CASES, cuda, tmp_path_factory.mktemp("documents"))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An application's own loop."""
    running = uvloop.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()


@pytest.fixture(scope="module")
def node(
    documents: Mapping[Case, Future[Path]],
    loop: asyncio.AbstractEventLoop,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Node]:
    """A node on that loop."""
    cache = str(tmp_path_factory.mktemp("code"))
    options = {"cuda": {"cache": cache, "pool_bytes": "8G", "weights": "4G", "workers": "0"}}
    settings = Settings(
        backends=("null", "cuda"), options=options, arena_bytes=4 << 30, default_deadline_s=300
    )
    started = Node(settings)
    asyncio.run_coroutine_threadsafe(started.__aenter__(), loop).result()
    try:
        assert started.wait_ready(60)
        yield started
    finally:
        started.close()


def timed(action: Callable[[], object]) -> float:
    """The median of some calls, in milliseconds."""
    took = []
    for _ in range(CALLS):
        start = time.perf_counter()
        action()
        took.append(time.perf_counter() - start)
    return float(np.median(took)) * 1e3


async def awaited(node: Node, name: str, sets: Mapping[str, ItemSet]) -> float:
    """The median of calls that are awaited on the node's loop, in milliseconds."""
    took = []
    for _ in range(CALLS):
        start = time.perf_counter()
        await node.invoke_sets_async(name, sets)
        took.append(time.perf_counter() - start)
    return float(np.median(took)) * 1e3


def arrays_of(results: Any, names: tuple[str, ...]) -> dict[str, np.ndarray[Any, Any]]:
    leaves = torch.utils._pytree.tree_leaves(results)
    return {n: one.double().cpu().numpy() for n, one in zip(names, leaves, strict=True)}


def in_double(case: Case, names: tuple[str, ...]) -> dict[str, np.ndarray[Any, Any]]:
    """What the module gives in double precision, without torch's approximations."""
    module, examples = torch_models.model(case.model, 1, case.batch)
    wide = module.double().cuda()
    given = [one.double() if one.is_floating_point() else one for one in examples]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.inference_mode():
            return arrays_of(wide(*(one.cuda() for one in given)), names)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def on_cuda(
    module: Any, examples: tuple[Any, ...], names: tuple[str, ...]
) -> tuple[dict[str, np.ndarray[Any, Any]], float]:
    """What torch gives, and the median time of its CUDA graph with the copies of a call."""
    moved = copy.deepcopy(module).cuda()
    host = [one.pin_memory() for one in examples]
    given = [one.cuda() for one in examples]
    with torch.inference_mode():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                moved(*given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = moved(*given)

        def call() -> object:
            for target, source in zip(given, host, strict=True):
                target.copy_(source, non_blocking=True)
            graph.replay()
            return [one.cpu() for one in torch.utils._pytree.tree_leaves(results)]

        call()
        return arrays_of(results, names), timed(call)


def in_arena(node: Node, given: ItemSet) -> ItemSet:
    """The same in memory that the device's engine reads, as torch's inputs are in pinned memory."""
    array = np.ascontiguousarray(given.numpy())
    view = node.acquire(array.nbytes).write(0, array.reshape(-1).view(np.uint8).data)
    return item_set(given.name, np.frombuffer(view, array.dtype).reshape(array.shape))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("run", range(RUNS))
def test_a_model(
    node: Node,
    loop: asyncio.AbstractEventLoop,
    documents: Mapping[Case, Future[Path]],
    case: Case,
    run: int,
) -> None:
    module, examples = module_of(case)
    made = read(documents[case].result())
    node.register(made.function)
    sets = {k: item_set(k, v) for k, v in example_arrays(examples, made.inputs).items()}

    def call() -> Any:
        return node.invoke_sets(case.name, sets).sets

    for _ in range(5):
        results = call()
    found = {label: results[label].numpy().copy() for label in made.outputs}
    ours_ms = timed(call)
    sets = {name: in_arena(node, given) for name, given in sets.items()}
    arena_ms = timed(call)
    awaiting = awaited(node, case.name, sets)
    awaited_ms = asyncio.run_coroutine_threadsafe(awaiting, loop).result()
    last = node.invoke_sets(case.name, sets).trace.calls[-1]
    stages = {name: took // 1000 for name, took in last.stages.items()}
    expected = in_double(case, made.outputs)
    torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = case.precision == "tf32"
    own, torch_ms = on_cuda(module, examples, made.outputs)
    errors = {n: relative_error(found[n], expected[n]) for n in made.outputs}
    torch_errors = {n: relative_error(own[n], expected[n]) for n in made.outputs}
    line = {
        "run": run, "model": case.model, "batch": case.batch, "precision": case.precision,
        "route": case.route, "dandelion_ms": round(ours_ms, 3),
        "torch_graph_ms": round(torch_ms, 3), "ratio": round(ours_ms / torch_ms, 3),
        "arena_ms": round(arena_ms, 3), "arena_ratio": round(arena_ms / torch_ms, 3),
        "awaited_ms": round(awaited_ms, 3), "awaited_ratio": round(awaited_ms / torch_ms, 3),
        "stages_us": stages,
        "launches": made.report.launches, "error": max(errors.values()),
        "torch_error": max(torch_errors.values()), "export_s": round(made.report.export_s, 1),
    }  # fmt: skip
    print(json.dumps(line), flush=True)
    node.remove(FunctionSpec, case.name)
    assert max(errors.values()) <= max(ERRORS["f32"], 1.5 * max(torch_errors.values())), line
    assert max(errors.values()) <= ERRORS[case.precision], line
