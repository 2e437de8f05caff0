"""Models in ONNX as functions, beside onnx' own reference; what is refused; the command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")
pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
pytest.importorskip("onnx2torch", reason="the extra 'onnx' is not installed")

import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from dandelion.cli.main import main
from dandelion.data import SetSpec
from dandelion.errors import InvalidFunction, InvalidInput
from dandelion.export import export_module, onnx_module
from dandelion.node import Node
from tests.torch_calls import SETTINGS, call

ERROR = 1e-5
LENGTH, WIDTH, HEADS = 8, 32, 4


class Model:
    """Builds a model in ONNX with random weights."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, kind: str, *inputs: str, **fields: Any) -> str:
        name = f"{kind.lower()}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **fields))
        return name

    def constant(self, values: Any, dtype: str = "float32") -> str:
        name = f"constant.{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape) * 0.3)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        return self.add("Add", self.add("MatMul", x, self.weight(inputs, outputs)),
                        self.weight(outputs))  # fmt: skip

    def save(self, path: Path, result: str, dtype: int, shape: Sequence[Any], rank: int = 2) -> Any:
        self.nodes.append(helper.make_node("Identity", [result], ["result.1"]))
        given = helper.make_tensor_value_info("input.1", dtype, shape)
        made = helper.make_tensor_value_info("result.1", TensorProto.FLOAT, ["out"] * rank)
        graph = helper.make_graph(self.nodes, "g", [given], [made], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 9
        onnx.save(model, str(path))
        return model


def network(path: Path, batch: Any = 1) -> Any:
    """Residual, depthwise and pooled, as in MobileNet."""
    m = Model()

    def convolved(x: str, inputs: int, outputs: int, size: int, groups: int = 1) -> str:
        w = m.weight(outputs, inputs // groups, size, size)
        y = m.add("Conv", x, w, kernel_shape=[size, size], pads=[size // 2] * 4, group=groups)
        norm = [m.constant(m.rng.random(outputs) + 0.5) for _ in range(4)]
        return m.add("BatchNormalization", y, *norm)

    start = m.add("Relu", convolved("input.1", 3, 8, 3))
    wide = m.add("Clip", convolved(start, 8, 16, 1), m.constant(0), m.constant(6))
    deep = m.add("HardSwish", convolved(wide, 16, 16, 3, groups=16))
    whole = m.add("Add", start, convolved(deep, 16, 8, 1))
    pooled = m.add(
        "GlobalAveragePool", m.add("MaxPool", whole, kernel_shape=[2, 2], strides=[2, 2])
    )
    result = m.add("Gemm", m.add("Flatten", pooled), m.weight(5, 8), m.weight(5), transB=1)
    shape = [batch, 3, 8, 8]
    return m.save(path, m.add("Softmax", result, axis=-1), TensorProto.FLOAT, shape)


def encoder(path: Path) -> Any:
    """A layer of BERT whose shapes are computed from that of the input, as exporters write it."""
    m = Model()
    x = m.add("Gather", m.weight(50, WIDTH), "input.1")
    rows = m.add("Slice", m.add("Shape", "input.1"), m.constant([0], "int64"),
                 m.constant([1], "int64"))  # fmt: skip
    rest = m.constant([LENGTH, HEADS, WIDTH // HEADS], "int64")
    apart = m.add("Concat", rows, rest, axis=0)
    whole = m.add("Concat", rows, m.constant([LENGTH, WIDTH], "int64"), axis=0)

    def heads(order: list[int]) -> str:
        return m.add("Transpose", m.add("Reshape", m.linear(x, WIDTH, WIDTH), apart), perm=order)

    scores = m.add("MatMul", heads([0, 2, 1, 3]), heads([0, 2, 3, 1]))
    weights = m.add("Softmax", m.add("Mul", scores, m.constant(0.35)), axis=-1)
    seen = m.add("Transpose", m.add("MatMul", weights, heads([0, 2, 1, 3])), perm=[0, 2, 1, 3])
    y = m.add("Add", x, m.linear(m.add("Reshape", seen, whole), WIDTH, WIDTH))
    y = m.add("LayerNormalization", y, m.weight(WIDTH), m.weight(WIDTH), axis=-1)
    gelu = m.add("Add", m.add("Erf", y), m.constant(1))
    first = m.add("Gather", m.add("Mul", y, gelu), m.constant(0, "int64"), axis=1)
    return m.save(path, m.linear(first, WIDTH, 3), TensorProto.INT64, [2, LENGTH])


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(SETTINGS) as made:
        yield made


@pytest.mark.parametrize(
    ("write", "given"),
    [
        (network, np.random.default_rng(1).standard_normal((1, 3, 8, 8), np.float32)),
        (encoder, np.random.default_rng(1).integers(0, 50, (2, LENGTH))),
    ],
)
def test_a_model_computes_what_onnx_does(
    node: Node, write: Any, given: Any, tmp_path: Path
) -> None:
    model = write(tmp_path / "model.onnx")
    module, examples, inputs, outputs = onnx_module(tmp_path / "model.onnx")
    assert (inputs, outputs) == (("input_1",), ("result_1",))
    made = export_module("model", module, examples, inputs=inputs, outputs=outputs)
    found = call(node, made.function, {"input_1": given})["result_1"]
    (wanted,) = ReferenceEvaluator(model).run(None, {"input.1": given})
    assert np.abs(found - wanted).max() <= ERROR * np.abs(wanted).max()


def test_open_shapes_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net-1.onnx"
    network(path, batch="rows")
    with pytest.raises(InvalidInput, match="rows"):
        onnx_module(path)
    with pytest.raises(InvalidInput, match="1 inputs, and 2 types"):
        onnx_module(path, [SetSpec("x", "float32", (1,))] * 2)
    command = ["export", str(path), "--no-check", "-o", str(tmp_path / "net.msgpack")]
    assert main(command) == 1
    assert "--inputs" in capsys.readouterr().err
    command += ["--inputs", "float32[2,3,8,8]"]
    assert main([*command, "--batch", "1,2"]) == 1
    assert not (tmp_path / "net.msgpack").exists()
    assert main(command) == 0
    assert b"net_1" in (tmp_path / "net.msgpack").read_bytes()


def test_what_cannot_be_a_function_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(InvalidInput, match="cannot be read as ONNX"):
        onnx_module(path)
    m = Model()
    m.save(path, m.add("Trilu", "input.1"), TensorProto.FLOAT, [2, 2])
    with pytest.raises(InvalidFunction, match="Trilu"):
        onnx_module(path)
    m = Model()
    places = m.add("Cast", m.add("NonZero", "input.1"), to=TensorProto.FLOAT)
    m.save(path, places, TensorProto.FLOAT, [2, 2])
    with pytest.raises(InvalidFunction, match="NonZero: a number or a shape depends on values"):
        onnx_module(path)
