"""What does an exported network cost on processors, against torch in the same program?

Three convolutional networks of 0.2 to 1 ms, a residual network and an encoder of texts. torch calls
the module eagerly, with a thread for each core. A node in the same program runs the exported
function on PoCL, in a confined process; calls block, in turns with torch, or are awaited on the
node's loop, right after that. The answers are compared first.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from dandelion.documents import RegistrationDocument
from dandelion.errors import BackendUnavailable, InternalError
from dandelion.node import Node
from dandelion.settings import Settings

from ..experiment import Bench, experiment
from ..records import Axis, Findings, Metric, Panel, Plot, Row, Skip, Unit, at_most
from ..samples import P50, P99, Samples
from ..systems.nodes import MIB, gpu_settings, one_item, open_node, wait_engines
from ..systems.served_networks import network, torch_library
from ..timing import in_turns

TORCH = "torch, eager"
BLOCKING, AWAITED = "dandelion, a blocking call", "dandelion, an awaited call"
BAR = 2.0
BLOCK = 500
"""Calls of one kind in a row. Threads of torch poll after a call; the node does not meanwhile."""
WARM_S = 8.0
"""Of calls before: the engine finds out whether kernels should run in several threads."""
ERROR = 1e-5
OVER = Metric("ratio", "median over torch's", Unit.RATIO)
LARGE = {"ResNet-18, 224 x 224": "images", "encoder, 6 layers, 128 words": "encoder"}
LARGE_CALLS = 60


def _networks(torch: Any, bench: Bench) -> Iterator[tuple[str, Any, Any]]:
    """Make networks with random weights: the name, the module and its input."""
    for name, (module, shape) in _small_networks(torch).items():
        yield name, module, torch.rand(shape)
    for name, kind in LARGE.items():
        made = network(kind, "small" if bench.quick else "full")
        yield name, made.module, torch.from_numpy(made.request(0))


def _small_networks(torch: Any) -> Mapping[str, tuple[Any, tuple[int, ...]]]:
    """Return networks, and the shapes of their inputs, by name."""
    nn = torch.nn
    torch.manual_seed(1)

    def block(inputs: int, outputs: int, stride: int = 1) -> list[Any]:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    def head(channels: int) -> list[Any]:
        return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]

    digits = [nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    digits += [nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    digits += [nn.Flatten(), nn.Linear(16 * 49, 10)]
    objects = [*block(3, 32), *block(32, 32), nn.MaxPool2d(2)]
    objects += [*block(32, 64), *block(64, 64), nn.MaxPool2d(2), *block(64, 128), *head(128)]
    photos = [*block(3, 16), *block(16, 16), *block(16, 32, 2), *block(32, 32)]
    photos += [*block(32, 64, 2), *block(64, 64), *head(64)]
    made = {
        "2 convolutions, 28 x 28": (digits, (1, 1, 28, 28)),
        "5 convolutions, 32 x 32": (objects, (1, 3, 32, 32)),
        "6 convolutions, 64 x 64": (photos, (1, 3, 64, 64)),
    }
    return {name: (nn.Sequential(*layers).eval(), shape) for name, (layers, shape) in made.items()}


@experiment(
    "exported_cpu", group="models", needs_device=True,
    question="What does an exported network cost on processors, against torch?",
)  # fmt: skip
def exported_cpu(bench: Bench) -> Findings:
    """Call each network in all ways."""
    if bench.gpu:
        return Findings((), skips=(Skip("small networks", "this is about processors"),))
    try:
        torch = torch_library()
    except BackendUnavailable as error:
        return Findings((), skips=(Skip(TORCH, str(error)),))
    from dandelion.export import torch_function

    rows: list[Row] = []
    for number, (name, module, given) in enumerate(_networks(torch, bench)):
        bench.say(f"exporting: {name}")
        function = torch_function(
            f"network{number}", module, (given,), inputs=["x"], outputs=["y"], device="cpu"
        )
        document = RegistrationDocument(functions=(function,))
        bench.say(name)
        rows += _measured(bench, torch, module, given, name, document)
    panel = Panel(
        "exported_cpu", "Networks on processors, by network", Axis("network"),
        (P50, P99, OVER), tuple(rows), Plot.BARS, TORCH,
    )  # fmt: skip
    worst = {
        kind: max(r.values["ratio"] for r in rows if r.system == kind and r.x not in LARGE)
        for kind in (BLOCKING, AWAITED)
    }
    budgets = [
        at_most(
            f"small exported network on processors, {kind}, slowest",
            ratio,
            BAR,
            "x",
            of=" torch eager",
        )
        for kind, ratio in worst.items()
    ]
    return Findings((panel,), budgets=tuple(budgets))


def _measured(
    bench: Bench, torch: Any, module: Any, given: Any, name: str, document: RegistrationDocument
) -> list[Row]:
    function = document.functions[0].name
    sets = one_item("x", given.numpy().tobytes())
    calls = bench.pick(20, 4 * BLOCK, 8 * BLOCK) if name not in LARGE else LARGE_CALLS
    settings = gpu_settings(bench.backend, 0, "512M", 512 * MIB) | {"cache_bytes": 0}

    def eager() -> Any:
        with torch.inference_mode():
            return module(given)

    wanted = eager().numpy()

    def check(found: bytes) -> None:
        error = np.abs(np.frombuffer(found, np.float32) - wanted.ravel()).max()
        if error > ERROR * np.abs(wanted).max():
            raise InternalError(f"{name} gave a wrong result")

    timed = _in_turns(bench, settings, document, eager, function, sets, check, calls)
    timed[AWAITED] = asyncio.run(_awaited(bench, settings, document, function, sets, calls))
    base = timed[TORCH].median
    return [
        Row(system, name, samples.values() | {"ratio": samples.median / base}, samples.count)
        for system, samples in timed.items()
    ]


def _in_turns(
    bench: Bench, settings: Mapping[str, object], document: RegistrationDocument,
    eager: Callable[[], object], function: str, sets: Any, check: Callable[[bytes], None],
    calls: int,
) -> dict[str, Samples]:  # fmt: skip
    with open_node(settings, 1) as node:
        node.register(document)
        end_s = time.monotonic() + bench.pick(0.1, WARM_S, WARM_S)
        found = None
        while time.monotonic() < end_s:
            found = node.invoke_sets(function, sets).sets["y"]
        assert found is not None
        check(found.only().bytes())
        return in_turns(
            {TORCH: eager, BLOCKING: lambda: node.invoke_sets(function, sets)},
            count=calls, warm_up=20, block=min(BLOCK, max(1, calls // 4)),
        )  # fmt: skip


async def _awaited(
    bench: Bench, settings: Mapping[str, object], document: RegistrationDocument, function: str,
    sets: Any, calls: int,
) -> Samples:  # fmt: skip
    clock, found = time.perf_counter_ns, Samples([])
    async with contextlib.AsyncExitStack() as closing:
        node = await closing.enter_async_context(Node(msgspec.convert(settings, Settings)))
        await asyncio.to_thread(wait_engines, node, 1)
        await asyncio.to_thread(node.register, document)
        begin_s = time.monotonic() + bench.pick(0.1, WARM_S, WARM_S)
        while len(found.ns) < calls:
            began_ns = clock()
            await node.invoke_sets_async(function, sets)
            if time.monotonic() > begin_s:
                found.ns.append(clock() - began_ns)
    return found
