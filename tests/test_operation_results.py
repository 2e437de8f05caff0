"""Results of library operations by templates, and by engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from dandelion.backends.gpu.device import Handle
from dandelion.backends.gpu.direct_convolution import _tile, padded_images
from dandelion.backends.gpu.host import HostDevice
from dandelion.backends.gpu.lowering import Lowering
from dandelion.backends.gpu.opencl_device import OpenClDevice
from dandelion.backends.gpu.plan import Launch, plan
from dandelion.backends.gpu.prepared_steps import prepare_steps
from dandelion.backends.gpu.reference_library import ReferenceLibrary
from dandelion.backends.gpu.sequential import SequentialEngine
from dandelion.backends.gpu.source import code_of
from dandelion.backends.gpu.template_processor import lanes_of
from hypothesis import given, settings
from hypothesis import strategies as st

import dandelion.blueprint as bp
from dandelion.blueprint import Access, Activation, BiasAxis, ElementType, ImageLayout
from dandelion.blueprint.operation_calls import ConvolutionCall
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.driver import Call
from dandelion.errors import BackendUnavailable
from dandelion.function import CodeObject, Function, FunctionSpec, digest_of
from dandelion.memory import HeapDomain
from tests.operation_cases import TOLERANCES, Case, Maker
from tests.operation_plans import planned

F32 = ElementType.F32
POOL_BYTES = 1 << 22


class Templates:
    """Templates on the OpenCL device, each compiled once."""

    def __init__(self) -> None:
        self.device = OpenClDevice()
        self.device.open()
        self.device.allocate(POOL_BYTES)
        self.modules: dict[str, Handle] = {}

    def run(self, case: Case, lowering: Lowering) -> bytes:
        made = plan(case.config, case.sizes, lambda name, at: 0, lowering=lowering)
        self.device.zero(0, made.used_bytes)
        for name, data in case.data.items():
            self.device.copy_in(made.slots[name].offset_bytes, data)
        table = {}
        for name, template in made.templates.items():
            if template.symbol not in self.modules:
                self.modules[template.symbol] = self.device.load(code_of(template))
            table[name] = (self.modules[template.symbol], template.symbol)
        self.device.launch(prepare_steps(self.device, made.steps, table))
        self.device.synchronize()
        found = bytearray(made.outputs["y"].size_bytes)
        self.device.copy_out(made.outputs["y"].offset_bytes, memoryview(found))
        return bytes(found)


@pytest.fixture(scope="module")
def templates() -> Iterator[Templates]:
    try:
        made = Templates()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    yield made
    made.device.close()


PROCESSOR, NARROW, DEVICE = Lowering(None, True, 64), Lowering(None, True, 16), Lowering()


seeds = st.integers(0, 2**32)
extents = st.sampled_from([1, 2, 7, 8, 17, 31, 33, 64, 130])


@settings(max_examples=40, deadline=None)
@given(seeds, extents, extents, st.sampled_from([1, 5, 128, 300]), st.sampled_from([1, 3]))
def test_products_by_panels(
    templates: Templates, seed: int, m: int, n: int, k: int, batch: int
) -> None:
    """One template for all sizes: 8 rows of 32 columns at a time, their depth in parts of 128."""
    case = Maker(seed).gemm(
        F32, (max(m, 8), max(n, 17), k), a=False, b=True, added=False, bias=None, batch=batch
    )
    assert case.error(templates.run(case, PROCESSOR)) < TOLERANCES["f32"]


@settings(max_examples=40, deadline=None)
@given(seeds, extents, st.sampled_from([1, 5, 31, 64]))
def test_products_by_tiles(templates: Templates, seed: int, m: int, k: int) -> None:
    case = Maker(seed).gemm(F32, (m, 16, k), a=True, b=False, added=True, bias=BiasAxis.ROWS)
    assert case.error(templates.run(case, DEVICE)) < TOLERANCES["f32"]


_KINDS = [
    # rows of a single matrix, and every type, layout, epilogue once
    (PROCESSOR, F32, (1, 40, 70), False, True, True, BiasAxis.COLUMNS, Activation.NONE),
    (PROCESSOR, ElementType.BF16, (3, 18, 33), False, True, False, None, Activation.RELU),
    (PROCESSOR, ElementType.F64, (9, 20, 150), True, False, True, BiasAxis.ROWS, Activation.NONE),
    (PROCESSOR, ElementType.F16, (20, 35, 9), False, False, False, None, Activation.GELU_TANH),
    (NARROW, F32, (20, 35, 9), True, True, True, BiasAxis.COLUMNS, Activation.RELU),
    (DEVICE, ElementType.F64, (40, 35, 9), False, True, True, BiasAxis.COLUMNS, Activation.NONE),
    (DEVICE, ElementType.BF16, (33, 40, 20), True, True, False, None, Activation.GELU_TANH),
    (DEVICE, ElementType.F16, (70, 33, 70), False, False, True, BiasAxis.ROWS, Activation.RELU),
]


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: f"{kind[1].value}-{kind[2][0]}")
def test_kinds_of_products(templates: Templates, kind: Any) -> None:
    lowering, dtype, sizes, a, b, added, bias, activation = kind
    for seed, batch in ((1, 1), (2, 3)):
        case = Maker(seed).gemm(
            dtype, sizes, a=a, b=b, added=added, bias=bias, activation=activation, batch=batch
        )
        assert case.error(templates.run(case, lowering)) < TOLERANCES[dtype.value], seed


_IMAGES: list[tuple[Lowering, ElementType, ImageLayout, dict[str, Any]]] = [
    (PROCESSOR, F32, ImageLayout.NCHW, {"kernel": (3, 3), "padding": (1, 1), "bias": True}),
    (NARROW, ElementType.F64, ImageLayout.NCHW, {"kernel": (2, 3), "stride": (2, 3), "groups": 2}),
    (PROCESSOR, ElementType.BF16, ImageLayout.NCHW, {"kernel": (3, 3), "padding": (1, 1)}),
    (PROCESSOR, ElementType.F16, ImageLayout.NHWC, {"kernel": (2, 3), "stride": (2, 1)}),
    (DEVICE, F32, ImageLayout.NCHW, {"kernel": (3, 2), "dilation": (2, 1), "groups": 2}),
    (DEVICE, F32, ImageLayout.NHWC, {"kernel": (3, 3), "padding": (1, 0), "groups": 2}),
]


@pytest.mark.parametrize("kind", _IMAGES, ids=lambda kind: f"{kind[1].value}-{kind[2].value}")
def test_convolutions(templates: Templates, kind: Any) -> None:
    """The sizes of an image are arguments: one template for all of these."""
    lowering, dtype, layout, fields = kind
    for seed, size in enumerate([(9, 7), (6, 40), (5, 5), (20, 33)]):
        case = Maker(seed).convolution(
            dtype, layout, batch=1 + seed % 2, channels=4, filters=10, size=size, added=True,
            activation=Activation.RELU, **fields,
        )  # fmt: skip
        assert case.error(templates.run(case, lowering)) < TOLERANCES[dtype.value], size


pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))


@settings(max_examples=8, deadline=None)
@given(
    seeds, pairs, pairs, pairs, st.tuples(st.integers(0, 5), st.integers(0, 5)),
    st.tuples(st.integers(1, 40), st.integers(1, 40)), st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 3, 8, 17]), st.sampled_from([PROCESSOR, NARROW]),
)  # fmt: skip
def test_padded_images_are_convolved_like_others(
    templates: Templates, seed: int, kernel: tuple[int, int], stride: tuple[int, int],
    dilation: tuple[int, int], padding: tuple[int, int], size: tuple[int, int], groups: int,
    filters: int, lowering: Lowering,
) -> None:  # fmt: skip
    size = tuple(
        max(s, d * (k - 1) + 1 - 2 * p)
        for s, d, k, p in zip(size, dilation, kernel, padding, strict=True)
    )
    case = Maker(seed).convolution(
        F32, ImageLayout.NCHW, batch=1 + seed % 2, channels=2 * groups, filters=filters * groups,
        size=size, kernel=kernel, stride=stride, dilation=dilation, padding=padding,
        groups=groups, bias=seed % 3 == 0, added=seed % 5 == 0,
    )  # fmt: skip
    assert case.error(templates.run(case, lowering)) < TOLERANCES["f32"]


@pytest.mark.parametrize(
    ("size", "kernel", "dilation", "stride"),
    [((1, 4200), 65, 64, 1), ((8, 100), 3, 40, 1), ((4, 90), 9, 10, 3), ((1, 33), 1, 1, 1)],
)
def test_nothing_is_read_behind_padded_images(
    templates: Templates, size: tuple[int, int], kernel: int, dilation: int, stride: int
) -> None:
    """The last vector of pixels, with the weight that is farthest to the right."""
    case = Maker(1).convolution(
        F32, ImageLayout.NCHW, batch=2, channels=3, filters=5, size=size, kernel=(1, kernel),
        dilation=(1, dilation), stride=(1, stride),
    )  # fmt: skip
    assert case.error(templates.run(case, PROCESSOR)) < TOLERANCES["f32"]
    call = case.call
    assert isinstance(call, ConvolutionCall)
    padded = padded_images(call)
    assert padded is not None
    lanes = lanes_of(call.dtype, 64)
    pixels = call.out_size[0] * padded.pitch
    _, vectors = _tile(call.filters, pixels, lanes)
    computed = -(-pixels // (lanes * vectors)) * lanes * vectors
    plane = padded.rows * padded.pitch
    reaches = [dilation * at for at in range(kernel)]
    tap = max(reach % stride * plane + reach // stride for reach in reaches)
    last_channel = plane * (padded.planes - padded.phases[1])
    assert last_channel + tap + computed <= padded.elements


def called(case: Case, device: HostDevice) -> bytes:
    """Run a case on an engine, some times, which all must give the same."""
    main = bp.print_blueprint(case.config).encode()
    code = CodeObject("blueprint", digest_of(main), {})
    inputs = tuple(SetSpec(name) for name in case.data)
    function = Function(FunctionSpec("F", inputs, (SetSpec("y"),), code=(code,)), code, main, {})
    sets = tuple(ItemSet(n, (Item("i", 0, d),)) for n, d in case.data.items())
    engine = SequentialEngine(device, POOL_BYTES)
    try:
        found = []
        for number in range(3):
            call = Call(number, function, sets, HeapDomain(1 << 22), 2**62)
            (out,) = engine.run(call)
            assert out is not None
            found.append(bytes(out.items[0].data))
            engine.clean_up()
        assert found[0] == found[1] == found[2]
        return found[0]
    finally:
        engine.close()


@settings(max_examples=30, deadline=None)
@given(seeds, st.sampled_from(list(ElementType)), st.booleans(), st.booleans(), st.booleans())
def test_an_engine_gives_an_operation_to_the_library(
    seed: int, dtype: ElementType, a: bool, b: bool, is_image: bool
) -> None:
    maker = Maker(seed)
    if is_image:
        case = maker.convolution(
            dtype, ImageLayout.NHWC if a else ImageLayout.NCHW, batch=2, channels=4, filters=6,
            size=(5, 7), kernel=(3, 3), padding=(1, 1), added=b, bias=True,
        )  # fmt: skip
    else:
        case = maker.gemm(dtype, (5, 6, 7), a=a, b=b, added=True, bias=BiasAxis.ROWS, batch=2)
    device = HostDevice({}, POOL_BYTES, lazy=True, graphs=True, library=ReferenceLibrary(1024))
    assert case.error(called(case, device)) < 1e-12


def test_what_a_result_leaves_of_its_buffer_is_zero() -> None:
    """Also where the memory was used before: only whole results may reuse it as it is."""
    made = bp.Blueprint(inputs=["a"], outputs=["y"])
    first, second = made.buffer("t", 256, temporary=True), made.buffer("u", 256, temporary=True)
    y = made.buffer("y", 256)
    shape = {"n": 8, "k": 8}
    made.gemm(made.a, made.a, first, m=8, **shape)
    made.gemm(first, made.a, second, m=8, **shape)
    made.gemm(second, made.a, y, m=4, **shape)
    a = np.eye(8, dtype=np.float32)
    device = HostDevice({}, POOL_BYTES, graphs=True, library=ReferenceLibrary())
    found = called(Case(made.build(), {"a": a.tobytes()}, F32), device)
    a[4:] = 0
    assert (np.frombuffer(found, np.float32).reshape(8, 8) == a).all()


def test_access_of_a_template_is_what_it_does() -> None:
    """A sum in place reads and writes its buffer."""
    made = bp.Blueprint(inputs=["y", "b"], outputs=["y"])
    made.gemm(made.b, made.b, made.y, c=made.y, m=8, n=8, k=8)
    (step,) = planned(made.build(), {"y": 256, "b": 256}, Lowering()).steps
    assert isinstance(step, Launch)
    assert Access.WRITE in step.access
    y = np.zeros(64, np.float32)
    data = {"y": (y + 1).tobytes(), "b": np.eye(8, dtype=np.float32).tobytes()}
    device = HostDevice({}, POOL_BYTES, graphs=True, library=ReferenceLibrary())
    case = Case(made.build(), data, F32)
    found = np.frombuffer(called(case, device), np.float32).reshape(8, 8)
    assert (found == np.ones((8, 8)) + np.eye(8)).all()
