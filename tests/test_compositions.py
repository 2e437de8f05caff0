"""The kernels against their oracles on PoCL, at sizes that fit the blocks and sizes that do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dandelion.backends.gpu as gpu
import dandelion.compositions as compositions
import numpy as np
import numpy.typing as npt
import pytest
from dandelion.backends.gpu import pocl
from dandelion.compositions.digits import bundle as digits
from dandelion.compositions.digits import decode, tally
from dandelion.compositions.digits import oracle as digit_oracle
from dandelion.compositions.heat_plate import bundle as heat_plate
from dandelion.compositions.heat_plate import oracle as heat_oracle
from dandelion.compositions.inference import bundle as inference
from dandelion.compositions.inference import oracle as inference_oracle
from dandelion.compositions.matmul import bundle as matmul
from dandelion.compositions.vector_add import bundle as vector_add

from dandelion.blueprint import parse_blueprint
from dandelion.data import Item, ItemSet
from dandelion.documents import RegistrationDocument
from dandelion.errors import Unknown
from dandelion.node import Node, Settings
from dandelion.set_values import item_set

FOLDERS = Path(compositions.__file__).parent
Array = npt.NDArray[Any]


class Pocl:
    """Launches a kernel of one source file on numpy arrays, without the engine."""

    def __init__(self) -> None:
        self.cl = pytest.importorskip("pyopencl")
        pocl.prepare_environment()
        device = self.cl.get_platforms()[0].get_devices()[0]
        pocl.repair_cpu(device.int_ptr, device.version)
        self.context = self.cl.Context([device])
        self.queue = self.cl.CommandQueue(self.context)
        self.programs: dict[str, Any] = {}

    def launch(
        self,
        source: str,
        kernel: str,
        arguments: Sequence[Array | int],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
    ) -> list[Array]:
        """Run one kernel; arrays are copied in and out, ints are 64-bit scalars."""
        buffers = [
            self.cl.Buffer(self.context, self.cl.mem_flags.COPY_HOST_PTR, hostbuf=a)
            if isinstance(a, np.ndarray)
            else np.int64(a)
            for a in arguments
        ]
        items = tuple(g * b for g, b in zip(grid, block, strict=True))
        self.kernel(source, kernel)(self.queue, items, block, *buffers)
        results = []
        for argument, buffer in zip(arguments, buffers, strict=True):
            if isinstance(argument, np.ndarray):
                results.append(np.empty_like(argument))
                self.cl.enqueue_copy(self.queue, results[-1], buffer)
        return results

    def kernel(self, source: str, name: str) -> Any:
        if source not in self.programs:
            options = [f"-I{Path(gpu.__file__).parent}", "-Werror"]
            text = (FOLDERS / source).read_text()
            self.programs[source] = self.cl.Program(self.context, text).build(options)
        return self.cl.Kernel(self.programs[source], name)


@pytest.fixture(scope="module")
def device() -> Pocl:
    return Pocl()


def relative_error(got: Array, wanted: Array) -> float:
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


# --- kernels --------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "blocks"), [(256, 1), (1, 1), (1000, 4), (1000, 9)])
def test_add_equals_numpy(device: Pocl, count: int, blocks: int) -> None:
    a, b = np.random.default_rng(count).random((2, count), np.float32)
    # The buffer is longer than its stated size: the bytes behind must not change.
    guarded = np.full(count + 7, -1, np.float32)
    arguments = (a, a.nbytes, b, b.nbytes, guarded, 4 * count)
    *_, total = device.launch("vector_add/add.c", "add", arguments, (blocks, 1, 1), (256, 1, 1))
    assert np.array_equal(total[:count], a + b)
    assert (total[count:] == -1).all()


def test_add_stops_at_the_shortest_buffer(device: Pocl) -> None:
    a, b = np.ones(10, np.float32), np.ones(6, np.float32)
    arguments = (a, a.nbytes, b, b.nbytes, np.zeros(10, np.float32), 40)
    *_, total = device.launch("vector_add/add.c", "add", arguments, (1, 1, 1), (256, 1, 1))
    assert total.tolist() == [2] * 6 + [0] * 4


@pytest.mark.parametrize("side", [1, 2, 31, 32, 33, 100, 128])
@pytest.mark.parametrize("blocks", [1, 4, 5])
def test_matmul_equals_numpy_for_any_side_and_grid(device: Pocl, side: int, blocks: int) -> None:
    rng = np.random.default_rng(side)
    a = rng.integers(-(2**63), 2**63 - 1, (side, side), np.int64)  # sums wrap
    guarded = np.full(side * side + 9, 77, np.int64)
    _, b = device.launch(
        "matmul/matmul.c", "matmul", (a, a.nbytes, guarded), (blocks, blocks, 1), (32, 32, 1)
    )
    assert np.array_equal(b[: side * side].reshape(side, side), a @ a.T)
    assert (b[side * side :] == 77).all()


@pytest.mark.parametrize("shape", [(1, 224, 224), (3, 33, 17), (2, 5, 64), (1, 2, 2), (2, 1, 9)])
def test_layer_equals_numpy(device: Pocl, shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(sum(shape))
    images = rng.standard_normal(shape, np.float32)
    weights = rng.standard_normal((5, 5), np.float32)
    batch, height, width = shape
    block = (32, 8, 1)
    grid = (-(-width // 32), -(-height // 8), batch)
    source, sides = "inference/layer.c", (width, height)
    pooled = np.full((batch, height // 2, width // 2), -1, np.float32)
    arguments = (images, images.nbytes, weights, np.zeros_like(images), *sides)
    *_, convolved = device.launch(source, "convolution", arguments, grid, block)
    arguments = (convolved, convolved.nbytes, np.zeros_like(images), *sides)
    *_, activated = device.launch(source, "relu", arguments, grid, block)
    assert np.array_equal(activated, np.maximum(convolved, 0))
    if not pooled.size:
        return
    arguments = (activated, activated.nbytes, pooled, *sides)
    *_, pooled = device.launch(source, "max_pool", arguments, grid, block)
    wanted = inference_oracle.layer(images, weights)
    assert relative_error(pooled, wanted) <= 1e-6  # ten times better than promised


def test_layer_leaves_images_beyond_the_buffer_alone(device: Pocl) -> None:
    images = np.ones((2, 8, 8), np.float32)
    arguments = (
        images,
        images[:1].nbytes,
        np.ones((5, 5), np.float32),
        np.zeros_like(images),
        8,
        8,
    )
    *_, convolved = device.launch(
        "inference/layer.c", "convolution", arguments, (1, 1, 2), (8, 8, 1)
    )
    assert convolved[0, 4, 4] == 25
    assert not convolved[1].any()


def test_oracle_convolution_by_hand() -> None:
    image = np.zeros((1, 4, 4), np.float32)
    image[0, 1, 2] = 2
    weights = np.arange(25, dtype=np.float32).reshape(5, 5)
    # Correlation: the pixel at (1, 2) meets, for the result at (0, 0), the weight at (+1, +2).
    result = inference_oracle.layer(image, weights)
    assert result.shape == (1, 2, 2)
    assert result[0, 0, 0] == 2 * max(weights[3, 4], weights[3, 3], weights[2, 4], weights[2, 3])


def classify(device: Pocl, image: Array) -> Array:
    """Run the six launches of ``classify.json`` by hand."""
    w = digits.weights()
    filters, hidden = w["conv_bias"].size, w["hidden_bias"].size
    source = "digits/network.c"
    arguments: tuple[Array | int, ...]
    arguments = (image, w["conv_weights"], w["conv_bias"], zeros(filters * 64), 8, filters)
    *_, maps = device.launch(source, "convolution", arguments, (1, 1, filters), (8, 8, 1))
    (maps,) = device.launch(source, "relu", (maps, maps.nbytes), (filters, 1, 1), (64, 1, 1))
    arguments = (maps, zeros(filters * 16), 8, filters)
    *_, pooled = device.launch(source, "max_pool", arguments, (1, 1, filters), (4, 4, 1))
    arguments = (pooled, w["hidden_weights"], w["hidden_bias"], zeros(hidden), pooled.size, hidden)
    *_, inner = device.launch(source, "dense", arguments, (hidden, 1, 1), (64, 1, 1))
    (inner,) = device.launch(source, "relu", (inner, inner.nbytes), (1, 1, 1), (64, 1, 1))
    arguments = (inner, w["output_weights"], w["output_bias"], zeros(10), hidden, 10)
    *_, logits = device.launch(source, "dense", arguments, (10, 1, 1), (64, 1, 1))
    return logits


def zeros(count: int) -> Array:
    return np.zeros(count, np.float32)


def test_network_equals_numpy(device: Pocl) -> None:
    images = digit_oracle.pixels_to_images(digits.held_out().pixels[:12])
    wanted = digit_oracle.logits(images, digits.weights())
    for image, scores in zip(images, wanted, strict=True):
        assert relative_error(classify(device, image), scores) <= 2e-6  # promised are 1e-5


@pytest.mark.parametrize("inputs", [1, 63, 64, 65, 200])
def test_dense_with_any_number_of_inputs(device: Pocl, inputs: int) -> None:
    rng = np.random.default_rng(inputs)
    values = rng.standard_normal(inputs).astype("f4")
    weights = rng.standard_normal((3, inputs)).astype("f4")
    bias = rng.standard_normal(3).astype("f4")
    arguments = (values, weights, bias, np.full(5, 9, np.float32), inputs, 3)
    *_, sums = device.launch("digits/network.c", "dense", arguments, (5, 1, 1), (64, 1, 1))
    assert relative_error(sums[:3], weights.astype("f8") @ values + bias) <= 1e-6
    assert sums[3:].tolist() == [9, 9]


# --- blueprints and documents ---------------------------------------------------------------


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.c")}


@pytest.mark.parametrize(
    "path", sorted(FOLDERS.glob("*/*.json")), ids=lambda path: "/".join(path.parts[-2:])
)
def test_blueprints_pass_the_static_check(path: Path) -> None:
    assert parse_blueprint(path.read_bytes(), files_of(path.parent)).kernels


def test_both_spellings_of_matmul_mean_the_same() -> None:
    thesis, canonical = (
        parse_blueprint((FOLDERS / "matmul" / name).read_bytes()).blueprint
        for name in ("matmul.thesis.json", "matmul.json")
    )
    assert thesis == canonical


def test_every_folder_is_listed() -> None:
    folders = {p.parent.name for p in Path(compositions.__file__).parent.glob("*/bundle.py")}
    assert set(compositions.names()) == folders >= {"digits", "matmul", "render_logs"}
    with pytest.raises(Unknown) as caught:
        compositions.load("digit")
    assert caught.value.nearest == "digits"


@pytest.mark.parametrize("name", compositions.names())
def test_documents_declare_what_they_apply(name: str) -> None:
    bundle = compositions.load(name)
    document = bundle.document()
    (text,) = document.compositions
    assert f"composition {bundle.NAME} (" in text
    for function in document.functions:
        names = [s.partition(":")[0] for s in map(str, function.inputs)]
        declaration = f"function {function.name} ({', '.join(names)}) =>"
        assert declaration in " ".join(text.split())
        assert function.static.keys() <= set(names)


@pytest.mark.parametrize("name", compositions.names())
def test_results_that_are_slightly_wrong_do_not_agree(name: str) -> None:
    bundle = compositions.load(name)
    inputs = bundle.example_inputs(3)
    again = bundle.example_inputs(3)
    expected = bundle.expected(inputs)
    assert bundle.agrees(bundle.expected(again), expected)
    (output,) = expected
    wrong = expected[output].copy()
    wrong.flat[-1] += wrong.dtype.type(
        1e-4 * abs(wrong).max() + 1 if wrong.dtype.kind == "i" else 1e-3
    )
    assert not bundle.agrees({output: wrong}, expected)
    assert not bundle.agrees({output: expected[output][:-1]}, expected)


def test_static_sets_are_whole() -> None:
    function = digits.classify()
    for name, items in function.static.items():
        ((_, value),) = items.items()
        assert not isinstance(value, str)
        assert value.bytes() == digits.weights()[name].tobytes()
    (add,) = vector_add.document().functions
    assert len(add.static) == 1


def walk(device: Pocl, requests: ItemSet, files: dict[str, bytes]) -> Iterator[tuple[str, Array]]:
    for item in requests:
        name = item.text().split()[1].rpartition("/")[2]
        ((made, values),) = decode.decode(ItemSet("page", (Item(item.name, 0, files[name]),)))[
            "image"
        ].items()
        yield made, classify(device, np.frombuffer(values, np.float32))


def test_digits_function_by_function(device: Pocl) -> None:
    inputs = digits.example_inputs(seed=1, count=25)
    scores = item_set("logits", dict(walk(device, inputs["requests"], digits.png_files())))
    assert scores is not None
    outputs = {"report": item_set("report", tally.tally(scores)["report"])}
    assert digits.agrees(digits.results(outputs), digits.expected(inputs))


# --- through a node -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = Settings(
        backends=("process", "http", "opencl"),
        options={"http": {"allow": "127.0.0.1"}, "opencl": {"pool_bytes": "64M", "threads": "1"}},
        engines={"process": 1},
        arena_bytes=128 * 2**20,
    )
    with Node(settings) as started:
        assert started.wait_ready(60)
        broken = [e.reason for e in started.engines() if e.backend == "opencl" and e.reason]
        if broken:
            pytest.skip(broken[0])
        yield started


@pytest.mark.parametrize("name", ["heat_plate", "inference", "matmul", "vector_add"])
def test_a_node_gives_what_the_oracle_gives(node: Node, name: str) -> None:
    bundle = compositions.load(name)
    node.register(bundle.document())
    for seed in (1, 2):  # the second call is hot
        inputs = bundle.example_inputs(seed)
        results = bundle.results(node.invoke(name, **inputs))
        assert bundle.agrees(results, bundle.expected(inputs))


def test_a_plate_is_one_call_however_long_it_takes(node: Node) -> None:
    node.register(heat_plate.document())
    plate = np.zeros((9, 11), np.float32)
    plate[0] = 100
    for tolerance, most in ((1.0, 50), (1e-3, 500), (200.0, 1)):
        given = heat_plate.inputs(plate, tolerance)
        _, left, sweeps = heat_oracle.relax(plate, float(np.float32(tolerance)))
        assert left is None
        assert sweeps <= most
        sets = {name: item_set(name, value) for name, value in given.items()}
        result = node.invoke_sets("heat_plate", sets)
        assert [call.application for call in result.trace.calls] == ["relax"]
        assert heat_plate.agrees(heat_plate.results(result.sets), heat_plate.expected(given))


def test_a_plate_that_does_not_converge_says_so(node: Node) -> None:
    node.register(heat_plate.document())
    given = heat_plate.inputs(np.eye(4, dtype=np.float32), -1.0)
    results = heat_plate.results(node.invoke("heat_plate", **given))
    assert results["left"].shape == (1,)
    assert heat_plate.agrees(results, heat_plate.expected(given))


def test_repetitions_and_batch_of_inference(node: Node) -> None:
    node.register(inference.document())
    inputs = inference.example_inputs(3, repetitions=4, batch=3)
    results = inference.results(node.invoke("inference", **inputs))
    assert inference.agrees(results, inference.expected(inputs))


def test_the_thesis_spelling_runs(node: Node) -> None:
    function = matmul.function("matmul.thesis.json")
    node.register(RegistrationDocument((function,), {}, matmul.document().compositions))
    inputs = matmul.example_inputs(4)
    results = matmul.results(node.invoke("matmul", **inputs))
    assert matmul.agrees(results, matmul.expected(inputs))
