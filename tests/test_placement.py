"""Placement: first in, first out, and which engine of a device a call goes to."""

import pytest
from dandelion.node.hosts import EngineHost, HostFacts, State, Work
from dandelion.node.placement import FifoPlacement, Needs

from dandelion.driver import Capacity, Demand


class Idle(EngineHost):
    """A host that never does anything."""

    def _submit(self, work: Work) -> None: ...

    def close(self) -> None: ...


def host(name: str, formats: str = "x", *, worker: bool = False, shared: bool = False,
         room: int = 0, blocks: int = 0, places: int = 1) -> EngineHost:  # fmt: skip
    facts = HostFacts("b", "0", name, capacity=Capacity(room, blocks))
    facts.worker, facts.shared_fault_domain = worker, shared
    made = Idle(facts, frozenset(formats.split()), places, lambda _: None)
    made.state = State.READY
    return made


def placement(*hosts: EngineHost) -> FifoPlacement[str]:
    made: FifoPlacement[str] = FifoPlacement()
    for one in hosts:
        made.add_host(one)
    return made


def chosen(p: FifoPlacement[str], needs: Needs) -> str | None:
    found = p.place(needs)
    return None if found is None else found[0].facts.name


GPU = Needs(("x",), Demand(device_bytes=10, blocks=1))


def device(*, busy: str = "", down: str = "") -> FifoPlacement[str]:
    """A device with a sequential engine and two workers that share their fate."""
    hosts = [
        host("sequential", room=100, blocks=50),
        host("worker0", worker=True, shared=True, room=20, blocks=50),
        host("worker1", worker=True, shared=True, room=20, blocks=50),
    ]
    for one in hosts:
        one.busy = one.facts.name in busy.split()
        if one.facts.name in down.split():
            one.state = State.STARTING
    return placement(*hosts)


def test_small_calls_go_to_workers_and_wait_for_them() -> None:
    assert chosen(device(), GPU) == "worker0"
    assert chosen(device(busy="worker0"), GPU) == "worker1"
    assert chosen(device(busy="worker0 worker1"), GPU) is None


def test_the_other_kind_takes_what_its_own_kind_cannot() -> None:
    assert chosen(device(down="worker0 worker1"), GPU) == "sequential"
    filling = Needs(("x",), Demand(device_bytes=1, blocks=50))
    assert chosen(device(down="sequential"), filling) == "worker0"


def test_workers_that_share_their_fate_are_used_when_all_are_up() -> None:
    assert chosen(device(down="worker1"), GPU) == "sequential"
    p = device(down="worker1", busy="sequential")
    assert chosen(p, GPU) is None
    p.wait(GPU, "a")
    sequential, worker0, worker1 = p.hosts(("x",))
    assert p.next_for(worker0) is None
    worker1.state = State.READY
    assert p.next_for(sequential) is None
    assert p.next_for(worker0) == ("a", "x")


def test_calls_that_need_more_memory_than_a_worker_has_are_sequential() -> None:
    large = Needs(("x",), Demand(device_bytes=21, blocks=1))
    assert chosen(device(), large) == "sequential"
    assert chosen(device(busy="sequential"), large) is None
    assert device(busy="sequential").possible(large)
    assert not device().possible(Needs(("x",), Demand(device_bytes=101)))


@pytest.mark.parametrize(("blocks", "expected"), [(49, "worker0"), (50, "sequential")])
def test_calls_that_fill_the_device_are_sequential(blocks: int, expected: str) -> None:
    assert chosen(device(), Needs(("x",), Demand(device_bytes=1, blocks=blocks))) == expected


@pytest.mark.parametrize(
    ("blocks", "threads", "fills"),
    [
        (256, 66, False),  # of 2048 threads a unit holds 31 such blocks
        (49, 1024, False),
        (264, 1024, True),  # two in each of 132 units
        (263, 1024, False),
        (132, 2048, True),
        (132 * 32, 1, True),  # small blocks count as 64 threads
        (132 * 32 - 1, 32, False),
    ],
)
def test_a_launch_fills_a_device_that_holds_no_more_of_its_blocks(
    blocks: int, threads: int, fills: bool
) -> None:
    h200 = Capacity(1 << 30, 132, ("sm_90",), 2048)
    assert h200.saturated_by(Demand(blocks=blocks, block_threads=threads)) is fills


def test_a_device_that_does_not_tell_is_full_with_a_block_for_each_unit() -> None:
    assert Capacity(0, 2).saturated_by(Demand(blocks=2, block_threads=8))
    assert not Capacity(0, 2).saturated_by(Demand(blocks=1, block_threads=1024))
    assert not Capacity().saturated_by(Demand(blocks=10**6, block_threads=1024))


def test_an_idle_worker_that_knows_the_function_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"worker0": {"f": 1}, "worker1": {"f": 2, "g": 1}}
    monkeypatch.setattr(
        Idle, "knows", lambda self, function: known.get(self.facts.name, {}).get(function, 0)
    )
    here = device()
    f, g = (Needs(("x",), Demand(device_bytes=1), function=name) for name in "fg")
    assert chosen(here, f) == "worker1"
    assert chosen(here, g) == "worker1"
    assert chosen(device(busy="worker1"), f) == "worker0"


def test_filling_calls_take_a_worker_where_there_is_nothing_else() -> None:
    workers = placement(
        host("worker0", worker=True, blocks=50), host("worker1", worker=True, blocks=50)
    )
    assert chosen(workers, Needs(("x",), Demand(blocks=500))) == "worker0"


def test_calls_that_must_run_alone_avoid_shared_fault_domains() -> None:
    alone = Needs(("x",), Demand(device_bytes=1), alone=True)
    assert chosen(device(), alone) == "sequential"
    assert chosen(device(busy="sequential"), alone) is None


def test_the_oldest_call_that_fits_comes_first() -> None:
    a, b = host("a", "x"), host("b", "y")
    p = placement(a, b)
    calls = ["0", "1", "2", "3"]
    for call, formats in zip(calls, [("y",), ("x",), ("x", "y"), ("y",)], strict=True):
        p.wait(Needs(formats), call)
    assert p.next_for(a) == ("1", "x")
    assert p.next_for(b) == ("0", "y")
    assert p.next_for(b) == ("2", "y")
    assert p.next_for(a) is None
    assert len(p) == 1
    assert p.drop(calls[3])
    assert not p.drop(calls[3])


def test_a_call_that_does_not_fit_does_not_hold_up_the_line() -> None:
    worker = host("worker", worker=True, room=20)
    p = placement(host("sequential", room=100), worker)
    p.wait(Needs(("x",), Demand(device_bytes=90)), "large")
    p.wait(Needs(("x",), Demand(device_bytes=5)), "small")
    assert p.next_for(worker) == ("small", "x")
    assert p.next_for(worker) is None
    assert list(p.waiting()) == ["large"]


def test_the_first_format_with_a_free_host_is_taken() -> None:
    a, b = host("a", "x"), host("b", "y")
    p = placement(a, b)
    assert p.place(Needs(("y", "x"))) == (b, "y")
    b.busy = 1
    assert p.place(Needs(("y", "x"))) == (a, "x")
