"""The experiments on KaaS: claims follow from figures, and a whole run leaves nothing behind."""

from __future__ import annotations

import msgspec
import pytest
from dandelion.bench.experiment import Bench, all_experiments
from dandelion.bench.experiments import kaas, kaas_alone, kaas_memory
from dandelion.bench.records import Axis, Claim, Findings, Panel, Row
from dandelion.bench.systems import names
from dandelion.bench.systems.kaas_lineup import POLICIES, TenantLineup
from dandelion.bench.systems.kaas_shapes import CGEMM, RESNET50, SHAPES, Scale, tuned
from dandelion.bench.systems.nodes import MIB
from dandelion.bench.systems.tenants import Tenants

from dandelion.errors import InternalError

NAMES = [name for name in all_experiments() if name.startswith("kaas_")]


def panel(rates: dict[str, dict[int, float]]) -> Panel:
    rows = [
        Row(name, clients, {"achieved_per_s": rate})
        for name, by_clients in rates.items()
        for clients, rate in by_clients.items()
    ]
    return Panel("p", "p", Axis("clients"), (kaas.THROUGHPUT,), tuple(rows))


@pytest.mark.parametrize("name", NAMES)
def test_without_a_device_everything_is_skipped(name: str) -> None:
    experiment = all_experiments()[name]
    found = experiment.measure(Bench(quick=True, backend=""))
    assert found.panels == ()
    assert found.skips[0].reason
    assert experiment.group in ("kaas", "kaas_load")


@pytest.mark.parametrize(("exclusive", "holds"), [(1.0, True), (4.0, False)])
def test_a_collapse_is_told_from_the_rates(exclusive: float, holds: bool) -> None:
    rates = {
        names.SEQUENTIAL: {1: 100.0, 4: 90.0, 8: 80.0},
        names.CONCURRENT: {1: 100.0, 4: 110.0, 8: 100.0},
        names.EXCLUSIVE: {1: 100.0, 4: exclusive, 8: exclusive},
    }
    (claim,) = kaas.collapses([panel(rates)], (1, 4, 8))
    assert claim.holds is holds
    assert f"{100 / exclusive:.0f} to {110 / exclusive:.0f} times" in claim.measured
    assert "110 times" in claim.says


def test_systems_that_did_not_start_claim_nothing() -> None:
    rates = {names.EXCLUSIVE: {1: 100.0, 4: 1.0}}
    assert kaas.collapses([panel(rates)], (1, 4)) == []


@pytest.mark.parametrize(("partitions", "holds"), [(200.0, True), (50.0, False), (None, None)])
def test_partitions_are_compared_where_there_are_any(
    partitions: float | None, holds: bool | None
) -> None:
    rates = {names.SEQUENTIAL: {16: 100.0}, names.CONCURRENT: {16: 150.0}}
    if partitions is not None:
        rates[names.MPS] = {16: partitions}
    (claim,) = kaas.partitioned([panel(rates)], 16)
    assert claim.holds is holds


def row(system: str, graph: str, p50: float) -> Row:
    return Row(system, graph, {"p50": p50})


def test_isolated_latencies_are_held_against_the_papers_ratio() -> None:
    rows = [
        row(names.BARE, "cGEMM", 40_000.0),
        row(names.DEDICATED, "cGEMM", 41_000.0),
        row(names.SEQUENTIAL, "cGEMM", 45_000.0),
        row(names.CONCURRENT, "cGEMM", 41_500.0),
    ]
    (claim,) = kaas_alone.slower(rows, real=True)
    assert claim.holds is True
    assert "1.01 times" in claim.measured
    assert kaas_alone.slower(rows, real=False)[0].holds is None
    slow = [*rows[:2], row(names.SEQUENTIAL, "cGEMM", 45_000.0)]
    assert kaas_alone.slower(slow, real=True)[0].holds is False


def test_a_launch_costs_what_is_more_than_the_bare_loop() -> None:
    graph = f"3000 {kaas_alone.EMPTY}"
    rows = [row(names.BARE, graph, 9000.0), row(names.SEQUENTIAL, graph, 6000.0)]
    (claim,) = kaas_alone.launching(rows, 3000)
    assert claim.measured.startswith("-1.00 us")
    assert "2.00 us each, 3.00 us in the bare loop" in claim.measured
    dear = [rows[0], row(names.SEQUENTIAL, graph, 9000.0 + 3000 * 8.0)]
    assert kaas_alone.launching(dear, 3000)[0].holds is False


def test_a_cliff_is_told_from_rates_before_and_after() -> None:
    given = tuned(msgspec.structs.replace(CGEMM, target_us=40_000.0), 132)
    flat = [Row("s", x, {"achieved_per_s": 25.0 - x / 10}) for x in (1, 7, 8, 16)]
    assert kaas_memory.cliff(given, flat).holds is False
    cliff = [*flat[:2], Row("s", 8, {"achieved_per_s": 4.0})]
    assert kaas_memory.cliff(given, cliff).holds is True


@pytest.mark.parametrize("constants", [1.0, 4.0, 1024.0])
def test_there_is_room_for_seven_tenants_and_no_more(constants: float) -> None:
    given = tuned(Scale(constants=constants).of(CGEMM), 132)
    pieces = -(-given.shape.constant_bytes // (2 * MIB))
    room = kaas_memory.room_bytes(given) // (2 * MIB)
    assert 7 * pieces <= room < 8 * pieces


def test_latencies_of_unanswered_requests_are_a_bound() -> None:
    rows = [row(names.SEQUENTIAL, "load", 1000.0)]
    rows.append(Row(names.EXCLUSIVE, "load", {"p50": 20_000.0}, 2, 40, "40 not answered"))
    (claim,) = kaas.waits("bert", rows)
    assert claim.measured.startswith("at least 20 times")
    assert claim.holds is True
    assert kaas.waits("resnet50", rows) == []


class Wrong(Tenants):
    """Gives something else than the first system did."""

    name = "wrong"

    def call(self, tenant: int, body: bytes) -> bytes:
        return b"wrong"

    def close(self) -> None:
        pass


def test_systems_that_do_not_agree_are_a_bug() -> None:
    lineup = TenantLineup(Bench(), tuned(RESNET50, 2), [b"x", b"y"])
    expected = [b"right"]
    with pytest.raises(InternalError, match="wrong gives another result"):
        lineup.check(Wrong(), expected)


def test_cold_starts_are_measured_by_stages() -> None:
    pytest.importorskip("pyopencl")
    found = kaas_alone.cold(Bench(quick=True, backend="opencl"))
    assert isinstance(found, Findings)
    (shown,) = found.panels
    starts = {(r.system, r.x) for r in shown.rows}
    assert starts == {(s, x) for s in (names.SEQUENTIAL, names.EXCLUSIVE) for x in ("cold", "warm")}
    for r in shown.rows:
        parts = {k: v for k, v in r.values.items() if k != "total"}
        assert parts.keys() <= kaas_alone.STAGES.keys()
        assert min(r.values["total"], *parts.values()) > 0
    assert all(isinstance(c, Claim) for c in found.claims)
    assert len(found.claims) == 2


def test_policies_are_systems_of_one_table_with_the_claims_beside() -> None:
    pytest.importorskip("pyopencl")
    found = kaas.policies(Bench(quick=True, backend="opencl"))
    (shown,) = found.panels
    marks = [r.system.removeprefix(names.CONCURRENT).lstrip(", ") for r in shown.rows]
    assert tuple(marks) == POLICIES[2:5]
    assert all(r.values["achieved_per_s"] > 0 for r in shown.rows)
    assert [claim.holds for claim in found.claims] == [None, None]


@pytest.mark.parametrize(("balance", "holds"), [(50.0, True), (99.0, False)])
def test_affinity_is_compared_with_balance(balance: float, holds: bool) -> None:
    rates = {f"{names.CONCURRENT}, {p}": {16: 100.0} for p in ("affinity", "exclusive")}
    rates[f"{names.CONCURRENT}, balance"] = {16: balance}
    claims = kaas.chosen_engines(panel(rates), 16, Bench(backend="cuda"))
    assert claims[0].holds is holds
    assert kaas.chosen_engines(panel({}), 16, Bench(backend="cuda")) == []


def test_every_shape_has_the_papers_figures() -> None:
    named = {shape.name for shape in SHAPES}
    assert named == set(kaas.COLLAPSES) == set(kaas.AGAINST_MPS) == set(kaas_alone.PAPER_MS)
