"""The experiment on frontends: what it makes of loads, with real servers and played generators."""

from collections.abc import Callable
from typing import Any

import pytest
from dandelion.bench.experiment import Bench
from dandelion.bench.experiments import frontends
from dandelion.bench.load import LoadResult
from dandelion.bench.processes import ServerProcess
from dandelion.bench.samples import Samples


def test_rates_are_sums_and_are_held_against_one_frontend(monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[int] = []
    seen: list[int] = []
    find: Callable[[ServerProcess], list[int]] = frontends._frontends

    def found(server: ServerProcess) -> list[int]:
        pids = find(server)
        seen.append(len(pids))
        return pids

    def played(port: int, *_: Any, **__: Any) -> LoadResult:
        ports.append(port)
        latency = Samples.of_us([10.0])
        rate = 100.0 * len(set(ports))
        return LoadResult(rate, rate, latency, latency, {}, 0.0, 1.0, bottleneck=False)

    monkeypatch.setattr(frontends, "_frontends", found)
    monkeypatch.setattr(frontends, "closed_loop", played)
    (panel,) = frontends.http_frontends(Bench(quick=True)).panels
    assert [(row.x, row.values["rate"], row.values["ratio"]) for row in panel.rows] == [
        (1.0, 400.0, 1.0),
        (2.0, 800.0, 2.0),
    ]
    assert seen == [0, 2]


@pytest.mark.parametrize(("rate", "passes"), [(3.2, True), (3.1, False)])
def test_the_budget_is_for_machines_with_cores_enough(rate: float, passes: bool) -> None:
    best = {count: {"rate": r, "ratio": r} for count, r in ((1, 1.0), (4, rate))}
    (budget,) = frontends._budgets(best, frontends.CORES)
    assert budget.passes == passes
    assert not frontends._budgets(best, frontends.CORES - 1)
    assert not frontends._budgets({1: best[1]}, frontends.CORES)
