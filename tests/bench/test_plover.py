"""PyPlover's chains: the bare work computes what the functions do, and starts have their stages."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from dandelion.bench.experiment import Bench, all_experiments
from dandelion.bench.experiments import plover
from dandelion.bench.processes import ServerFailed, ServerProcess
from dandelion.bench.records import Skip
from dandelion.bench.samples import Samples
from dandelion.bench.systems import names
from dandelion.bench.systems.bare import bare_device
from dandelion.bench.systems.contenders import Contender, Lineup, network_contenders
from dandelion.bench.systems.functions import KernelChain, network, vector_addition

pytest.importorskip("pyopencl")

CHAINS = [vector_addition, network]


@pytest.mark.parametrize("make", CHAINS, ids=["vecAdd", "CNN"])
def test_bare_work_is_right_and_a_wrong_reply_is_not(make: object) -> None:
    chain: KernelChain = make()  # type: ignore[operator]  # one of the two above
    with bare_device("opencl") as device, device.stream(chain.work) as stream:
        assert [chain.expected(stream.run(chain.body)) for _ in range(2)] == [True, True]
        reply = np.frombuffer(stream.run(chain.body), np.float32) + np.float32(0.5)
    assert not chain.expected(reply.tobytes())


@pytest.mark.parametrize("name", ["plover_vecadd", "plover_cnn", "plover_peers"])
def test_without_a_device_everything_is_skipped(name: str) -> None:
    experiment = all_experiments()[name]
    found = experiment.measure(Bench(quick=True, backend=""))
    assert found.panels == ()
    assert found.skips[0].reason
    assert experiment.group == "plover"


def test_cold_warm_and_hot_starts_have_their_stages() -> None:
    bench, chain = Bench(quick=True, backend="opencl"), network()
    cold = plover.cold_start(bench, chain)
    with plover._node(bench, exact=True) as node:
        warm = [plover.warm_start(node, chain) for _ in range(2)]
        hot = plover.hot_calls(node, chain, 5)
    engine = {"dispatch", "plan", "copy_in", "kernels", "copy_out", "total"}
    assert cold.keys() == engine | {"register", "start", "load"}
    assert all(stages.keys() == engine | {"register", "load"} for stages in warm)
    assert all(stages.keys() == engine for stages in hot)
    for stages in (cold, *warm, *hot):
        parts = sum(us for name, us in stages.items() if name != "total")
        assert parts == pytest.approx(stages["total"])


def starts(cold_ms: float, warm_ms: float, hot_us: float, bare_us: float) -> plover.Starts:
    found = plover.Starts()
    found.stages = {"cold": [{"total": cold_ms * 1e3}], "warm": [{"total": warm_ms * 1e3}]}
    for name, us in ((plover.NAME, hot_us), (names.BARE, bare_us)):
        found.hot[name] = Samples.of_us([us])
    return found


@pytest.mark.parametrize(
    ("figures", "holds"),
    [((900, 5, 150, 100), [True, True]), ((3000, 5, 150, 100), [False, True]),
     ((900, 5, 500, 100), [True, False])],
)  # fmt: skip
def test_claims_follow_from_figures(
    figures: tuple[float, float, float, float], holds: list[bool]
) -> None:
    assert [claim.holds for claim in plover.cnn_claims(starts(*figures))] == holds


def test_medians_are_taken_stage_by_stage() -> None:
    found = plover.stage_medians([{"a": 1.0, "total": 5.0}, {"a": 9.0, "total": 6.0}])
    assert found == {"a": statistics.median([1, 9]), "total": 5.5}


def test_servers_that_are_missing_wrong_or_dead_are_skipped() -> None:
    bench, chain = Bench(quick=True, backend="opencl"), network()
    found = {one.name: one for one in network_contenders(bench, chain)}
    good = found[names.DEDICATED]

    def dead() -> ServerProcess:
        raise ServerFailed("dead", "it is dead")

    contenders = [Contender("absent", good.start, missing="not installed"), Contender("dead", dead)]
    with Lineup(bench, [*contenders, good]) as lineup:
        assert lineup.skips == [
            Skip("absent", "not installed"), Skip("dead", "server 'dead': it is dead"),
        ]  # fmt: skip
        lineup.check(chain.work.name, chain.body, chain.expected)
        (running,) = lineup.running
        assert running.unchecked(chain.work.name, chain.body).path == f"/{chain.work.name}"
        running.requests.clear()
        lineup.check(chain.work.name, chain.body, vector_addition().expected)
        assert lineup.running == []
        wrong = f"{names.DEDICATED} gives a wrong result for {chain.work.name}"
        assert lineup.skips[-1] == Skip(names.DEDICATED, wrong)
