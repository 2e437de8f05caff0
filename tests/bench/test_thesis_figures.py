"""The thesis' figures: reading curves, holding claims against them, and one small run."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest
from dandelion.bench.experiment import Bench
from dandelion.bench.experiments import thesis, thesis_inference, thesis_matmul
from dandelion.bench.experiments.thesis import Curve, claim, overloaded
from dandelion.bench.load import LoadResult
from dandelion.bench.records import Claim, Plot
from dandelion.bench.samples import Samples
from dandelion.bench.systems import names
from dandelion.bench.systems.bare import Workload, example_body, inference_work, matmul_work
from dandelion.bench.systems.contenders import Lineup, dedicated, gpu_node
from dandelion.bench.systems.functions import cpu_code, gpu_code, variants

from dandelion.node import Node, Settings

GPU = Bench(backend="cuda")
TWO = names.concurrent(2)


def load(
    median_us: float, achieved: float = 100.0, offered: float = 100.0, failed: int = 0
) -> LoadResult:
    record = Samples.of_us([median_us] * round(achieved))
    errors = {"status 503": failed} if failed else {}
    return LoadResult(offered, achieved, record, record, errors, 0.0, 1.0, False)


def curve(system: str, base_us: float, throughput: float, *, over: bool = True) -> Curve:
    points = [(10.0, load(base_us)), (1000.0, load(base_us * 9, throughput, 9000.0))]
    return Curve(system, points, over)


def held(claims: tuple[Claim, ...]) -> list[bool | None]:
    return [claim.holds for claim in claims]


def test_a_system_is_overloaded_by_late_answers_errors_or_silence() -> None:
    assert not overloaded(load(5.0))
    assert not overloaded(load(5.0, achieved=96.0))
    assert overloaded(load(5.0, achieved=90.0))
    assert not overloaded(load(5.0, achieved=3.0, offered=5.0)), "few requests tell nothing"
    assert overloaded(load(5.0, achieved=0.0, offered=1.0))
    assert not overloaded(load(5.0, failed=1))
    assert overloaded(load(5.0, failed=2))


def test_a_curve_tells_base_latency_and_throughput() -> None:
    made = curve("a", 50.0, 800.0)
    assert made.base_us == pytest.approx(50.0, rel=1e-3)
    assert made.throughput == 800.0
    assert made.at(1000.0) == pytest.approx(450.0, rel=1e-3)
    assert math.isnan(made.at(11.0))
    assert math.isnan(Curve("none").base_us)
    assert "more than" in made.rows()[1].note
    assert not made.rows()[0].note


def test_a_claim_needs_its_figures_and_a_machine_that_can_tell() -> None:
    def holds(bench: Bench, value: float, *curves: Curve) -> bool | None:
        return claim(bench, "5.1", "x", "words", (value,), True, *curves).holds

    assert holds(GPU, 1.0, curve("a", 1.0, 2.0)) is True
    assert holds(GPU, math.nan) is None
    assert holds(Bench(backend="opencl"), 1.0) is None
    assert holds(Bench(backend="cuda", quick=True), 1.0) is None
    late = curve("a", 1.0, 2.0)
    late.points[-1] = (9.0, msgspec.structs.replace(late.points[-1][1], bottleneck=True))
    assert holds(GPU, 1.0, late) is None
    assert "client" in claim(GPU, "5.1", "x", "words", (1.0,), True, late).measured


def test_throughput_is_compared_at_the_limit_only() -> None:
    one, other = curve("a", 1.0, 900.0), curve("b", 1.0, 450.0)
    assert thesis.against(one, other)[1] == 2.0
    other.over = False
    assert math.isnan(thesis.against(one, other)[1])


def matmul(sequential: tuple[float, float], concurrent: tuple[float, float]) -> list[Curve]:
    figures: Mapping[str, tuple[float, float]] = {
        names.SEQUENTIAL: sequential,
        TWO: concurrent,
        names.PROCESS: (900.0, 500.0),
        names.DEDICATED: (100.0, 4000.0),
    }
    return [curve(name, *values) for name, values in figures.items()]


def test_figure_1() -> None:
    as_in_the_thesis = matmul((300.0, 1000.0), (320.0, 1900.0))
    assert held(thesis_matmul.hot_claims(GPU, as_in_the_thesis)) == [True, True, True]
    otherwise = matmul((950.0, 1000.0), (320.0, 5000.0))
    assert held(thesis_matmul.hot_claims(GPU, otherwise)) == [False, False, True]
    alike = matmul((300.0, 1000.0), (320.0, 1100.0))
    assert held(thesis_matmul.hot_claims(GPU, alike))[2] is False


def test_figure_2() -> None:
    hot, cold = matmul((300.0, 900.0), (300.0, 900.0)), matmul((900.0, 300.0), (900.0, 300.0))
    assert held(thesis_matmul.cold_claims(GPU, hot, cold)) == [True, True]
    assert held(thesis_matmul.cold_claims(GPU, hot, hot)) == [False, False]


def depths(system: str, medians_us: list[float]) -> Curve:
    xs = (1.0, 100.0, 500.0)
    return Curve(system, [(x, load(us)) for x, us in zip(xs, medians_us, strict=True)])


def test_figure_3() -> None:
    linear = [
        depths(names.SEQUENTIAL, [100.0, 1090.0, 5090.0]),
        depths(TWO, [120.0, 1100.0, 5100.0]),
        depths(names.PROCESS, [400.0, 30000.0, 150000.0]),
    ]
    assert held(thesis_inference.depth_claims(GPU, linear)) == [True, True, True]
    bent = [depths(names.SEQUENTIAL, [130.0, 1090.0, 9090.0]), *linear[1:]]
    assert held(thesis_inference.depth_claims(GPU, bent)) == [True, False, False]


def test_figures_4_and_5() -> None:
    alike = matmul((3000.0, 300.0), (3100.0, 590.0))[:2]
    others = [curve(names.PROCESS, 600000.0, 20.0), curve(names.DEDICATED, 2900.0, 600.0)]
    claims = thesis_inference.deep_claims(GPU, [*alike, *others])
    assert held(claims) == [True, True, True, True]
    more = [curve(TWO, 3000.0, 500.0), curve(names.concurrent(4), 3000.0, 950.0)]
    assert held(thesis_inference.worker_claims(GPU, more)) == [False, False]
    no_more = [curve(TWO, 3000.0, 500.0), curve(names.concurrent(4), 3500.0, 510.0)]
    no_more[1].points[1] = (1000.0, load(60000.0, 510.0, 9000.0))
    assert held(thesis_inference.worker_claims(GPU, no_more)) == [True, True]


def test_figures_6_and_7() -> None:
    sizes = zip((1.0, 2.0, 3.0, 10.0), (100.0, 110.0, 130.0, 250.0), strict=True)
    full = [Curve(names.SEQUENTIAL, [(size, load(us)) for size, us in sizes])]
    assert held(thesis_inference.batch_claims(GPU, full)) == [True, True]
    apart = matmul((300.0, 300.0), (310.0, 525.0))
    together = matmul((600.0, 150.0), (700.0, 175.0))
    assert held(thesis_inference.full_claims(GPU, {2: apart, 8: together})) == [True, True]
    assert held(thesis_inference.full_claims(GPU, {2: together, 8: apart})) == [False, False]


@pytest.mark.parametrize("work", [matmul_work(), inference_work(2, 3)], ids=lambda w: w.name)
def test_cpu_and_gpu_functions_do_the_same_on_raw_bytes(work: Workload) -> None:
    backends = {"opencl": gpu_code, "process": cpu_code}
    replies = []
    for backend, code in backends.items():
        with Node(Settings(backends=(backend,), options={"opencl": {"pool_bytes": "16M"}})) as node:
            assert node.wait_ready()
            node.register(functions=[code(work)])
            body = example_body(work)
            found = node.invoke(work.name, **{work.entry: body})[work.result]
            assert found is not None
            replies.append(bytes(found.only().data))
    kind = np.int64 if work.entry == "A" else np.float32
    assert np.allclose(*(np.frombuffer(reply, kind) for reply in replies), rtol=1e-4, atol=1e-4)


def test_variants_are_different_code_under_different_names() -> None:
    codes = [gpu_code(v, i) for i, v in enumerate(variants(matmul_work(), 3), 1)]
    assert len({code.name for code in codes}) == 3
    assert len({str(code.code[0].files) for code in codes}) == 3


def test_calls_are_hot_or_cold_as_asked() -> None:
    class Asked:
        name = "system"

        def request(self, work: object) -> object:
            return thesis_matmul.HttpRequest("/hot", b"x")

        def unchecked(self, name: str, body: bytes) -> object:
            return thesis_matmul.HttpRequest(f"/{name}", body)

    codes = variants(matmul_work(), 12)
    requests = {share: thesis_matmul.mixed(matmul_work(), codes, share) for share in (0, 50, 100)}
    paths = {s: [r.path for r in made(Asked(), 6)] for s, made in requests.items()}  # type: ignore[arg-type]  # a stand-in
    assert set(paths[100]) == {"/hot"}
    assert "/hot" not in paths[0]
    assert len(set(paths[0])) == len(paths[0]) >= 6
    assert paths[50][::2] == ["/hot"] * (len(paths[50]) // 2)
    again = requests[0](Asked(), 1)  # type: ignore[arg-type]  # a stand-in
    assert {r.path for r in again}.isdisjoint(paths[0][:6])  # type: ignore[union-attr]  # a list


def test_systems_are_asked_in_turns_over_http() -> None:
    bench = Bench(quick=True, backend="opencl")
    work = inference_work(1)
    with Lineup(bench, [gpu_node(bench, 1, [work]), *dedicated(bench, [work])]) as lineup:
        curves = thesis.raised(bench, lineup.running, thesis.same(work), (10.0, 20.0), 0.2)
    made = thesis.panel("loads", "Loads", thesis.LOAD, curves)
    assert made.look is Plot.LINES
    systems = {names.concurrent(1), names.DEDICATED}
    assert {(row.system, row.x) for row in made.rows} == {(s, x) for s in systems for x in (10, 20)}
    assert all(row.values["p50"] > 0 and not row.errors for row in made.rows)
    assert [skip.what for skip in lineup.skips] == [names.DEDICATED_GRAPH]


def test_without_any_backend_everything_is_skipped() -> None:
    found = thesis_inference.batches(Bench(quick=True, backend=""))
    assert not found.panels[0].rows
    assert held(found.claims) == [None, None]
    assert {skip.what for skip in found.skips} >= {names.SEQUENTIAL, TWO, names.DEDICATED}
