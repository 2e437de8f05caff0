"""Registration has code compiled for the devices that are up, and delays nothing else meanwhile."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument, gpu_function
from dandelion.driver import Capacity, Driver
from dandelion.errors import Cancelled, InvalidBlueprint, InvalidFunction, Problem, Unknown
from dandelion.function import Function
from dandelion.node import Node, Settings
from dandelion.testing import ScriptedDriver
from tests.fake_driver import build


def prepared(*archs: tuple[str, ...]) -> ScriptedDriver:
    """A backend with a device for each of these lists of architectures."""
    resources = {str(number): Capacity(archs=given) for number, given in enumerate(archs)}
    return ScriptedDriver("prepared", resources=resources)


def function(name: str, code_format: str = "prepared") -> FunctionDocument:
    return FunctionDocument(name, ("a",), ("a",), code=(CodeDocument(code_format),))


@contextmanager
def started(driver: Driver, ready: bool = True) -> Iterator[Node]:
    with Node(Settings(backends=("null",), arena_bytes=1 << 22), [driver]) as node:
        assert not ready or node.wait_ready()
        yield node


def refused(function: Function, archs: tuple[str, ...]) -> None:
    raise InvalidFunction((Problem("compile", "it does not compile", "k.c"),))


def fits_new(function: Function, archs: tuple[str, ...]) -> None:
    if archs == ("old",):
        raise InvalidBlueprint((Problem("no-code", "it has code for new, this device is old"),))


def test_code_is_prepared_for_each_kind_of_device_once() -> None:
    driver = prepared(("new", "old"), ("old",), ("old",))
    with started(driver) as node:
        node.register(function("f"), function("g", "null"))
        assert sorted(driver.seen.prepared) == [("f", ("new", "old")), ("f", ("old",))]
        assert node.invoke("f", a=b"x")["a"] is not None


def test_devices_without_architectures_need_nothing() -> None:
    driver = prepared(())
    with started(driver) as node:
        node.register(function("f"))
    assert driver.seen.prepared == []


def test_while_no_engine_is_up_functions_are_registered_all_the_same() -> None:
    up = threading.Event()
    driver = prepared(("new",))
    driver.script.start = lambda resource: up.wait()
    driver.script.prepare = refused
    with started(driver, ready=False) as node:
        try:
            node.register(function("f"))
        finally:
            up.set()
        assert node.wait_ready()
        assert node.invoke("f", a=b"x")["a"] is not None
    assert driver.seen.prepared == []


def test_what_does_not_compile_is_refused_with_all_that_came_with_it() -> None:
    driver = prepared(("new",))
    driver.script.prepare = refused
    with started(driver) as node:
        before = node.records()
        with pytest.raises(InvalidFunction, match="does not compile"):
            node.register(
                function("f"),
                function("g", "null"),
                "composition C(x) => (y) { g(a = all x) => (y = a); }",
            )
        assert node.records() == before
        with pytest.raises(Unknown):
            node.invoke("g", a=b"x")


def test_what_fits_one_of_the_devices_is_registered() -> None:
    driver = prepared(("old",), ("new",))
    driver.script.prepare = fits_new
    with started(driver) as node:
        node.register(function("f"))


def test_what_fits_no_device_is_refused() -> None:
    driver = prepared(("old",), ("old",))
    driver.script.prepare = fits_new
    with started(driver) as node, pytest.raises(InvalidBlueprint) as caught:
        node.register(function("f"))
    (problem,) = caught.value.problems
    assert problem.code == "no-code"


def test_what_compiles_for_one_device_and_not_for_another_is_refused() -> None:
    driver = prepared(("old",), ("new",))
    driver.script.prepare = lambda function, archs: (
        refused(function, archs) if archs == ("new",) else None
    )
    with started(driver) as node, pytest.raises(InvalidFunction):
        node.register(function("f"))


def test_documents_that_are_refused_anyway_are_not_compiled() -> None:
    driver = prepared(("new",))
    with started(driver) as node:
        with pytest.raises(InvalidFunction):
            node.register(function("f"), function("no name"))
        assert driver.seen.prepared == []


def test_only_the_registration_waits_for_a_compiler() -> None:
    driver = prepared(("new",))
    reached, go = threading.Event(), threading.Event()

    def wait(function: Function, archs: tuple[str, ...]) -> None:
        reached.set()
        assert go.wait(60)

    with started(driver) as node, ThreadPoolExecutor(1) as pool:
        node.register(function("g", "null"))
        driver.script.prepare = wait
        slow = pool.submit(node.register, function("f"))
        try:
            assert reached.wait(60)
            driver.script.prepare = lambda function, archs: None
            node.register(function("other"))
            assert node.invoke("other", a=b"x")["a"] is not None
            with pytest.raises(Unknown):
                node.invoke("f", a=b"x")
        finally:
            go.set()
        slow.result()
        assert node.invoke("f", a=b"x")["a"] is not None


def test_a_node_that_closes_meanwhile_registers_nothing(tmp_path: Path) -> None:
    driver = prepared(("new",))
    settings = Settings(backends=("null",), catalog=f"sqlite:{tmp_path}", arena_bytes=1 << 22)
    with Node(settings, [driver]) as node:
        assert node.wait_ready()
        driver.script.prepare = lambda function, archs: node.close()
        with pytest.raises(Cancelled):
            node.register(function("f"))


# --- a real backend, on a fake device -------------------------------------------------------

SCRIPT = """
import os, subprocess, sys
with open(os.path.dirname(__file__) + "/runs", "a") as runs:
    runs.write(sys.argv[2] + "\\n")
sys.exit(subprocess.call([sys.executable, {compiler!r}, *sys.argv[1:]]))
"""
SOURCE = """#include "dandelion.h"
KERNEL void one(GLOBAL i32 *y) {{ y[0] = {value}; }}
"""


def _missing() -> str:
    if importlib.util.find_spec("cuda") is None or not importlib.util.find_spec("cuda.bindings"):
        return "cuda-bindings"
    return build.missing()


def document(value: str, path: str = "k.c", arch: str = "") -> RegistrationDocument:
    where = f', "backend": "cuda", "arch": "{arch}"' if arch else ""
    blueprint = f"""{{
      "modules": {{"m": {{"path": "{path}"{where}}}}}, "kernels": {{"one": "m"}},
      "blueprint": {{"inputs": [], "buffers": {{"y": 4}}, "outputs": ["y"],
        "control_flow": [{{"ExecKernel": ["one", [{{"Ptr": "y"}}], {{}}]}}]}}
    }}"""
    files = {path: SOURCE.format(value=value)}
    made = gpu_function("one", blueprint, inputs=[], outputs=["y"], files=files)
    return RegistrationDocument(functions=(made,))


@pytest.mark.skipif(bool(_missing()), reason=f"without {_missing()}")
def test_a_gpu_function_is_compiled_before_its_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Path(build.__file__).parent / "compile.py"
    (tmp_path / "script.py").write_text(SCRIPT.format(compiler=str(compiler)))
    monkeypatch.setenv("FAKE_COMPILER", f"{sys.executable} {tmp_path / 'script.py'}")
    monkeypatch.setenv("FAKE_COMPILER_AHEAD", "1")
    monkeypatch.setenv("LD_PRELOAD", ":".join(map(str, build.build("cuda", tmp_path))))
    options = {"cache": str(tmp_path / "cache"), "workers": "0", "standby": "false"}
    settings = Settings(backends=("cuda|opencl",), options={"cuda": {**options}})
    with Node(settings) as node:
        assert node.wait_ready()
        assert [e.name for e in node.engines()] == ["cuda:0"]
        with pytest.raises(InvalidFunction, match="BAD"):
            node.register(document("BAD"))
        with pytest.raises(InvalidBlueprint, match="sm_80, this device is sm_90"):
            node.register(document("7", "k.cu", "sm_80"))
        node.register(document("41"))
        before = (tmp_path / "runs").read_text().split()
        assert before == ["sm_90a", "sm_90a"]  # the one that failed, and this
        outputs = node.invoke("one")["y"]
        assert outputs is not None
        assert outputs.numpy(np.int32).tolist() == [41]
        node.register(document("41"))
        assert (tmp_path / "runs").read_text().split() == before
