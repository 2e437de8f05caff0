"""Shapes have the paper's sizes, and all three forms of their launches compute the same."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from dandelion.backends.gpu.plan_cache import PlanCache
from dandelion.backends.gpu.program import make_program, plan_call
from dandelion.bench.experiment import Bench
from dandelion.bench.systems import kaas_graphs, kaas_lineup
from dandelion.bench.systems.bare import bare_device
from dandelion.bench.systems.engines import function_of
from dandelion.bench.systems.kaas_shapes import (
    BERT,
    CGEMM,
    JACOBI,
    MICRO,
    RESNET50,
    SHAPES,
    Scale,
    Shape,
    TunedShape,
    calibrated,
    tuned,
)
from dandelion.bench.systems.tenants import SharedNode

from dandelion.data import Item
from tests.bench.kaas_oracle import expected

pytest.importorskip("pyopencl")

SMALL = Scale(10, 10.0, 4096.0, 64.0)
UNITS = 132


def small(shape: Shape, rounds: int = 3) -> TunedShape:
    return tuned(SMALL.of(shape), 3, rounds, threads=16)


@pytest.mark.parametrize(
    ("shape", "launches", "different", "constants", "megabytes"),
    [
        (RESNET50, 90, 43, 108, 102),
        (BERT, 781, 30, 391, 1329),
        (JACOBI, 3000, 2, 0, 0),
        (CGEMM, 2, 2, 2, 2000),
    ],
    ids=[shape.name for shape in SHAPES],
)
def test_a_shape_has_the_papers_sizes(
    shape: Shape, launches: int, different: int, constants: int, megabytes: int
) -> None:
    links = list(kaas_graphs.links(tuned(shape, UNITS)))
    assert len(links) == launches
    assert len({link.kernel for link in links}) == different
    read = {name for link in links for name in link.constants} - {kaas_graphs.INPUT}
    assert len(read) == len(shape.sizes()) == constants
    assert round(shape.constant_bytes / 1e6) == megabytes
    assert links[0].x == kaas_graphs.INPUT
    assert links[-1].y == kaas_graphs.OUTPUT
    for before, after in itertools.pairwise(links):
        assert (after.x, after.x_words) == (before.y, before.y_words)
        assert after.x != after.y


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_blueprint_has_the_launches_of_the_bare_loop(shape: Shape) -> None:
    given = tuned(Scale(constants=1e6).of(shape), UNITS)
    document = kaas_graphs.function(given, 0)
    program = make_program(function_of(document))
    weights = kaas_graphs.constants(given.shape, 0)
    items = {name: Item(name, 0, data) for name, data in weights.items()}
    items[kaas_graphs.INPUT] = Item("x", 0, kaas_graphs.body(given.shape, 1))
    plan = plan_call(PlanCache(), program, items)
    work = kaas_graphs.work(given, 0)
    planned = [plan.steps[index].kernel for index in plan.walk()]  # type: ignore[union-attr]
    assert planned == [step.kernel for step in work.steps]
    assert plan.launches == shape.launches
    assert set(program.constants) == set(weights)


@pytest.mark.parametrize("shape", [*SHAPES, MICRO], ids=lambda shape: shape.name)
def test_a_bare_loop_computes_what_numpy_does(shape: Shape) -> None:
    given = small(shape)
    body = kaas_graphs.body(given.shape, 1)
    with bare_device("opencl") as device, device.stream(kaas_graphs.work(given, 3)) as stream:
        first, again = stream.run(body), stream.run(body)
    assert first == expected(given, 3, body)
    assert again == first
    assert first != expected(given, 3, kaas_graphs.body(given.shape, 2))


def test_tenants_have_constants_of_their_own_in_an_engine() -> None:
    given = small(RESNET50)
    body = kaas_graphs.body(given.shape, 1)
    with SharedNode("opencl", given, 2) as node:
        replies = [node.call(tenant, body) for tenant in (0, 1, 0)]
        stages = node.stages(1, body)
    assert replies == [expected(given, tenant, body) for tenant in (0, 1, 0)]
    assert replies[0] != replies[1]
    parts = sum(us for name, us in stages.items() if name != "total")
    assert {"plan", "copy_in", "kernels", "copy_out", "dispatch"} < stages.keys()
    assert parts == pytest.approx(stages["total"])


def test_the_same_constants_may_be_asked_for() -> None:
    given = small(CGEMM)
    one, other = (kaas_graphs.function(given, tenant, same=True).static for tenant in (0, 1))
    assert one == other
    assert one != kaas_graphs.function(given, 1).static


def test_a_folded_chain_is_the_chain() -> None:
    given = small(JACOBI)
    chain = list(kaas_graphs.links(given))
    first, loop, times, last = kaas_graphs._folded(chain, 2)
    assert times > 10
    assert [*first, *loop * times, *last] == chain


@pytest.mark.parametrize("shape", [*SHAPES, MICRO], ids=lambda shape: shape.name)
@pytest.mark.parametrize("quick", [False, True])
def test_scaled_shapes_keep_something_of_everything(shape: Shape, quick: bool) -> None:
    bench = Bench(quick=quick, backend="opencl")
    made = kaas_lineup.scaled(bench, shape)
    assert 2 <= made.launches <= shape.launches
    assert 1 <= made.kernels <= made.launches
    assert bool(made.constants) == bool(shape.constants)
    assert min(made.temporaries, made.input_bytes, made.output_bytes) > 0
    assert made.target_us < shape.target_us
    whole = kaas_lineup.scaled(Bench(backend="cuda"), shape, limit_bytes=0)
    assert whole == shape
    limited = kaas_lineup.scaled(Bench(backend="cuda"), shape)
    assert limited.constant_bytes <= 1.001 * kaas_lineup.CONSTANT_LIMIT_BYTES
    assert limited.launches == shape.launches


@pytest.mark.parametrize("target_us", [150.0, 4420.0, 93_000.0])
def test_calibration_finds_the_rounds_of_a_device(target_us: float) -> None:
    shape = SMALL.of(RESNET50)
    given = tuned(msgspec.structs.replace(shape, target_us=target_us), UNITS)
    tried: list[int] = []

    def timed(attempt: TunedShape) -> float:
        tried.append(attempt.rounds)
        return max(100.0, 20.0 + 0.25 * attempt.rounds)  # launches alone take 100 us

    found = calibrated(given, timed)
    assert 20.0 + 0.25 * found.rounds == pytest.approx(target_us, rel=0.1)
    assert len(tried) <= 7


def test_calibration_gives_up_where_launches_alone_take_longer() -> None:
    given = small(JACOBI)
    assert calibrated(given, lambda attempt: 1e6 + attempt.rounds).rounds == 1
