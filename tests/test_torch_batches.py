"""Modules exported for several sizes of a batch: any number of rows, joined calls, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")

import torch
from torch import nn

from dandelion.cli.main import main
from dandelion.documents import RegistrationDocument, set_spec
from dandelion.errors import InvalidFunction, InvalidInput
from dandelion.export import ExportedModule, export_module
from dandelion.node import Node
from tests.torch_calls import SETTINGS

BATCH = (1, 4)


class Classifier(nn.Module):
    """Words and a picture to two results; weights are larger than code."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(2000, 16)
        self.picture = nn.Sequential(nn.Conv2d(2, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(32, 5)

    def forward(self, words: torch.Tensor, image: torch.Tensor) -> dict[str, torch.Tensor]:
        seen = self.picture(image).mean((2, 3))
        state = torch.cat([self.words(words).sum(1), seen], 1)
        return {"state": state, "scores": self.head(state).softmax(-1)}


def given(rows: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    words = torch.randint(0, 2000, (rows, 3), generator=generator)
    return {"words": words, "image": torch.randn(rows, 2, 6, 6, generator=generator)}


MODULE = Classifier().eval()


@pytest.fixture(scope="module")
def made() -> ExportedModule:
    return export_module(
        "classify", MODULE, tuple(given(1).values()), batch=BATCH[::-1], batch_wait_s=0.02
    )


@pytest.fixture(scope="module")
def node(made: ExportedModule) -> Iterator[Node]:
    with Node(SETTINGS) as node:
        node.register(functions=[made.function])
        yield node


def check(found: Any, rows: int) -> None:
    with torch.no_grad():
        for name, wanted in MODULE(**given(rows)).items():
            np.testing.assert_allclose(found[name].numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)


def arrays(rows: int) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in given(rows).items()}


def test_calls_have_any_number_of_rows(node: Node) -> None:
    for rows in (3, 1, 4, 2, 3, 1):
        check(node.invoke("classify", **arrays(rows)), rows)
    with pytest.raises(InvalidInput, match="at most 4"):
        node.invoke("classify", **arrays(5))
    with pytest.raises(InvalidInput, match="differ"):
        node.invoke("classify", words=arrays(2)["words"], image=arrays(3)["image"])
    check(node.invoke("classify", **arrays(2)), 2)


def test_waiting_calls_are_joined_up_to_the_largest_size(node: Node) -> None:
    async def one(rows: int) -> None:
        check(await node.invoke_async("classify", **arrays(rows)), rows)

    async def several() -> None:
        await asyncio.gather(*[one(1 + number % 2) for number in range(20)])

    flows = node._runtime.scheduler.calls.flows.values()
    asyncio.run(several())
    counts = next(flow.counts for flow in flows if flow.spec.name == "classify")
    assert counts.batches >= 5, "30 rows, at most 4 at a time"
    assert counts.failures == 0, "a batch with too many rows would have failed"


def test_the_document(made: ExportedModule) -> None:
    document, report = made.function, made.report
    shapes = {s.name: s.shape for s in map(set_spec, (*document.inputs, *document.outputs))}
    assert shapes["words"] == (-1, 3)
    assert shapes["scores"] == (-1, 5)
    assert document.batching is not None
    assert (document.batching.rows, document.batching.calls) == (4, 4)
    assert report.rows == BATCH
    assert report.static_bytes < 1.1 * report.weight_bytes, "both sizes use the same constants"
    assert any("1, 4" in line for line in report.lines())


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


class Summed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(0)


class Fixed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(3, 4)


X = torch.ones(3, 4)


@pytest.mark.parametrize(
    ("module", "examples", "batch", "error", "words"),
    [
        (Centred(), (X,), (2, 3), InvalidFunction, "a row of result 0 depends on other rows"),
        (Summed(), (X,), (2, 3), InvalidFunction, r"result 0 .* 2 rows has shape \[4\]"),
        (Fixed(), (X,), (3, 5), InvalidFunction, "3 at -2"),
        (Fixed(), (X,), (3,), InvalidFunction, "Fixed: RuntimeError"),
        (nn.ReLU(), (torch.ones(()),), (1, 2), InvalidInput, "has no rows"),
        (nn.ReLU(), (X,), (), InvalidInput, "different numbers"),
        (nn.ReLU(), (X,), (0, 4), InvalidInput, "different numbers"),
        (nn.ReLU(), (X,), (4, 4), InvalidInput, "different numbers"),
        (torch.export.export(nn.ReLU(), (X,)), (X,), (3,), InvalidInput, "are fixed"),
    ],
)
def test_what_cannot_be_batched_is_refused(
    module: object, examples: Any, batch: tuple[int, ...], error: type[Exception], words: str
) -> None:
    training = isinstance(module, nn.Module) and module.eval()
    with pytest.raises(error, match=words):
        export_module("refused", training or module, examples, batch=batch)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "nets.py"
    source.write_text("import torch\nlinear = torch.nn.Linear(3, 2).eval()\n")
    path = tmp_path / "linear.msgpack"
    command = ["export", f"{source}:linear", "--inputs", "float32[1,3]", "-o", str(path)]
    assert main([*command, "--batch", "1,3", "--batch-wait", "0.5"]) == 0
    shown = capsys.readouterr().out
    assert "calls of up to 3 rows" in shown
    assert "output: error" in shown, "it was called with two rows"
    (function,) = msgspec.msgpack.decode(path.read_bytes(), type=RegistrationDocument).functions
    assert function.batching is not None
    assert function.batching.wait_s == 0.5
    assert main([*command, "--batch", "1;3"]) == 2
