"""FIXTURE. Scenarios of modules with variables; see `.scenarios`.

A CUDA module whose variables are all known stays loaded and gets their first values back; any other
is loaded for one call.
"""

from __future__ import annotations

import struct
from typing import Any

from dandelion.backends.gpu.cudalike_variables import MOST_BYTES, MOST_VARIABLES

import dandelion.blueprint as bp
from dandelion.driver import Call
from dandelion.errors import Cancelled
from dandelion.function import Function
from tests.fake_driver.compile import compiled, image
from tests.fake_driver.fake import LONG_NS, Fake, Runner, function, numbers
from tests.fake_driver.scenarios import OTHER, X, expect, fail_each, life_of, long_steps, totals

COUNTERS = """
#include "dandelion.h"
DEVICE i32 counter = 5;
DEVICE i32 others[3];
KERNEL void count(GLOBAL i32 *y) {
    y[0] = counter + others[1];
    counter = counter + 1;
    others[1] = others[1] + 10;
}
"""


def _counting(source: str = COUNTERS, launches: int = 2) -> Function:
    """y = the value of the counters before the last launch, 5 and 11 for each one before."""
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": "c.c"})
    y = b.buffer("y", size=4)
    for _ in range(launches):
        b.launch("count", [y])
    return function(b, {"c.c": source.encode()})


def _counted(runner: Runner, wanted: Function) -> list[int]:
    return [int(n) for n in numbers(runner.run(wanted, runner.one("x", X)))]


def variables_do_not_outlive_a_call(fake: Fake) -> None:
    runner, wanted = Runner(fake), _counting()
    for _ in range(4):
        assert _counted(runner, wanted) == [16]
    if fake.counts:
        found = fake.live().get("module", 0), runner.engine.modules.loads
        assert found == ((1, 1) if fake.kind == "cuda" else (0, 4))
    runner.close()
    fake.nothing_left()


def variables_do_not_outlive_a_stopped_call(fake: Fake) -> None:
    runner, wanted = Runner(fake, part_ns=1), _counting(launches=5)
    for looks in (1, 2, 3, 4):
        expect(Cancelled, lambda looks=looks: runner.run_stopped(wanted, looks, X))
        runner.engine.clean_up()
        assert _counted(runner, wanted) == [49]
    runner.close()
    fake.nothing_left()


def functions_do_not_share_values_of_variables(fake: Fake) -> None:
    runner = Runner(fake)
    for _ in range(3):
        for launches in (1, 2, 3):
            assert _counted(runner, _counting(launches=launches)) == [5 + 11 * (launches - 1)]
        assert (numbers(runner.run(totals(), runner.one("x", X))) == 3 * X).all()
    runner.close()
    fake.nothing_left()


def what_other_calls_wrote_is_not_seen(fake: Fake) -> None:
    """A kernel may find the variables of a module that its own function does not use."""
    runner, wanted = Runner(fake), _counting()
    for _ in range(2):
        assert _counted(runner, wanted) == [16]
    (module,) = runner.engine.modules._modules.values()
    first = module.first_values[0]
    assert (numbers(runner.run(totals(), runner.one("x", X))) == 3 * X).all()
    calls, stream = runner.engine.device._calls, runner.engine.device._stream
    assert not calls.fill(first.address, 7, len(first.data), stream)[0]
    assert _counted(runner, wanted) == [16]
    runner.close()
    fake.nothing_left()


def launches_with_variables_follow_each_other(fake: Fake) -> None:
    b = bp.Blueprint(inputs=["x"], outputs=["y", "z"], modules={"k": "c.c"})
    for name in ("y", "z"):
        b.launch("count", [b.buffer(name, size=4)])
    wanted, runner = function(b, {"c.c": COUNTERS.encode()}, outputs=("y", "z")), Runner(fake)
    for _ in range(4):
        with long_steps():
            found = [int(numbers((one,))[0]) for one in runner.run(wanted, runner.one("x", X))]
        assert found == [5, 16]
    if fake.counts and fake.kind == "cuda":
        nodes, _, _, path = fake.graph()
        assert nodes == path, "they share variables"
    runner.close()
    fake.nothing_left()


def modules_with_many_variables_are_loaded_afresh(fake: Fake) -> None:
    more = "".join(f"DEVICE i32 more{i};\n" for i in range(MOST_VARIABLES - 1))
    large = f"DEVICE i32 large[{MOST_BYTES // 4}];\n"
    runner = Runner(fake)
    for added in (more, large):
        wanted = _counting(COUNTERS.replace("KERNEL", f"{added}KERNEL"))
        for _ in range(3):
            assert _counted(runner, wanted) == [16]
    if fake.counts:
        assert ("module" in fake.live(), runner.engine.modules.loads) == (False, 6)
    runner.close()
    fake.nothing_left()


def loading_is_a_stage_of_its_own(fake: Fake) -> None:
    many = COUNTERS.replace("KERNEL", f"DEVICE i32 large[{MOST_BYTES // 4}];\nKERNEL")
    runner = Runner(fake)
    for source, stays in ((COUNTERS, fake.kind == "cuda"), (many, False)):
        seen = []
        for _ in range(3):
            calls: list[Call] = []

            def made(*given: Any, calls: list[Call] = calls, **more: Any) -> Call:
                calls.append(Call(*given, **more))
                return calls[-1]

            runner.run(_counting(source), runner.one("x", X), kind=made)
            stages = calls[0].stages
            assert min(stages.values()) >= 0
            seen.append("load" in stages)
        assert seen == [True, not stays, not stays]
    runner.close()


def fat_binaries_stay_loaded(fake: Fake) -> None:
    """As nvcc 13 makes them: code for the device, and a text that is compressed."""
    library, _ = compiled("__device__ int n = 5;\n__global__ void count(int *y) { y[0] = n++; }")
    binary = image("cuda", fake.arch, library, variables=True, named={"n": 4})
    parts = ((2, binary), (1, b"compressed"))
    body = b"".join(struct.pack("<HHIQ", kind, 1, 16, len(d)) + d for kind, d in parts)
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": "c.fatbin"})
    b.launch("count", [b.buffer("y", size=4)])
    whole = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
    wanted, runner = function(b, {"c.fatbin": whole}), Runner(fake)
    for _ in range(3):
        assert _counted(runner, wanted) == [5]
    assert runner.engine.modules.loads == 1
    runner.close()
    fake.nothing_left()


def _play(runner: Runner, _: int) -> None:
    assert _counted(runner, _counting()) == [16]
    assert (numbers(runner.run(totals(), runner.one("x", X))) == 3 * X).all()


def every_call_with_variables_fails_once(fake: Fake) -> None:
    fail_each(fake, OTHER, LONG_NS, life_of(_play, range(3)))


ON_REAL_DEVICES = (
    variables_do_not_outlive_a_call,
    variables_do_not_outlive_a_stopped_call,
    functions_do_not_share_values_of_variables,
    what_other_calls_wrote_is_not_seen,
    launches_with_variables_follow_each_other,
    modules_with_many_variables_are_loaded_afresh,
)
