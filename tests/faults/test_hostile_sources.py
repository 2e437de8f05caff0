"""Sources that cost a parser or compiler much: registration refuses or takes them, in bounds."""

from __future__ import annotations

import builtins
import gc
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from dandelion.backends.process import check, examiner
from dandelion.backends.process.cores import ProcessDriver
from dandelion.backends.process.programs import PythonPrograms

from dandelion.data import Item, ItemSet
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.errors import BadOutput, DandelionError, InvalidFunction, Raised
from dandelion.function import Function
from dandelion.node import Node, Settings
from tests.hostile_sources import HEAD, HOSTILE, added, nested_finally
from tests.processes import children, peak_bytes
from tests.python_functions import first, function, process_engine, run

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def driver() -> Iterator[ProcessDriver]:
    driver = ProcessDriver()
    yield driver
    driver.checker().close()


def refusal(driver: ProcessDriver, fn: Function) -> str:
    try:
        driver.checker().check([fn])
    except InvalidFunction as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_costly_source_is_refused_or_taken(driver: ProcessDriver, name: str) -> None:
    source, expected = HOSTILE[name]
    fn = function(source)
    before = peak_bytes()
    found = refusal(driver, fn)
    assert peak_bytes() - before < 64 * MIB
    assert len(found) < 64 * 1024
    assert re.search(expected, found), found[:500]


def test_what_is_no_text_is_refused(driver: ProcessDriver) -> None:
    fn = function("pass")
    fn.main = b"\xff\xfe\x80def f(x): pass"
    assert re.search("decode|Non-UTF-8", refusal(driver, fn))


@pytest.mark.parametrize("terms", [1_000, 2_900])
def test_a_long_sum_registers_and_runs(terms: int) -> None:
    with process_engine() as engine:
        fn = function(added(terms))
        driver = ProcessDriver()
        driver.checker().check([fn])
        driver.checker().close()
        assert first(run(engine, fn, b"")).text() == str(terms)


def test_nothing_is_compiled_in_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when a function is checked nor when it is called; nor is its code loaded."""
    seen: list[object] = []
    original = builtins.compile

    def spied(source: Any, *args: Any, **how: Any) -> Any:
        seen.append(source)
        return original(source, *args, **how)

    monkeypatch.setattr(builtins, "compile", spied)
    fn = function("def f(x):\n    return 'a source to look for'\n")
    with process_engine() as engine:
        assert first(run(engine, fn, b"")).text() == "a source to look for"
    driver = ProcessDriver()
    driver.checker().check([fn])
    driver.checker().close()
    assert not any("to look for" in str(source) for source in seen)


def document(number: int, source: str, count: int = 1) -> RegistrationDocument:
    functions = tuple(
        FunctionDocument(
            f"f{number}_{i}", ("x",), ("y",),
            code=(CodeDocument("python", source, options={"entry": "f"}),),
        )
        for i in range(count)
    )  # fmt: skip
    return RegistrationDocument(functions=functions)


def test_a_slow_registration_keeps_no_other_waiting() -> None:
    slow = document(0, HOSTILE["large f-string"][0])
    with Node(Settings(backends=("process",))) as node:
        node.register(document(1, HEAD))
        thread = threading.Thread(target=lambda: refused_or_taken(node, slow))
        thread.start()
        done = 0
        while thread.is_alive():
            node.register(document(2 + done, HEAD))
            done += 1
        assert done > 4


def refused_or_taken(node: Node, wanted: RegistrationDocument) -> None:
    with suppress(DandelionError):
        node.register(wanted)


def test_one_among_many_is_named() -> None:
    many = document(0, HEAD, 30)
    bad = document(1, nested_finally(20))
    mixed = RegistrationDocument(
        functions=many.functions[:15] + bad.functions + many.functions[15:]
    )
    with Node(Settings(backends=("process",))) as node:
        with pytest.raises(InvalidFunction) as caught:
            node.register(mixed)
        assert [p.where for p in caught.value.problems] == ["<function f1_0>"]
        assert node.catalog.records() == []
        assert len(node.register(many)) == 30
        assert node.invoke("f0_29", x=b"").y is None


def test_registering_while_the_node_closes_leaves_nothing() -> None:
    before = children()
    node = Node(Settings(backends=("null",)))  # a driver that only checks
    node.start()
    node.register(document(0, HEAD))
    assert len(children() - before) == 1
    ended: list[BaseException] = []

    def register() -> None:
        try:
            while True:
                node.register(document(1, HOSTILE["large f-string"][0]))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=register)
    thread.start()
    node.close()
    thread.join()
    assert not children() - before
    assert ended


class PlacesInTurns:
    """Places that two threads take in turns, if nothing keeps them from it."""

    def __init__(self, places: threading.BoundedSemaphore) -> None:
        self._places = places
        self._both = threading.Barrier(2)
        self._begun = threading.local()

    def acquire(self) -> None:
        self._places.acquire()
        if not hasattr(self._begun, "yes"):
            self._begun.yes = True
            with suppress(threading.BrokenBarrierError):
                self._both.wait(timeout=0.3)  # for the other thread to take one too

    def release(self, count: int) -> None:
        self._places.release(count)


def test_two_that_close_do_not_wait_for_each_other() -> None:
    one = ProcessDriver().checker().examiner()  # type: ignore[attr-defined]  # of this backend
    one._places = PlacesInTurns(one._places)
    threads = [threading.Thread(target=one.close, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)


def test_the_next_source_is_examined_after_the_zygote_died() -> None:
    before = children()
    driver = ProcessDriver()
    driver.checker().check([function(HEAD)])
    for _ in range(3):
        (zygote,) = children() - before
        pidfd = os.pidfd_open(zygote)
        os.kill(zygote, signal.SIGKILL)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
        os.close(pidfd)
        driver.checker().check([function(HEAD)])
    driver.checker().close()
    assert not children() - before
    driver.checker().check([function(HEAD)])  # it may be used again
    driver.checker().close()
    assert not children() - before


def test_a_driver_that_was_not_closed_leaves_nothing() -> None:
    before = children()
    driver = ProcessDriver()
    driver.checker().check([function(HEAD)])
    assert children() - before
    del driver
    gc.collect()
    assert not children() - before


def test_a_source_that_no_longer_compiles_fails_its_call() -> None:
    with process_engine() as engine, pytest.raises(Raised, match="takes more than"):
        run(engine, function(nested_finally(20)), b"")


# --- what a sandbox that was taken over could answer ------------------------------------------


def a_set(name: str, *data: bytes) -> ItemSet:
    return ItemSet(name, tuple(Item(str(i), 0, d) for i, d in enumerate(data)))


@pytest.mark.parametrize(
    ("problems", "code"),
    [
        (None, a_set("code", b"1")),
        (a_set("problems", b"\x91\x90"), None),
        (a_set("problems", b"\x91\x90", b"\x91\x90"), a_set("code", b"1")),
        (a_set("problems", b"\x91\x90"), a_set("code", b"1", b"2")),
        (a_set("problems", b"\x91\x90"), a_set("code", b"")),
        (a_set("problems", b"\x92\x90\x90"), a_set("code", b"1")),
        (a_set("problems", b"\x91\x91\x01"), a_set("code", b"1")),
        (a_set("problems", b"\x91" * 100_000), a_set("code", b"1")),
        (a_set("problems", bytes(2 * MIB)), a_set("code", b"1")),
    ],
)
def test_forged_answers(problems: ItemSet | None, code: ItemSet | None) -> None:
    assert examiner._examined((a_set("problems", b"\x91\x90"), a_set("code", b"1")), 1)
    with pytest.raises(BadOutput):
        examiner._examined((problems, code), 1)


def test_programs_are_kept_up_to_a_bound() -> None:
    compiled: list[str] = []

    def compile_source(fn: Function, deadline_ns: int) -> bytes:
        compiled.append(fn.spec.name)
        return bytes(10_000)

    programs = PythonPrograms(compile_source, cache_bytes=35_000)
    fns = [function(f"def f(x): return {i}") for i in range(5)]
    for fn in fns:
        programs.encoded(fn, 0)
    for fn in fns[2:]:
        programs.encoded(fn, 0)
    assert len(compiled) == 5
    programs.encoded(fns[0], 0)
    programs.forget(fns[0])
    programs.encoded(fns[0], 0)
    assert len(compiled) == 7


def test_a_machine_without_sandboxes_registers_what_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Elsewhere")
    driver = ProcessDriver()
    driver.checker().check([function("def f(x)")])  # nothing here can run it, nor tell
    with pytest.raises(InvalidFunction):
        driver.checker().check([function(HEAD, imports="no such")])
    assert check.SOURCE_LIMIT_BYTES == MIB
