"""Python functions that fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from dandelion.backends.process.cores import ProcessDriver
from dandelion.backends.process.engine import ProcessEngine
from dandelion.backends.process.outcome import LOG_BYTES

from dandelion.errors import (
    BadOutput,
    Cancelled,
    ContextFull,
    EngineDied,
    Exited,
    Faulted,
    InvalidInput,
    OutOfMemory,
    Raised,
    TimedOut,
)
from dandelion.memory import HeapDomain

from .python_functions import call_of, first, function, process_engine, run

ECHO = function("def f(x):\n    return x\n")


@pytest.fixture(scope="module")
def engine() -> Iterator[ProcessEngine]:
    with process_engine() as engine:
        yield engine


def test_raising_shows_the_users_lines_and_output(engine: ProcessEngine) -> None:
    fn = function(
        """
        import json
        def inner(text):
            return json.loads(text)
        def f(x):
            print("about to parse")
            return inner(x.text())
        """
    )
    with pytest.raises(Raised) as caught:
        run(engine, fn, b"{")
    assert caught.value.exception.startswith("JSONDecodeError: ")
    assert caught.value.traceback.splitlines()[1:] == [
        '  File "<function probe>", line 7, in f',
        "    return inner(x.text())",
        '  File "<function probe>", line 4, in inner',
        "    return json.loads(text)",
    ]
    assert caught.value.stderr == "about to parse\n"


@pytest.mark.parametrize(
    "method", ["raise RuntimeError('of str')", "return 3", "raise SystemExit(3)", "raise self"]
)
def test_an_exception_without_a_text_is_reported(engine: ProcessEngine, method: str) -> None:
    source = f"""
class Silent(Exception):
    def __str__(self):
        {method}

def f(x):
    raise Silent
"""
    with pytest.raises(
        Raised, match=r"Silent: \(no text: str\(\) of the exception failed\)"
    ) as caught:
        run(engine, function(source))
    assert "in f" in caught.value.traceback
    assert first(run(engine, ECHO, b"next")).bytes() == b"next"


def test_printing_without_end_is_cut(engine: ProcessEngine) -> None:
    fn = function("def f(x):\n    for _ in range(10**4): print('x' * 99)\n    raise KeyError\n")
    with pytest.raises(Raised) as caught:
        run(engine, fn, b"")
    assert LOG_BYTES <= len(caught.value.stderr) < LOG_BYTES + 100


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit('no more')", 1),
        ("import os; os._exit(4)", 4),
        ("import os; os._exit(0)", 0),
    ],
)
def test_exits(engine: ProcessEngine, body: str, code: int) -> None:
    with pytest.raises(Exited) as caught:
        run(engine, function(f"def f(x):\n    {body}\n"), b"")
    assert caught.value.code == code
    assert ("no more" in caught.value.stderr) == ("no more" in body)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os.abort()", "SIGABRT"),
        ("import ctypes; ctypes.CDLL(None).free(ctypes.c_void_p(1 << 46))", "SIGSEGV"),
    ],
)
def test_faults(engine: ProcessEngine, body: str, fault: str) -> None:
    with pytest.raises(Faulted) as caught:
        run(engine, function(f"def f(x):\n    {body}\n"), b"")
    assert caught.value.fault == fault


def test_wall_time_ends(engine: ProcessEngine) -> None:
    fn = function("import time\ndef f(x):\n    time.sleep(30)\n", wall_s=0.1)
    with pytest.raises(TimedOut) as caught:
        run(engine, fn, b"")
    assert (caught.value.what, caught.value.limit_s) == ("wall", 0.1)


def test_the_calls_deadline_may_be_earlier(engine: ProcessEngine) -> None:
    fn = function("import time\ndef f(x):\n    time.sleep(30)\n")
    with pytest.raises(TimedOut) as caught:
        run(engine, fn, b"", left_s=0.1)
    assert caught.value.what == "wall"
    assert caught.value.limit_s == 0.1


def test_cpu_time_ends_though_the_signal_is_ignored(engine: ProcessEngine) -> None:
    fn = function(
        """
        import signal
        def f(x):
            signal.signal(signal.SIGXCPU, signal.SIG_IGN)
            while True: pass
        """,
        cpu_s=0.1,
    )
    with pytest.raises(TimedOut) as caught:
        run(engine, fn, b"")
    assert (caught.value.what, caught.value.limit_s) == ("cpu", 0.1)


def test_sleeping_costs_no_cpu_time(engine: ProcessEngine) -> None:
    fn = function("import time\ndef f(x):\n    time.sleep(0.15)\n    return b'1'\n", cpu_s=0.05)
    assert first(run(engine, fn, b"")).bytes() == b"1"


@pytest.mark.parametrize(
    "body",
    [
        "return bytearray(1 << 40)",
        "return numpy.ones(1 << 30)",
        "a = []\n    while True: a.append(bytes(1 << 20))",
        "a = [0]\n    while True: a += a",
    ],
)
def test_memory_ends(engine: ProcessEngine, body: str) -> None:
    fn = function(f"import numpy\ndef f(x):\n    {body}\n", memory_bytes=64 << 20)
    with pytest.raises(OutOfMemory) as caught:
        run(engine, fn, b"")
    assert caught.value.limit_bytes == 64 << 20


def test_inputs_do_not_count_as_memory(engine: ProcessEngine) -> None:
    fn = function("def f(x):\n    return str(x[0].numpy().sum())\n", memory_bytes=16 << 20)
    assert first(run(engine, fn, np.ones(32 << 20, np.uint8))).text() == str(32 << 20)


@pytest.mark.parametrize(
    ("value", "limits"),
    [
        ("{'z': b''}", {}),
        ("{'y': object()}", {}),
        ("[{1, 2}]", {}),
        ("{'y': {'a': {1: 2}}}", {}),
        ("[b'1'] * 3", {"output_items": 2}),
        ("bytes(11)", {"output_bytes": 10}),
        ("bytes(1 << 20)", {"output_bytes": 1 << 19}),
        ("bytes(100 << 20)", {"output_bytes": 1 << 19, "output_items": 5}),
    ],
)
def test_bad_outputs(engine: ProcessEngine, value: str, limits: dict[str, int]) -> None:
    with pytest.raises(BadOutput):
        run(engine, function(f"def f(x):\n    return {value}\n", **limits), b"")


def test_a_bare_value_needs_a_single_output(engine: ProcessEngine) -> None:
    two = {"outputs": ("y", "z")}
    with pytest.raises(BadOutput, match="return a dict"):
        run(engine, function("def f(x):\n    return b''\n", **two), b"")  # type: ignore[arg-type]


def test_outputs_must_fit_their_declaration(engine: ProcessEngine) -> None:
    fn = function("def f(x):\n    return bytes(12)\n", outputs=("y: float64",))
    with pytest.raises(BadOutput):
        run(engine, fn, b"")


def test_a_full_domain_is_not_the_functions_fault(engine: ProcessEngine) -> None:
    for size in (50_000, 100_000):
        with pytest.raises(ContextFull):
            run(engine, function(f"def f(x):\n    return bytes({size})"), domain=HeapDomain(1024))


def test_code_that_does_not_compile_or_lacks_its_entry(engine: ProcessEngine) -> None:
    with pytest.raises(Raised, match="never closed"):
        run(engine, function("def f(x:\n"), b"")
    with pytest.raises(Raised, match="NameError"):
        run(engine, function("def g(x): pass\n"), b"")


def test_a_running_call_can_be_cancelled(engine: ProcessEngine) -> None:
    call = call_of(function("import time\ndef f(x):\n    time.sleep(30)\n"), b"")
    assert not engine.cancel(call.id)
    caught: list[BaseException] = []

    def body() -> None:
        try:
            engine.run(call)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    while not engine.cancel(call.id):
        assert thread.is_alive()
    thread.join()
    assert isinstance(caught[0], Cancelled)
    assert first(run(engine, ECHO, b"1")).bytes() == b"1"


def test_a_closed_engine_says_so() -> None:
    with process_engine() as engine:
        engine.close()
        with pytest.raises(EngineDied):
            run(engine, ECHO, b"")


def test_settings() -> None:
    driver = ProcessDriver()
    driver.configure({"ahead": "3"})
    for options in ({"ahead": "0"}, {"ahead": "many"}, {"behind": "1"}):
        with pytest.raises(InvalidInput):
            driver.configure(options)


def test_clean_up_is_optional(engine: ProcessEngine) -> None:
    for _ in range(8):
        assert first(engine.run(call_of(ECHO, b"1"))).bytes() == b"1"
    engine.forget(ECHO)
    assert first(run(engine, ECHO, b"1")).bytes() == b"1"


def test_engines_of_a_driver_share_and_outlive_each_other() -> None:
    driver = ProcessDriver(ahead=1)
    one, two = driver.factory().engine("0"), driver.factory().engine("0")
    try:
        one.close()
        assert first(run(two, ECHO, b"1")).bytes() == b"1"
        two.close()
        three = driver.factory().engine("0")
        assert first(run(three, ECHO, b"1")).bytes() == b"1"
        three.close()
    finally:
        one.close()
        two.close()


@pytest.fixture(scope="module")
def driver() -> Iterator[ProcessDriver]:
    driver = ProcessDriver()
    yield driver
    driver.checker().close()
