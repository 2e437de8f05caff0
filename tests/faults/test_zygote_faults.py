"""Faults of zygotes, and nodes that are killed."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from dandelion.backends.process.engine import ProcessEngine

from dandelion.errors import DandelionError, EngineDied, TimedOut
from dandelion.memory import SharedDomain
from dandelion.testing import Failing, Tracked
from tests.faults.background_calls import ECHO, ROOT, SLEEP, Background, pool_of
from tests.processes import children, children_of, command_of, gone, kill, opened
from tests.python_functions import call_of, first, function, process_engine, run

ANSWERS_BETWEEN_KILLS = 5


def zygotes() -> list[int]:
    """Zygotes that any thread of this process started."""
    return [pid for pid in children() if b"process.zygote" in (command_of(pid) or b"")]


@pytest.fixture
def engine() -> Iterator[ProcessEngine]:
    with process_engine() as engine:
        yield engine


def test_a_zygote_killed_during_a_call(engine: ProcessEngine) -> None:
    call = Background(engine, call_of(SLEEP, b""))
    zygote = pool_of(engine).pid()
    os.kill(zygote, signal.SIGKILL)
    assert isinstance(call.join(), EngineDied)
    assert first(run(engine, ECHO, b"1")).bytes() == b"1"
    assert pool_of(engine).pid() != zygote


def test_a_zygote_killed_between_calls(engine: ProcessEngine) -> None:
    for _ in range(3):
        assert first(run(engine, ECHO, b"1")).bytes() == b"1"
        pool = pool_of(engine)
        zygote = pool.pid()
        waiting = opened(children_of(zygote))
        os.kill(zygote, signal.SIGKILL)
        assert gone(waiting)
    assert first(run(engine, ECHO, b"1")).bytes() == b"1"


def test_a_stopped_zygote_costs_no_more_than_the_deadline(engine: ProcessEngine) -> None:
    run(engine, ECHO, b"")
    zygote = pool_of(engine).pid()
    os.kill(zygote, signal.SIGSTOP)
    try:
        with pytest.raises(TimedOut):
            for _ in range(10):
                run(engine, ECHO, b"", left_s=0.1)
    finally:
        os.kill(zygote, signal.SIGCONT)
    assert first(run(engine, ECHO, b"1")).bytes() == b"1"


def test_closing_during_a_call_ends_it() -> None:
    with process_engine() as engine:
        call = Background(engine, call_of(SLEEP, b""))
        pidfd = os.pidfd_open(call.sandbox.pid)
        engine.close()
        assert isinstance(call.join(), DandelionError)
        assert gone([pidfd])


def test_nothing_is_left_after_failures_of_all_kinds() -> None:
    sources = [
        "return x",
        "return bytes(1 << 17)",
        "raise KeyError",
        "import os; os._exit(1)",
        "import os; os.abort()",
        "open('/etc/passwd')",
        "return bytes(1 << 40)",
        "import os; os.write(3, b'no')",
        "import time; time.sleep(60)",
        "import json; return json",
    ]
    functions = [function(f"def f(x):\n    {s}\n", wall_s=0.05) for s in sources]
    domain = Tracked(SharedDomain(1 << 22))
    with process_engine():  # what Python opens once for all, is open now
        pass
    gc.collect()  # what other tests left to the collector would go meanwhile
    descriptors = set(os.listdir("/proc/self/fd"))
    threads = set(threading.enumerate())
    with process_engine() as engine:
        failed = 0
        for fn in functions * 3:
            for value in (b"small", bytes(100_000)):
                try:
                    run(engine, fn, value, domain=domain)
                except DandelionError:
                    failed += 1
        assert failed >= 2 * 3 * (len(sources) - 2)
        processes = opened(p for z in zygotes() for p in (z, *children_of(z)))
        assert processes
    assert gone(processes)
    assert zygotes() == []
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    assert set(threading.enumerate()) <= threads
    assert domain.alive == []
    domain.close()


def test_a_domain_that_fails_loses_nothing(engine: ProcessEngine) -> None:
    domain = Failing(SharedDomain(1 << 22), after=1)
    large = function("def f(x):\n    return bytes(1 << 17)\n")
    run(engine, large, b"", domain=domain)
    for _ in range(3):
        with pytest.raises(DandelionError):
            run(engine, large, b"", domain=domain)
    assert domain.stats().contexts == 0
    domain.close()


_NODE = """
import sys
from tests.python_functions import *
with process_engine(ahead=3) as engine:
    run(engine, function("def f(x): return x"), b"")
    print("ready", flush=True)
    run(engine, function("def f(x):\\n    while True: pass\\n"), b"")
"""


_IMPORTING = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.python_functions import *
with process_engine() as engine:
    print("ready", flush=True)
    run(engine, function("def f(x): pass", imports="endless"), b"")
"""


_STARTING = """
import os, signal, sys
from dandelion.backends.native import sandbox_pool as native
from dandelion.backends.process import sandbox_pool as process
if sys.argv[1] == "native":
    zygote = native._Zygote(-1).process.pid
else:
    zygote = process._Zygote(process.PLAIN, 1).process.pid
os.kill(zygote, signal.SIGSTOP)
print(zygote, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("backend", ["process", "native"])
def test_a_zygote_stopped_as_it_starts_does_not_outlive_the_node(backend: str) -> None:
    command = [sys.executable, "-c", _STARTING, backend]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as node:
        assert node.stdout is not None
        pidfd = os.pidfd_open(int(node.stdout.readline()))
        node.kill()
        try:
            assert select.select([pidfd], [], [], 20)[0]
        finally:
            kill([pidfd])
            os.close(pidfd)


def test_nothing_outlives_a_killed_node() -> None:
    node = subprocess.Popen([sys.executable, "-c", _NODE], stdout=subprocess.PIPE, cwd=ROOT)
    with node:
        assert node.stdout is not None
        assert node.stdout.readline() == b"ready\n"
        zygotes = children_of(node.pid)
        assert len(zygotes) == 2  # one for calls, one for examining sources
        sandboxes = [pid for zygote in zygotes for pid in children_of(zygote)]
        assert len(sandboxes) >= 2
        descendants = [*zygotes, *sandboxes]
        pidfds = opened(descendants)
        node.kill()
        assert gone(pidfds)


def test_not_even_an_import_that_never_ends_outlives_a_killed_node(tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    (tmp_path / "endless.py").write_text(
        f"import time\nopen({str(started)!r}).read()\nwhile True: time.sleep(1)\n"
    )
    command = [sys.executable, "-c", _IMPORTING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == b"ready\n"
        with started.open("w"):  # opens when the import reads
            pidfds = opened(children_of(node.pid))
        assert len(pidfds) == 3  # of calls without imports, of those with, of sources
        node.kill()
        assert gone(pidfds)


def test_parallel_engines_with_kills_all_recover() -> None:
    errors: list[BaseException] = []
    answered = threading.Semaphore(0)
    kills = died = 0

    def work(engine: ProcessEngine) -> None:
        nonlocal died
        for number in range(25):
            value = str(number).encode()
            try:
                if first(run(engine, ECHO, value)).bytes() != value:
                    errors.append(AssertionError(number))
                answered.release()
            except EngineDied:
                died += 1  # allowed: a pure call would be run again
            except BaseException as error:
                errors.append(error)
        answered.release(ANSWERS_BETWEEN_KILLS)  # the last kill waits for no further ones

    with process_engine() as one:
        shared = one._pools, one._programs, one._constants, one._architecture
        two = ProcessEngine("two", *shared)
        with closing(two):
            threads = [threading.Thread(target=work, args=(e,)) for e in (one, two)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                for _ in range(ANSWERS_BETWEEN_KILLS):
                    answered.acquire(timeout=60.0)
                zygote = pool_of(one)._running().process
                doomed = opened([zygote.pid, *children_of(zygote.pid)])
                zygote.kill()  # safe though it may be reaped any time
                kills += 1
                assert gone(doomed)  # not before long, if there is much else to do
            assert errors == []
            assert kills > 3
            assert died < 25
            for engine in (one, two):
                with suppress(EngineDied):  # the last kill may have met the sandbox that waits
                    run(engine, ECHO, b"0")
                assert first(run(engine, ECHO, b"1")).bytes() == b"1"
