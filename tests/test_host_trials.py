"""Hosts with and without threads are compared while calls go on; hosts are scripted."""

from __future__ import annotations

import array
import os
import struct
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from dandelion.backends.gpu import host_trials, pocl_runtime
from dandelion.backends.gpu.host_trials import CALLS, Phase

from dandelion.confinement.lockdown import landlock_abi
from dandelion.driver import Call, load_driver
from dandelion.errors import BackendUnavailable, Cancelled, Faulted, TimedOut

from .kernel_attacks import CONFINED, Attacker, Script, attacker, function, packed

pytestmark = pytest.mark.skipif(landlock_abi() < 2, reason="this kernel has no Landlock")

WANTED = function("Wanted")
SCRIPT = packed([("getpid",)])
LIMIT_S = 30.0
# Each host writes whether it has threads to the first result, and may wait before it answers.
HOST = """
import os, signal, socket, struct, sys, time
import msgspec
from dandelion.backends.gpu.host_messages import Confined, TemplateSettings
from dandelion.backends.gpu.host_template import serve
from dandelion.driver import Capacity
from dandelion.engine_process.messages import (
    Done, Load, Ready, Run, WireItem, WireSet, request_channel,
)
from dandelion.memory import ArenaMap

def play(settings, socket_fd, memory_fd):
    broker = request_channel(socket.socket(fileno=socket_fd))
    memory = ArenaMap(memory_fd, settings.memory_bytes)
    threads = settings.threads
    START
    broker.send(Ready("opencl", "opencl:cpu", (), "", Capacity(1 << 24)))
    broker.send(Confined({"played": "yes"}))
    calls = 0
    while True:
        run = broker.receive()
        if isinstance(run, Load):
            continue
        calls += 1
        script, second = (s.items[0] for s in run.inputs)
        at = run.result_offset
        struct.pack_into("<qq", memory.view, at, threads, calls)
        places = ((at, script.size), (at + -(-script.size // 256) * 256, second.size))
        RUN
        sets = (WireSet(n, (WireItem("item", 0, o, s),))
            for n, (o, s) in zip(("results", "memory"), places))
        broker.send(Done(run.call, tuple(sets), {}))

serve(msgspec.json.decode(sys.argv[1], type=TemplateSettings).control_fd, play)
"""


@pytest.fixture(autouse=True)
def _available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(pocl_runtime._DEVICES, raising=False)
    try:
        load_driver("opencl").factory().probe()
    except BackendUnavailable as error:
        pytest.skip(str(error))


def scripted(run: str = "pass", start: str = "pass") -> tuple[str, ...]:
    return (sys.executable, "-P", "-c", HOST.replace("RUN", run).replace("START", start))


def broker(command: tuple[str, ...], processes: int = 4) -> AbstractContextManager[Attacker]:
    """Start an engine that begins a trial as soon as a function was called some times."""
    return attacker(command, processes, threads=2, trial_ns=-(10**12))


def called(who: Attacker, wanted: str = "Wanted", limit_ns: int = 10**10) -> tuple[bool, int]:
    """Make a call; return whether its host has threads, and how many calls that host had."""
    call = who.call(WANTED if wanted == "Wanted" else function(wanted), SCRIPT, b"x" * 16, limit_ns)
    try:
        results, _ = who.run(call)
    finally:
        who.engine.clean_up()
    threads, calls = struct.unpack_from("<qq", results)
    return bool(threads), calls


def until(who: Attacker, condition: Callable[[], bool]) -> list[tuple[bool, int]]:
    """Call until a condition holds."""
    made: list[tuple[bool, int]] = []
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, made[-20:]
        made.append(called(who))
    return made


def phase(who: Attacker) -> Phase | None:
    trial = who.engine._trials.current
    return None if trial is None else trial.phase


def decided(who: Attacker) -> bool:
    use = who.engine._trials._uses.get(WANTED.identity)
    return use is not None and use.is_settled


def test_the_faster_host_without_threads_stays() -> None:
    with broker(scripted("threads and time.sleep(0.002)")) as who:
        made = until(who, lambda: decided(who))
        assert made[0] == (True, 1)
        rival = [calls for threads, calls in made if not threads]
        assert rival == list(range(2, CALLS + 2)), "its first call is dropped, no other one is"
        with_threads = [calls for threads, calls in made if threads]
        assert with_threads == list(range(1, len(with_threads) + 1)), "none is made twice"
        assert [called(who) for _ in range(3)] == [(False, CALLS + 2 + n) for n in range(3)]
        assert len(who.engine.hosts()) == 1


def test_the_faster_host_with_threads_stays() -> None:
    with broker(scripted("threads or time.sleep(0.004)")) as who:
        until(who, lambda: decided(who))
        kept = who.engine.hosts()
        for _ in range(3 * CALLS):
            assert called(who)[0]
        assert phase(who) is None
        assert who.engine.hosts() == kept


def test_long_calls_have_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_trials, "BRIEF_NS", 0)
    with broker(scripted()) as who:
        for _ in range(3 * CALLS):
            assert called(who)[0]
            assert phase(who) is None


def test_a_host_without_threads_ends_when_calls_become_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with broker(scripted("threads and time.sleep(0.002)")) as who:
        until(who, lambda: decided(who))
        assert not called(who)[0]
        monkeypatch.setattr(host_trials, "BRIEF_NS", 0)
        until(who, lambda: called(who) == (True, 1))
        monkeypatch.undo()
        for _ in range(3 * CALLS):
            assert called(who)[0], "it is settled"


def test_no_call_waits_while_the_rival_compiles() -> None:
    with broker(scripted("not threads and calls == 1 and time.sleep(60)")) as who:
        until(who, lambda: phase(who) is Phase.COMPILING)
        for _ in range(50):
            assert called(who)[0]
        assert phase(who) is Phase.COMPILING


@pytest.mark.parametrize(
    ("run", "start"),
    [
        ("pass", "threads or os._exit(1)"),
        ("pass", "threads or broker.send(Done(1, (), {}))"),
        ("threads or os._exit(1)", "pass"),
        ("if not threads: run = msgspec.structs.replace(run, call=99)", "pass"),
        ("if not threads: places = places[:1]", "pass"),
    ],
    ids=["dies", "lies", "dies-in-its-call", "answers-another-call", "answers-less"],
)
def test_a_rival_that_fails_costs_no_call(run: str, start: str) -> None:
    with broker(scripted(run, start)) as who:
        made = until(who, lambda: decided(who))
        assert all(threads for threads, _ in made)
        kept = who.engine.hosts()
        assert called(who)[0]
        assert who.engine.hosts() == kept


def test_a_rival_that_dies_in_a_call_costs_that_call_alone() -> None:
    with broker(scripted("not threads and calls == 3 and os._exit(1)")) as who:
        kept = None
        with pytest.raises(Faulted, match="code 1"):
            while True:
                called(who)
                kept = kept or who.engine.hosts()
        assert phase(who) is None
        assert who.engine.hosts() == kept
        assert called(who)[0]


def test_a_rival_that_is_late_in_a_call_costs_that_call_alone() -> None:
    with broker(scripted("not threads and calls == 2 and time.sleep(60)")) as who:
        until(who, lambda: phase(who) is Phase.COMPARING)
        kept = who.engine.hosts()
        with pytest.raises(TimedOut):
            for _ in range(3):
                called(who, limit_ns=10**8)
        assert who.engine.hosts() == kept
        assert called(who)[0]


def test_a_rival_that_ended_between_calls_costs_none() -> None:
    with broker(scripted()) as who:
        until(who, lambda: phase(who) is Phase.COMPARING)
        trial = who.engine._trials.current
        assert trial is not None
        trial.rival.child.kill()
        trial.rival.child.wait()
        assert called(who)[0]
        assert phase(who) is None
        assert decided(who)


def test_a_new_function_takes_the_place_of_a_rival() -> None:
    with broker(scripted("not threads and time.sleep(60)"), processes=2) as who:
        until(who, lambda: phase(who) is not None)
        assert called(who, "Other")[0]
        assert phase(who) is None
        assert not decided(who), "there may be a trial later"
        assert len(who.engine.hosts()) == 2


def test_one_process_has_no_rival() -> None:
    with broker(scripted(), processes=1) as who:
        for _ in range(3 * CALLS):
            assert called(who)[0]
            assert phase(who) is None


def test_a_function_that_is_forgotten_takes_its_rival_along() -> None:
    with broker(scripted("not threads and time.sleep(60)")) as who:
        until(who, lambda: phase(who) is Phase.COMPILING)
        trial = who.engine._trials.current
        assert trial is not None
        who.engine.forget(WANTED)
        assert phase(who) is None
        assert trial.rival.child.wait(LIMIT_S) is not None
        assert who.engine.hosts() == {}


def test_the_input_of_a_rehearsal_is_zeroed() -> None:
    with broker(scripted()) as who:
        until(who, lambda: phase(who) is Phase.COMPARING)  # it has had no call of its own yet
        trial = who.engine._trials.current
        assert trial is not None
        memory = trial.rival.memory.map.view
        assert not any(memory[: 1 << 16])


def test_nothing_of_a_rehearsed_call_is_kept() -> None:
    with broker(scripted("not threads and calls == 1 and time.sleep(60)")) as who:
        until(who, lambda: phase(who) is Phase.CONFINED)
        data = array.array("B", bytes(16))
        who.run(who.call(WANTED, SCRIPT, memoryview(data)))  # type: ignore[arg-type]  # as engines get it
        assert phase(who) is Phase.COMPILING
        given = weakref.ref(data)
        del data
        assert given() is None


def test_a_call_with_little_time_left_goes_to_the_host_that_is_there() -> None:
    with broker(scripted()) as who:
        until(who, lambda: phase(who) is Phase.COMPARING)
        trial = who.engine._trials.current
        assert trial is not None
        trial._rehearsed_s = 5.0
        assert all(called(who, limit_ns=4 * 10**9)[0] for _ in range(4))
        assert not called(who)[0]


def test_a_function_that_is_no_longer_called_ends_its_trial() -> None:
    with broker(scripted()) as who:
        until(who, lambda: phase(who) is Phase.COMPARING)
        trial = who.engine._trials.current
        assert trial is not None
        called(who, "Other")
        assert phase(who) is Phase.COMPARING
        trial._end_s = 0.0
        called(who, "Other")
        assert phase(who) is None
        assert trial.rival.child.wait(LIMIT_S) is not None
        assert not decided(who), "there may be a trial later"


class Stopped(Call):
    """A call whose invocation has ended."""

    def is_stopped(self) -> bool:
        return True


def test_a_call_that_is_cancelled_on_the_rival_decides_nothing() -> None:
    with broker(scripted("not threads and calls == 2 and time.sleep(60)")) as who:
        until(who, lambda: phase(who) is Phase.COMPARING)
        kept = who.engine.hosts()
        like = who.call(WANTED, SCRIPT, b"x" * 16)
        with pytest.raises(Cancelled):
            who.engine.run(Stopped(0, WANTED, like.inputs, like.domain, like.deadline_ns))
        who.engine.clean_up()
        assert phase(who) is None
        assert not decided(who)
        assert who.engine.hosts() == kept
        assert called(who)[0]


def test_devices_that_the_operator_chose_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pocl_runtime._DEVICES, "pthread")
    with broker(scripted()) as who:
        for _ in range(3 * CALLS):
            assert called(who)[0]
            assert phase(who) is None


def confinement(pid: int) -> dict[str, str]:
    """Read what a process may do."""
    fields = (
        "Uid",
        "Gid",
        "Groups",
        "CapEff",
        "CapBnd",
        "NoNewPrivs",
        "Seccomp",
        "Seccomp_filters",
    )
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {
        name: rest for name, _, rest in (line.partition(":") for line in lines) if name in fields
    }


def test_a_real_rival_has_fewer_threads_and_no_other_rights() -> None:
    attack: Script = [("socket", 2, 1, 0), ("getpid",), ("fork",)]
    with broker(CONFINED) as who:
        end_s = time.monotonic() + LIMIT_S
        while phase(who) is not Phase.COMPARING and time.monotonic() < end_s:
            who.attack(attack, wanted=WANTED)
        trial = who.engine._trials.current
        assert trial is not None
        rival, host = trial.rival.child.pid, who.pid(WANTED)
        assert len(os.listdir(f"/proc/{rival}/task")) < len(os.listdir(f"/proc/{host}/task"))
        assert confinement(rival) == confinement(host)
        assert confinement(rival)["Seccomp"].strip() == "2"
        answered = [who.attack(attack, wanted=WANTED)[0] for _ in range(4)]
        assert {results[1] for results in answered} == {rival, host}
        assert all(results[0] == results[2] == -1 for results in answered)
