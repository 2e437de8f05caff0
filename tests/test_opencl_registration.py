"""OpenCL sources are compiled at registration, where kernels run on the host's processors."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from dandelion.backends.gpu import compile_process, opencl_device, pocl
from dandelion.backends.gpu.compile_process import Answer, Job, Source, answer, compile_apart
from dandelion.backends.gpu.pocl_compiler import PoclCompiler
from dandelion.backends.gpu.source import LoadedCode

import dandelion.blueprint as bp
from dandelion.documents import FunctionDocument, RegistrationDocument, gpu_function
from dandelion.errors import DeviceFault, InvalidBlueprint, InvalidFunction, from_record
from dandelion.function import digest_of
from dandelion.node import Node, Settings

pytest.importorskip("pyopencl", reason="the extra 'opencl' is not installed")

HEAD = '#include "dandelion.h"\n'
GOOD = HEAD + "KERNEL void work(GLOBAL f32 *x)\n{\n    x[GLOBAL_ID(0)] += 1.0f;\n}\n"
BAD = GOOD.replace("1.0f", "missing")
UNENDED = GOOD.replace(";", "")
ARCH = platform.machine()
_UNCHECKED = """
import sys
from dandelion.backends.gpu import compile_process, opencl_device
opencl_device.checked_source = lambda code: None
sys.exit(compile_process.main())
"""


def document(source: str, kernel: str = "work") -> FunctionDocument:
    b = bp.Blueprint(inputs=["x"], outputs=["x"], modules={"k": "k.c"})
    b.launch(kernel, [b.x], grid=1, block=4)
    return gpu_function(
        "Work", b.json(), inputs=["x: float32[4]"], outputs=["x: float32[4]"], files={"k.c": source}
    )


def code(text: str) -> LoadedCode:
    data = text.encode()
    return LoadedCode("k.cl", "opencl-c", data, digest_of(data))


def own(text: str) -> str:
    """A kernel in OpenCL C."""
    return f"__kernel void work(__global float *x) {{ {text} }}"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "code"


def register(node: Node, source: str) -> None:
    node.register(RegistrationDocument(functions=(document(source),)))


def test_what_does_not_compile_leaves_the_version_that_works(cache: Path) -> None:
    options = {"opencl": {"cache": str(cache)}}
    given = np.zeros(4, np.float32)
    with Node(Settings(backends=("opencl",), options=options)) as node:
        assert node.wait_ready(60)
        register(node, GOOD)
        with pytest.raises(InvalidFunction, match=r"k\.c:4:\d+: use of undeclared .*'missing'"):
            register(node, BAD)
        with pytest.raises(InvalidFunction, match=r"k\.c: it does not compile"):
            register(node, UNENDED)
        found = node.invoke("Work", x=given)["x"]
        assert found is not None
        assert found.numpy().tolist() == [1, 1, 1, 1]
    assert len(list(cache.iterdir())) == 1, "what compiles is known from now on"


@pytest.mark.parametrize(
    ("name", "launched", "told"),
    [
        ("all", "all", "give the kernel another name: OpenCL C has a function of this one"),
        ("work", "wrk", "did you mean 'work'"),
    ],
)
def test_a_kernel_that_its_source_does_not_have_is_explained(
    cache: Path, name: str, launched: str, told: str
) -> None:
    options = {"opencl": {"cache": str(cache)}}
    source = GOOD.replace("work", name)
    with (
        Node(Settings(backends=("opencl",), options=options)) as node,
        pytest.raises(InvalidBlueprint, match=f"no kernel '{launched}'.*{told}"),
    ):
        node.register(document(source, launched))
        node.invoke("Work", x=np.zeros(4, np.float32))


def test_what_is_known_to_compile_starts_no_process(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"opencl": {"cache": str(cache)}}
    with Node(Settings(backends=("opencl",), options=options)) as node:
        assert node.wait_ready(60)
        register(node, GOOD)

        def refuse(*arguments: object, **others: object) -> None:
            raise AssertionError("a process")

        monkeypatch.setattr(compile_process.subprocess, "Popen", refuse)
        register(node, GOOD)


def test_sources_are_compiled_up_to_the_first_that_cannot_be() -> None:
    good, bad = code(own("x[0] = 1;")), code(own("x[0] = y;"))
    assert compile_apart("opencl", ARCH, [good, good]) == (b"", b"")
    with pytest.raises(InvalidFunction, match="undeclared identifier 'y'"):
        compile_apart("opencl", ARCH, [good, bad])


def test_the_compiler_reads_no_files_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is checked before; here it is not, so the process is what denies it."""
    place = tempfile.mkdtemp(dir=tmp_path)
    secret = tmp_path / "secret.h"
    secret.write_text("typedef int secret;\n")
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    text = f'#include "{secret}"\n' + own("x[0] = sizeof(secret);")
    source = Source("k.cl", "opencl-c", text.encode(), "d")
    order = msgspec.msgpack.encode(Job(os.getpid(), place, "opencl", ARCH, (source,), 30.0))
    command = [sys.executable, "-c", _UNCHECKED]
    told = subprocess.run(command, input=order, stdout=subprocess.PIPE, check=True).stdout
    error = msgspec.msgpack.decode(told, type=Answer).error
    assert error is not None
    words = str(from_record(error))
    assert "secret.h': Permission denied" in words
    assert "k.cl:1:10: cannot open file" in words, "no path of the compiler's own folder"
    assert place not in words
    monkeypatch.setattr(opencl_device, "checked_source", lambda code: None)
    outside = opencl_device.OpenClDevice()
    outside.open()
    outside.load(code(text))  # what is not confined reads it
    outside.close()


def test_where_no_source_compiles_it_is_no_sources_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    cl = pocl.binding()

    def fail(*given: object) -> None:
        raise cl.Error("no file can be written")

    monkeypatch.setattr(cl.Program, "build", fail)
    source = Source("k.cl", "opencl-c", own("").encode(), "d")
    told = answer(Job(os.getpid(), "", "opencl", ARCH, (source,), 1.0), PoclCompiler())
    assert told.error is not None
    assert isinstance(from_record(told.error), DeviceFault), "there are no binaries then"
