"""Python functions in sandboxes: inputs, outputs, and the error of each kind of failure."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from dandelion.backends.process import enforcement, sandbox_pool
from dandelion.backends.process.constants import ConstantFiles
from dandelion.backends.process.cores import ProcessDriver
from dandelion.backends.process.engine import ProcessEngine
from dandelion.backends.process.handle import wait_readable
from dandelion.backends.process.outcome import HEAP_BYTES
from dandelion.backends.process.programs import PythonPrograms
from dandelion.backends.process.sandbox_pools import SandboxPools

from dandelion.confinement.lockdown import landlock_abi
from dandelion.confinement.syscalls import native
from dandelion.data import Item, ItemSet
from dandelion.documents import python_function
from dandelion.driver import Hosting, load_driver
from dandelion.errors import (
    BackendUnavailable,
    InvalidFunction,
    Raised,
    Unauthorized,
)
from dandelion.memory import SharedDomain
from dandelion.testing import Tracked

from .python_functions import first, function, process_engine, run

ROOT = Path(__file__).parent.parent
ECHO = function("def f(x):\n    return x\n")


@pytest.fixture(scope="module")
def engine() -> Iterator[ProcessEngine]:
    with process_engine() as engine:
        yield engine


def test_driver_is_found_by_name() -> None:
    driver = load_driver("process")
    assert driver.formats == {"python"}
    assert driver.hosting is Hosting.THREAD
    assert [r.name for r in driver.factory().probe()] == [
        str(n) for n in range(len(os.sched_getaffinity(0)))
    ]
    with pytest.raises(BackendUnavailable):
        driver.factory().engine("100000")


def test_bytes_pass_through(engine: ProcessEngine) -> None:
    result = first(run(engine, ECHO, b"hello"))
    assert result.name == "y"
    assert result.bytes() == b"hello"


def test_names_and_keys_survive(engine: ProcessEngine) -> None:
    items = (Item("é" * 100, 7, b"a"), Item("", 2**32 - 1, b""), Item("é" * 100, 0, b"ccc"))
    result = first(run(engine, ECHO, ItemSet("x", items)))
    assert [(i.name, i.key, i.bytes()) for i in result] == [
        (i.name, i.key, i.bytes()) for i in items
    ]


def test_absent_sets_are_none_both_ways(engine: ProcessEngine) -> None:
    fn = function(
        "def f(x, z):\n    return {'y': None, 'w': b'' if z is None else b'no'}\n",
        inputs=("x", "z"),
        outputs=("y", "w", "v"),
    )
    y, w, v = run(engine, fn, b"1")
    assert y is None
    assert v is None
    assert w is not None
    assert w.bytes() == b""


def test_arrays_follow_the_declaration(engine: ProcessEngine) -> None:
    fn = function(
        """
        def f(a, b):
            left, right = a.numpy(), b.numpy()
            assert left.shape == (2, 3) and not left.flags.writeable
            return left @ right
        """,
        inputs=("a: float64[2, 3]", "b: float64[3, 2]"),
        outputs=("y: float64[2, 2]",),
    )
    a, b = np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(first(run(engine, fn, a, b)).numpy(), a @ b)


def test_a_function_object_becomes_a_document_that_runs(
    engine: ProcessEngine, driver: ProcessDriver
) -> None:
    def total(numbers):  # type: ignore[no-untyped-def]  # as a user writes it
        import numpy as np

        return np.array([item.numpy("int64").sum() for item in numbers])

    document = python_function(total, outputs=["sum: int64"])
    code = document.code[0]
    assert isinstance(code.main, str)
    fn = function(
        code.main, inputs=document.inputs, outputs=document.outputs, entry=code.options["entry"]
    )
    driver.checker().check([fn])
    numbers = [np.arange(4), np.arange(3)]
    assert first(run(engine, fn, numbers)).numpy().tolist() == [6, 3]


@pytest.mark.parametrize("size", [0, 1, HEAP_BYTES, HEAP_BYTES + 1, 65_000, 70_000, 32 << 20])
def test_all_sizes_arrive_and_lie_in_the_domain(engine: ProcessEngine, size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    domain = Tracked(SharedDomain(64 << 20))
    outputs = run(engine, ECHO, data, domain=domain)
    item = first(outputs).only()
    assert item.bytes() == data.tobytes()
    assert (domain.locate(item.data) is not None) == (size > HEAP_BYTES)
    del outputs, item
    assert domain.alive == []
    domain.close()


def test_many_items(engine: ProcessEngine) -> None:
    fn = function(
        """
        from dandelion.data import Item, ItemSet
        def f(x):
            return ItemSet("y", tuple(Item(str(i.key), i.key, i.data) for i in reversed(x.items)))
        """
    )
    items = tuple(Item("n", key, key.to_bytes(4, "little")) for key in range(5000))
    result = first(run(engine, fn, ItemSet("x", items)))
    assert [i.key for i in result] == list(range(4999, -1, -1))
    assert all(int.from_bytes(i.bytes(), "little") == i.key == int(i.name) for i in result)


def test_inputs_are_read_only(engine: ProcessEngine) -> None:
    for value in (b"small", bytes(100_000)):
        with pytest.raises(Raised, match="TypeError"):
            run(engine, function("def f(x):\n    x[0].data[0] = 1\n"), value)


def test_declared_imports_may_be_lazy(engine: ProcessEngine) -> None:
    fn = function(
        "def f(x):\n    import sqlite3\n    return sqlite3.sqlite_version\n", imports="sqlite3"
    )
    assert first(run(engine, fn, b"")).text().count(".") == 2


def test_undeclared_imports_say_how_to_declare(engine: ProcessEngine) -> None:
    with pytest.raises(Raised, match=r"imports=\['sqlite3'\]"):
        run(engine, function("def f(x):\n    import sqlite3\n"), b"")


def test_imports_that_fail_are_the_functions_fault(engine: ProcessEngine) -> None:
    with pytest.raises(Raised, match="no_such_module"):
        run(engine, function("def f(x): pass", imports="no_such_module"), b"")
    assert first(run(engine, ECHO, b"1")).bytes() == b"1"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("open({path!r}, 'w')", "PermissionError"),
        ("import subprocess; subprocess.run(['/bin/true'])", "PermissionError"),
        ("import threading as t; t.Thread(target=t.Event().wait, daemon=True).start()", "threads"),
        ("raise SystemExit(0)", "SystemExit"),
    ],
)
def test_importing_can_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: ProcessEngine, body: str, reason: str
) -> None:
    name = f"module_{tmp_path.name}"
    written = tmp_path / "written"
    (tmp_path / f"{name}.py").write_text(body.format(path=str(written)))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Raised, match=reason):
        run(engine, function("def f(x): pass", imports=name), b"")
    assert not written.exists()


def test_a_reason_is_heard_however_late_one_listens(
    monkeypatch: pytest.MonkeyPatch, engine: ProcessEngine
) -> None:
    """By then the zygote has ended without reading its requests."""

    def late(source: socket.socket, deadline_ns: int) -> None:
        wait_readable(source, deadline_ns)
        time.sleep(0.2)

    monkeypatch.setattr(sandbox_pool, "wait_readable", late)
    with pytest.raises(Raised, match="no_such_module"):
        run(engine, function("def f(x): pass", imports="no_such_module"), b"")


def test_a_call_leaves_nothing_for_the_next(engine: ProcessEngine) -> None:
    fn = function(
        """
        import builtins, os
        def f(x):
            seen = getattr(builtins, "left", None)
            builtins.left = os.getpid()
            return str(seen)
        """
    )
    assert {first(run(engine, fn, b"")).text() for _ in range(4)} == {"None"}


def test_calls_are_repeatable(engine: ProcessEngine) -> None:
    fn = function("import random\ndef f(x):\n    return f'{random.random()} {hash(\"a\")}'\n")
    assert len({first(run(engine, fn, b"")).text() for _ in range(4)}) == 1


def test_standard_library_stays_off_the_file_system(engine: ProcessEngine) -> None:
    fn = function(
        """
        import codecs, datetime, decimal, hashlib, json, os, re, time, uuid, warnings, numpy
        def f(x):
            warnings.warn("look at this")
            numpy.float64(1) / numpy.zeros(1)
            datetime.datetime.now().strftime("%c")
            datetime.datetime.strptime("2024-01-02", "%Y-%m-%d")
            time.sleep(0.001)
            "é".encode("cp1252")
            "x".encode("utf-16")
            parts = [uuid.uuid4(), os.urandom(4), os.cpu_count(), hashlib.sha256(b"").hexdigest()]
            return json.dumps([str(p) for p in parts])
        """
    )
    assert "e3b0c44298fc" in first(run(engine, fn, b"")).text()


@pytest.fixture(scope="module")
def driver() -> Iterator[ProcessDriver]:
    driver = ProcessDriver()
    yield driver
    driver.checker().close()


def problems(driver: ProcessDriver, *args: object, **how: object) -> list[tuple[str, int, int]]:
    try:
        driver.checker().check([function(*args, **how)])  # type: ignore[arg-type]
    except InvalidFunction as error:
        return [(p.code, p.line, p.column) for p in error.problems]
    return []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(x): pass", []),
        ("def f(**sets): pass", []),
        ("def f(x, more=1, *, also=2): pass", []),
        ("f = lambda x: x", []),
        ("class f:\n    def __init__(self, x): pass", []),
        ("import json, numpy.linalg\ndef f(x): pass", []),
        ("try:\n    import pandas\nexcept ImportError: pass\ndef f(x): pass", []),
        ("def f(x)\n    pass", [("syntax", 1, 9)]),
        ("def f(x):\n    return\n  1", [("syntax", 3, 4)]),
        ("return 1", [("syntax", 1, 1)]),
        ("x = '\0'", [("syntax", 0, 0)]),
        ("-" * 200_000 + "1", [("no-code", 0, 0)]),
        ("#" * (1 + (1 << 20)), [("too-long", 0, 0)]),
        ("def g(x): pass", [("no-entry", 0, 0)]),
        ("\nasync def f(x): pass", [("async-entry", 2, 1)]),
        ("def f(): pass", [("no-parameter", 1, 1)]),
        ("def f(x, z): pass", [("no-input-set", 1, 10)]),
        ("def f(x, /): pass", [("no-input-set", 1, 7)]),
        ("def f(x):\n    import pandas", [("undeclared-import", 2, 5)]),
    ],
)  # fmt: skip
def test_check_reports_problems_with_positions(
    driver: ProcessDriver, source: str, expected: list[tuple[str, int, int]]
) -> None:
    found = problems(driver, source)
    assert [code for code, _, _ in found] == [code for code, _, _ in expected]
    if expected and expected[0][0] != "syntax":
        assert found == expected
    elif expected:
        assert found[0][1] == expected[0][1]


def test_check_looks_imports_up_without_importing(driver: ProcessDriver) -> None:
    before = set(sys.modules)
    assert problems(driver, "def f(x): pass", imports="xmlrpc.client, wsgiref.handlers") == []
    assert problems(driver, "def f(x): pass", imports="xmlrpc.nothing") == [
        ("unknown-import", 0, 0)
    ]
    assert problems(driver, "def f(x): pass", imports="no such") == [("unknown-import", 0, 0)]
    assert not {"xmlrpc", "wsgiref"} & (set(sys.modules) - before)


def test_enforcement_reports_the_confinement() -> None:
    facts = enforcement()
    assert set(facts) == {"landlock", "namespaces", "seccomp", "user"}
    assert facts["user"].endswith("no capabilities")
    if os.geteuid() == 0:
        assert "nobody" in facts["user"]


_OUTSIDE = """
from tests.python_functions import *
from dandelion.errors import Unauthorized
with process_engine() as engine:
    print(first(run(engine, function("import os\\ndef f(x): return str(os.getuid())"))).text())
    try:
        run(engine, function("def f(x): open('/etc/passwd')"))
    except Unauthorized as error:
        print(error.what)
"""


@pytest.mark.parametrize("options", [["--user"], ["--user", "--map-root-user"]])
def test_nodes_without_privileges_confine_too(options: list[str]) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, *options, "true"]).returncode:
        pytest.skip("user namespaces are not to be had here")
    command = [unshare, *options, sys.executable, "-c", _OUTSIDE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "open a file (openat)"


_LANDLOCK = """
import os, sys
from dandelion.confinement import lockdown
abi = lockdown.restrict_files(readable=["/"], scoped=False)
open(__import__("os").__file__).close()
for body in (lambda: open(sys.argv[1], "w"), lambda: os.execv("/bin/true", ["true"])):
    try:
        body()
    except PermissionError:
        print("kept off")
lockdown.restrict_files()
try:
    open(os.__file__)
except PermissionError:
    print("kept off")
print(lockdown.drop_identity())
"""


@pytest.mark.skipif(landlock_abi() == 0, reason="this kernel has no Landlock")
def test_landlock_alone_keeps_off_the_files(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LANDLOCK, str(tmp_path / "written")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stderr == ""
    assert done.stdout.splitlines()[:3] == ["kept off"] * 3
    assert done.stdout.endswith("no capabilities\n")


def test_unauthorized_is_the_functions_fault(engine: ProcessEngine) -> None:
    with pytest.raises(Unauthorized) as caught:
        run(engine, function("def f(x):\n    open('/etc/passwd')\n"), b"")
    assert "line 2, in f" in caught.value.traceback
    assert caught.value.status == 422


@pytest.mark.parametrize(("ahead", "engines"), [(1, 2), (2, 2), (2, 3)])
def test_idle_engines_keep_no_sandbox_that_another_one_needs(
    ahead: int, engines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dandelion.backends.process.sandbox_pool._READY_SOON_NS", 5 * 10**9)
    driver = ProcessDriver()
    pools, programs = SandboxPools("group", ahead), PythonPrograms(driver.checker()._compiled)
    constants = ConstantFiles()
    group = [ProcessEngine(f"{n}", pools, programs, constants, native()) for n in range(engines)]
    try:
        for engine in group + group:
            assert first(run(engine, ECHO, b"1")).bytes() == b"1"
    finally:
        for engine in group:
            engine.close()
        driver.checker().close()
