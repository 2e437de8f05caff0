"""A broker and kernel hosts that send wrong answers, die or hang; hosts are scripted."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from dandelion.backends.gpu import pocl

from dandelion.confinement.lockdown import landlock_abi
from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    DandelionError,
    EngineDied,
    Faulted,
    TimedOut,
)
from dandelion.testing import StoppedCall

from .kernel_attacks import Attacker, attacker, function, packed, skip_without_opencl

pytestmark = pytest.mark.skipif(landlock_abi() < 2, reason="this kernel has no Landlock")

HOST = """
import os, signal, socket, struct, sys, time
import msgspec
from dandelion.backends.gpu.host_messages import Confined, TemplateSettings
from dandelion.backends.gpu.host_template import serve
from dandelion.driver import Capacity
from dandelion.engine_process.messages import (
    Done, Failed, Load, Ready, Run, WireItem, WireSet, request_channel,
)
from dandelion.errors import *
from dandelion.memory import ArenaMap

def raw(data):
    peer.setblocking(True)
    peer.sendall(data)
    peer.setblocking(False)

def sets(run, size=None, offset=None, name="item"):
    # results has the size of the script, memory its own; both lie behind one another
    script, second = (s.items[0] for s in run.inputs)
    at = run.result_offset
    step = -(-script.size // 256) * 256
    sizes = (script.size, second.size)
    places = (at, at + step)
    if offset is not None:
        places = (offset, offset)
    if size is not None:
        sizes = (size, size)
    return tuple(
        WireSet(n, (WireItem(name, 0, p, s),))
        for n, p, s in zip(("results", "memory"), places, sizes)
    )

def play(settings, socket_fd, memory_fd):
    global peer, broker, memory, run, honest
    peer = socket.socket(fileno=socket_fd)
    broker = request_channel(peer)
    memory = ArenaMap(memory_fd, settings.memory_bytes)
    broker.send(Ready("opencl", "opencl:cpu", (), "", Capacity(1 << 24)))
    broker.send(Confined({"played": "yes"}))
    name = ""
    while True:
        request = broker.receive()
        if isinstance(request, Load):
            name = request.spec.name
            continue
        run = request
        honest = Done(run.call, sets(run), {"plan": 1})
        if name != "Honest":
            exec(LIE, globals())
        broker.send(honest)

serve(msgspec.json.decode(sys.argv[1], type=TemplateSettings).control_fd, play)
"""

LIES = {
    "offset-outside": "honest = Done(run.call, sets(run, offset=1 << 40), {})",
    "offset-in-front": "honest = Done(run.call, sets(run, offset=0), {})",
    "overlapping": "honest = Done(run.call, sets(run, offset=run.result_offset), {})",
    "negative": "honest = Done(run.call, sets(run, offset=-4096), {})",
    "huge": "honest = Done(run.call, sets(run, size=1 << 62), {})",
    "other-size": "honest = Done(run.call, sets(run, size=8), {})",
    "other-name": "honest = Done(run.call, sets(run, name='../other'), {})",
    "no-sets": "honest = Done(run.call, (), {})",
    "absent-sets": "honest = Done(run.call, (None, None), {})",
    "many-sets": "honest = Done(run.call, sets(run) * 1000, {})",
    "many-items": "items = sets(run)[0].items * 9999\n"
    "honest = Done(run.call, (WireSet('results', items),) * 2, {})",
    "other-call": "honest = Done(run.call + 1, sets(run), {})",
    "ready-again": "honest = Ready('opencl', 'x', (), '')",
    "confined-again": "honest = Confined({})",
    "garbage": "raw(struct.pack('<I', 9) + b'\\xc1' * 9); time.sleep(60)",
    "noise": "raw(os.urandom(4096)); time.sleep(60)",
    "nested": "raw(struct.pack('<I', 9999) + b'\\x91' * 9999); time.sleep(60)",
    "half": "raw(struct.pack('<I', 500) + b'half'); os._exit(3)",
    "longest": "raw(b'\\xff\\xff\\xff\\xff' + bytes(1 << 20)); time.sleep(60)",
    "unknown-error": "honest = Failed(run.call, ErrorRecord('SystemExit', 'x', {}))",
    "wrong-fields": "honest = Failed(run.call, ErrorRecord('TimedOut', 'x', "
    "{'function': [1], 'what': {}, 'limit_s': 'x'}))",
    "dead-engine": "honest = Failed(run.call, EngineDied('opencl:cpu', 'x').record(), {}, True)",
    "lost-backend": "honest = Failed(run.call, BackendUnavailable('opencl', 'x').record())",
    "exit": "os._exit(0)",
    "abort": "os.abort()",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
}  # fmt: skip


def played(lie: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-c", HOST.replace("LIE", repr(lie)))


def honest(who: Attacker) -> None:
    who.attack([("getpid",)], wanted=function("Honest"))


_available = pytest.fixture(autouse=True)(skip_without_opencl)


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_costs_its_own_call(lie: str) -> None:
    with attacker(played(LIES[lie])) as who:
        honest(who)
        kept = who.engine.hosts()
        with pytest.raises(DandelionError) as caught:
            who.attack([("getpid",)], wanted=function("Liar"))
        who.engine.clean_up()
        assert isinstance(caught.value, Faulted), caught.value
        assert caught.value.function == "Liar"
        assert not who.engine.lost
        assert who.engine.hosts() == kept
        honest(who)
        assert who.engine.hosts() == kept


@pytest.mark.parametrize("lie", ["time.sleep(60)", "raw(struct.pack('<I', 99)); time.sleep(60)"])
def test_silence_costs_the_time_of_its_call(lie: str) -> None:
    with attacker(played(lie)) as who:
        honest(who)
        call = who.call(function("Liar"), packed([("getpid",)]), b"x", 10**9)
        with pytest.raises(TimedOut):
            who.run(call)
        honest(who)


def test_a_call_that_is_not_wanted_ends_with_its_host() -> None:
    with attacker(played("time.sleep(60)")) as who:
        honest(who)
        kept = who.engine.hosts()
        lasted_ns = []
        for _ in range(3):
            call = who.call(function("Liar"), packed([("getpid",)]), b"x")
            stopped = StoppedCall.like(call, looks=2)
            with pytest.raises(Cancelled):
                who.run(stopped)
            lasted_ns.append(time.monotonic_ns() - stopped.stopped_ns)
            assert who.engine.hosts() == kept
        assert min(lasted_ns) < 20_000_000_000
        honest(who)


def test_two_answers_are_found_before_the_next_call() -> None:
    with attacker(played("broker.send(honest)")) as who:
        wanted = function("Liar")
        who.attack([("getpid",)], wanted=wanted)
        first = who.engine.hosts()[wanted.identity]
        host = who.engine._hosts[wanted.identity]
        while host._channel.take() is None:
            pass
        host.well = False  # this test has read its state
        who.attack([("getpid",)], wanted=wanted)
        assert who.engine.hosts()[wanted.identity] != first


def test_stages_are_numbers_that_make_sense() -> None:
    lie = "honest = Done(run.call, sets(run), {'plan': -5, 'kernels': 2**62, 'x' * 999: 1})"
    with attacker(played(lie)) as who:
        call = who.call(function("Liar"), packed([("getpid",)]), b"x")
        who.run(call)
        assert set(call.stages) == {"plan", "copy_in", "kernels", "copy_out"}
        assert call.stages["plan"] == 0
        assert call.stages["kernels"] < 2**60


def test_a_host_that_cannot_start_makes_the_backend_unavailable() -> None:
    command = (sys.executable, "-P", "-c", "raise SystemExit(4)")
    with pytest.raises(EngineDied, match="code 4"), attacker(command):
        pass


def test_a_killed_host_is_replaced_without_an_error() -> None:
    with attacker(played("")) as who:
        wanted = function("Honest")
        who.attack([("getpid",)], wanted=wanted)
        before = who.engine.hosts()[wanted.identity]
        host = who.engine._hosts[wanted.identity]
        host.child.kill()
        host.child.wait()
        who.attack([("getpid",)], wanted=wanted)
        assert who.engine.hosts()[wanted.identity] != before
        assert not Path(host.folder).exists()


def test_no_function_is_blamed_for_the_end_of_the_template(tmp_path: Path) -> None:
    flag = tmp_path / "killed"
    lie = f"os.path.exists({str(flag)!r}) and os.kill(os.getpid(), signal.SIGKILL)"
    with attacker(played(lie)) as who:
        wanted = function("Liar")
        who.attack([("getpid",)], wanted=wanted)
        who.engine._ahead._waiting = who.engine._started()
        flag.touch()  # from now on all hosts end by the signal that they get with their template
        who.engine._template._process.kill()
        with pytest.raises(EngineDied):
            who.attack([("getpid",)], wanted=wanted)


@pytest.mark.parametrize("value", ["", "nonsense"])
def test_no_device_names_the_variable_that_hides_it(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("POCL_DEVICES", value)
    bare = SimpleNamespace(get_platforms=list, Error=RuntimeError)
    with pytest.raises(BackendUnavailable) as caught:
        pocl.opencl_devices(bare)
    assert f"POCL_DEVICES (now '{value}')" in caught.value.remedy
    assert "pip install" not in caught.value.remedy


def test_no_device_says_what_pocl_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """PoCL has no device if its user has no cache folder, as a service without a home."""
    monkeypatch.delenv("POCL_DEVICES", raising=False)
    bare = SimpleNamespace(get_platforms=list, Error=RuntimeError)
    with pytest.raises(BackendUnavailable) as caught:
        pocl.opencl_devices(bare)
    command, _, rest = caught.value.remedy.partition(", and ")
    assert command.startswith("pip install")
    assert "XDG_CACHE_HOME" in rest
