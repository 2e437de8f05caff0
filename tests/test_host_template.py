"""The template of kernel hosts: what its hosts share, and what they do not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dandelion.backends.gpu import pocl
from dandelion.backends.gpu.confined import ConfinedEngine
from dandelion.backends.gpu.host_memory import HostMemory
from dandelion.backends.gpu.host_template import HostChild, HostTemplate
from dandelion.backends.opencl import OpenClDriver, OpenClFactory

from dandelion.confinement.lockdown import landlock_abi
from dandelion.errors import BackendUnavailable, EngineDied

from .kernel_attacks import CONFINED, SOURCE, Attacker, attacker, function, skip_without_opencl
from .processes import open_files

ROOT = Path(__file__).resolve().parent.parent
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can look into a kernel host")
pytestmark = pytest.mark.skipif(landlock_abi() < 2, reason="this kernel has no Landlock")

BROKER = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from tests.kernel_attacks import CONFINED, attacker
with attacker(CONFINED) as who:
    who.attack([("getpid",)])
    print(who.template, who.pid(), flush=True)
    time.sleep(600)
"""

MISSING = """
import sys
from dandelion.backends.gpu import kernel_host as h
from dandelion.errors import BackendUnavailable
def load(settings):
    raise BackendUnavailable("opencl", "a library of the test")
h.load = load
sys.exit(h.main(sys.argv[1:]))
"""


_available = pytest.fixture(autouse=True)(skip_without_opencl)


@pytest.fixture(scope="module")
def confined() -> Iterator[Attacker]:
    with attacker(CONFINED, processes=1) as made:
        yield made


def state(pid: int) -> str:
    """Return the letter of a process's state; empty if there is no such process."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def lives(pid: int) -> bool:
    return state(pid) not in ("Z", "")


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)  # polls another process, which sends no event


def children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def holds(pid: int, wanted: bytes) -> bool:
    """Tell whether bytes are anywhere in the memory that a process can write to."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, access, *_ = line.split()
            if "w" not in access:
                continue
            start, end = (int(part, 16) for part in span.split("-"))
            with contextlib.suppress(OSError, OverflowError):
                memory.seek(start)
                while start < end and (data := memory.read(min(1 << 20, end - start))):
                    if wanted in data:
                        return True
                    start += len(data)
    return False


@AS_ROOT
def test_nothing_of_a_function_reaches_the_next_by_the_template(confined: Attacker) -> None:
    mark = os.urandom(16).hex()
    first, second = function("First", f"{SOURCE}\n/* {mark} */"), function("Second")
    confined.attack([("getpid",)], wanted=first)
    assert holds(confined.pid(first), mark.encode())
    assert not holds(confined.template, mark.encode())
    confined.attack([("getpid",)], wanted=second)
    assert not holds(confined.pid(second), mark.encode())


@AS_ROOT
def test_the_template_has_one_thread_and_one_connection(confined: Attacker) -> None:
    confined.attack([("getpid",)])
    place = Path(f"/proc/{confined.template}")
    assert len(list((place / "task").iterdir())) == 1
    files = [what.partition(":")[0] for what in open_files(confined.template)]
    assert sorted(files) == ["/dev/null"] * 3 + ["socket"]
    assert "memfd:dandelion" not in (place / "maps").read_text()


@AS_ROOT
def test_the_template_has_a_small_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "key")
    with attacker(CONFINED) as who:
        who.attack([("getpid",)])
        for pid in (who.template, who.pid()):
            assert b"A_SECRET" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_a_host_is_a_child_of_the_template_and_leaves_nothing(confined: Attacker) -> None:
    for number in range(4):
        wanted = function(f"Function{number}")
        confined.attack([("getpid",)], wanted=wanted)
        assert confined.pid(wanted) in children(confined.template)
    confined.engine._reap(20)
    assert len(children(confined.template)) <= 2  # the last, and one that waits
    assert not any(state(pid) == "Z" for pid in children(confined.template))


def test_a_host_that_dies_does_not_affect_the_template(confined: Attacker) -> None:
    confined.attack([("getpid",)])
    os.kill(confined.pid(), signal.SIGKILL)
    wait_for(lambda: not lives(confined.pid()))
    before = confined.template
    confined.attack([("getpid",)], wanted=function("Next"))
    assert lives(before)


def test_hosts_end_with_their_template() -> None:
    with attacker(CONFINED) as who:
        who.attack([("getpid",)])
        host = who.pid()
        os.kill(who.template, signal.SIGKILL)
        wait_for(lambda: not lives(host))
        with pytest.raises(EngineDied):
            who.attack([("getpid",)])


def test_a_template_that_is_stopped_is_ended() -> None:
    with attacker(CONFINED) as who:
        who.attack([("getpid",)])
        host = who.pid()
        os.kill(who.template, signal.SIGSTOP)
        begun_s = time.monotonic()
        with pytest.raises(EngineDied):
            for number in range(3):  # one host waits already
                who.attack([("getpid",)], wanted=function(f"Function{number}"))
        assert time.monotonic() - begun_s < 30
        wait_for(lambda: not lives(who.template))
        wait_for(lambda: not lives(host))


def test_the_template_and_its_hosts_end_with_a_broker_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", BROKER], stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        pids = [int(word) for word in broker.stdout.readline().split()]
        lived = [lives(pid) for pid in pids]
        broker.kill()
    assert lived == [True, True]
    for pid in pids:
        wait_for(lambda pid=pid: not lives(pid))


def test_what_cannot_be_loaded_makes_the_backend_unavailable() -> None:
    command = (sys.executable, "-P", "-c", MISSING)
    with pytest.raises(BackendUnavailable, match="a library of the test"), attacker(command):
        pass


# --- the device opened before hosts are forked ---------------------------------------------


def test_hosts_have_the_threads_that_the_template_has_not(confined: Attacker) -> None:
    confined.attack([("getpid",)])
    threads = len(list(Path(f"/proc/{confined.pid()}/task").iterdir()))
    assert threads > 1  # its own, and those of PoCL


@pytest.mark.parametrize("device", ["basic", "pthread"])
def test_a_device_that_cannot_be_opened_ahead_is_opened_in_the_hosts(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setenv("POCL_DEVICES", device)
    with attacker(CONFINED) as who:
        for number in range(3):
            assert who.attack([("socket", 2, 1, 0)], wanted=function(f"Function{number}"))[0][0] < 0


def test_a_device_of_another_name_is_not_there() -> None:
    driver = OpenClDriver()
    driver.configure({"pool_bytes": "16M"})
    runtime = driver.factory().host_runtime()
    assert runtime is not None
    with pytest.raises(BackendUnavailable, match="no device 'cpu7'"):
        ConfinedEngine(driver.options, runtime, "cpu7")


# --- started before it is known whether it is needed ---------------------------------------


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[OpenClFactory, list[int]]]:
    """A driver of an engine process, and the templates that it starts."""
    started: list[int] = []
    start = HostTemplate.__init__

    def noting(self: HostTemplate, *given: object) -> None:
        start(self, *given)  # type: ignore[arg-type]  # passed on as they are
        started.append(self.pid)

    monkeypatch.setattr(HostTemplate, "__init__", noting)
    driver = OpenClDriver()
    driver.configure({"pool_bytes": "16M"})
    factory = driver.factory()
    memory = HostMemory("test", 4096)
    factory.attach(memory.map)
    yield factory, started
    factory.drop_template()
    memory.close()


def test_an_engine_takes_the_template_that_was_started_ahead(
    attached: tuple[OpenClFactory, list[int]],
) -> None:
    factory, started = attached
    assert len(started) == 1
    engine = factory.engine(factory.probe()[0].name)
    assert len(started) == 1
    engine.close()
    assert state(started[0]) == ""


def test_a_template_that_is_not_needed_ends(
    attached: tuple[OpenClFactory, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    factory, started = attached

    def missing() -> None:
        raise BackendUnavailable("opencl", "pyopencl")

    monkeypatch.setattr(pocl, "binding", missing)
    with pytest.raises(BackendUnavailable):
        factory.probe()
    assert state(started[0]) == ""


def test_an_engine_of_this_process_ends_the_template(
    attached: tuple[OpenClFactory, list[int]],
) -> None:
    factory, started = attached
    factory.sequential("").close()
    assert state(started[0]) == ""


def test_kernels_that_are_trusted_need_no_template(
    attached: tuple[OpenClFactory, list[int]],
) -> None:
    _, started = attached
    memory = HostMemory("test", 4096)
    trusting = OpenClDriver()
    trusting.configure({"unconfined": "true"})
    trusting.factory().attach(memory.map)
    memory.close()
    assert len(started) == 1


def test_a_host_that_another_process_has_reaped_can_be_ended(confined: Attacker) -> None:
    """As all hosts are whose template ended, where there is a process that reaps them."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        child = HostChild(confined.engine._template, process.pid)
        process.wait()
        child.kill()
        assert child.wait(0.0) is not None
