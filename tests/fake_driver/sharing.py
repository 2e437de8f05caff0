"""FIXTURE. Scenarios of two engines that share a device and constants, played by `test_cuda_fake`.

Both engines are in one process here, as two devices; what one hands to the other is the same as
between processes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy.typing as npt

import dandelion.blueprint as bp
from dandelion.driver import Call, SharedConstants
from dandelion.errors import Faulted
from dandelion.function import Function
from tests.fake_driver.fake import LONG_NS, Fake, Runner, function, numbers
from tests.fake_driver.scenarios import (
    FILES,
    OTHER,
    OUT_OF_MEMORY,
    WEIGHTS,
    X,
    expect,
    fail_each,
    launching,
    weighed,
)

EXPECTED = X + WEIGHTS[: X.size]


class _Exchange:
    """What an engine has offered last; descriptors are its own."""

    def __init__(self) -> None:
        self.offered: SharedConstants | None = None
        self.offers = 0

    def take(self, constants: SharedConstants) -> None:
        self.close()
        self.offered = SharedConstants(constants.key, os.dup(constants.descriptor))
        self.offers += 1

    def close(self) -> None:
        if self.offered is not None:
            os.close(self.offered.descriptor)
            self.offered = None


class _SharingCall(Call, eq=False, gc=False):
    exchange: Any = None

    def share_constants(self, constants: SharedConstants) -> None:
        self.exchange.take(constants)


def _run(
    runner: Runner,
    exchange: _Exchange,
    shared: SharedConstants | None = None,
    wanted: Function | None = None,
) -> npt.NDArray[Any]:
    kind: Callable[..., Call] = partial(_SharingCall, exchange=exchange, shared_constants=shared)
    sets = (runner.one("x", X), runner.one("w", WEIGHTS))
    return numbers(runner.run(weighed() if wanted is None else wanted, *sets, kind=kind))


def _two(fake: Fake) -> tuple[Runner, Runner, _Exchange]:
    return Runner(fake, shares_constants=True), Runner(fake, shares_constants=True), _Exchange()


def constants_are_copied_by_one_and_mapped_by_others(fake: Fake) -> None:
    first, second, exchange = _two(fake)
    assert first.engine.capacity.constants_shared
    assert (_run(first, exchange) == EXPECTED).all()
    assert exchange.offers == 1
    for _ in range(2):
        assert (_run(second, exchange, exchange.offered) == EXPECTED).all()
        assert (_run(first, exchange) == EXPECTED).all()
    assert (first.engine.constants.uploads, second.engine.constants.uploads) == (1, 0)
    assert exchange.offers == 1
    exchange.close()
    for runner in (first, second):
        runner.close()
    fake.nothing_left()


def shared_constants_survive_their_source(fake: Fake) -> None:
    first, second, exchange = _two(fake)
    _run(first, exchange)
    _run(second, exchange, exchange.offered)
    first.engine.evict(weighed())
    first.close()
    assert (_run(second, exchange) == EXPECTED).all()
    second.engine.evict(weighed())
    third = Runner(fake, shares_constants=True)
    assert (_run(third, exchange, exchange.offered) == EXPECTED).all(), "the descriptor keeps them"
    assert third.engine.constants.uploads == 0
    exchange.close()
    for runner in (second, third):
        runner.close()
    fake.nothing_left()


def shared_constants_cannot_be_written_to(fake: Fake) -> None:
    first, second, exchange = _two(fake)
    _run(first, exchange)
    first.close()
    b = bp.Blueprint(inputs=["x"], weights=["w"], outputs=["y"], modules={"k": "k.c"})
    b.launch("spoil", [b.w, b.buffer("y", size=64)])
    spoils = function(b, FILES, static={"w": WEIGHTS.tobytes()})
    expect(Faulted, lambda: _run(second, exchange, exchange.offered, spoils))
    assert second.engine.constants.uploads == 0, "they were mapped"
    exchange.close()
    second.engine.close()


def shared_constants_are_closed_to_others(fake: Fake) -> None:
    first, second, exchange = _two(fake)
    _run(first, exchange)
    _run(second, exchange, exchange.offered)
    exchange.close()
    first.close()
    (resident,) = second.engine.constants._resident.values()
    address = resident.memory.address  # type: ignore[attr-defined]  # a handle of this device
    spy = launching("read_at", [bp.scalar("u64", address)])
    expect(Faulted, lambda: second.run(spy, second.one("x", X)))
    second.engine.close()


def what_cannot_be_mapped_is_copied(fake: Fake) -> None:
    first, second, exchange = _two(fake)
    _run(first, exchange)
    assert exchange.offered is not None
    reading, writing = os.pipe()
    for wrong in (
        SharedConstants(exchange.offered.key, reading),
        SharedConstants("of other constants", exchange.offered.descriptor),
    ):
        mine = _Exchange()
        assert (_run(second, mine, wrong) == EXPECTED).all()
        assert mine.offers == 1, "and offered to the others"
        mine.close()
        second.engine.evict(weighed())
    assert second.engine.constants.uploads == 2
    os.close(reading)
    os.close(writing)
    exchange.close()
    for runner in (first, second):
        runner.close()
    fake.nothing_left()


def engines_that_share_nothing_offer_nothing(fake: Fake) -> None:
    runner, exchange = Runner(fake), _Exchange()
    assert (_run(runner, exchange) == EXPECTED).all()
    assert (exchange.offers, runner.engine.capacity.constants_shared) == (0, False)
    runner.close()
    fake.nothing_left()


def _life_of_two(fake: Fake, made: list[Runner], part_ns: int) -> None:
    exchange = _Exchange()
    with contextlib.ExitStack() as stack:
        stack.callback(exchange.close)
        for _ in range(2):
            made.append(Runner(fake, part_ns=part_ns, shares_constants=True))
            stack.callback(made[-1].engine.close)
            assert (_run(made[-1], exchange, exchange.offered) == EXPECTED).all()
        for runner in made[::-1]:
            assert (_run(runner, exchange) == EXPECTED).all()
            runner.engine.evict(weighed())


def every_call_of_sharing_fails_once(fake: Fake) -> None:
    fail_each(fake, OTHER, LONG_NS, _life_of_two)


def every_call_of_sharing_fails_once_out_of_memory(fake: Fake) -> None:
    fail_each(fake, OUT_OF_MEMORY, LONG_NS, _life_of_two)


ON_REAL_DEVICES = (
    constants_are_copied_by_one_and_mapped_by_others,
    shared_constants_survive_their_source,
    what_cannot_be_mapped_is_copied,
    engines_that_share_nothing_offer_nothing,
)
