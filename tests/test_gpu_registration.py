"""Sources are compiled at registration: once, in a process, and only for available devices.

The compiler is the vendor's binding on a fake library, whose work a script of the test does; it
notes every run. The processes that need the library get it by the loader, this one never does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from dandelion.backends.cuda import CudaDriver
from dandelion.backends.gpu import compile_process
from dandelion.backends.gpu.compile_process import (
    Answer,
    Job,
    Source,
    answer,
    compile_apart,
    prepared,
)
from dandelion.backends.gpu.compiling import LOG_BYTES, RuntimeCompiler
from dandelion.backends.gpu.cudalike_driver import CudaLikeDriver
from dandelion.backends.gpu.source import CodeFormat, LoadedCode
from dandelion.backends.hip import HipDriver

from dandelion.confinement.lockdown import landlock_abi
from dandelion.data import SetSpec
from dandelion.errors import (
    BackendUnavailable,
    InternalError,
    InvalidBlueprint,
    InvalidFunction,
    from_record,
)
from dandelion.function import CodeObject, Digest, Function, FunctionSpec, digest_of
from tests.fake_driver import build

SM_90 = ("sm_90", "sm_90a", "compute_90")
GOOD = b'#include "dandelion.h"\nKERNEL void one(GLOBAL i32 *y) { y[0] = 1; }\n'

SCRIPT = """
import os, signal, sys, time
folder = os.path.dirname(__file__)
kind, arch, source, out = sys.argv[1:]
text = open(source).read()
with open(folder + "/runs", "a") as runs:
    runs.write(arch + "\\n")
with open(folder + "/places", "a") as places:
    places.write(os.path.dirname(source) + "\\n")
if "BAD" in text:
    print("bad.c(2): error: identifier \\"BAD\\" is undefined")
    sys.exit(1)
if "WORDY" in text:
    print("x" * 1000000)
    sys.exit(1)
if "HANG" in text:
    with open(folder + "/hangs", "w") as hangs:
        hangs.write(f"{os.getpid()} {os.getppid()} {os.getpgrp()}")
    time.sleep(600)
if "CRASH" in text:
    with open(folder + "/crashed", "w") as crashed:
        crashed.write(str(os.getpid()))
    os.kill(os.getpgrp(), signal.SIGSEGV)
    time.sleep(600)
open(out, "wb").write(b"binary of " + text.encode()[-10:])
"""


def _missing() -> str:
    for name in ("cuda.bindings", "hip"):
        try:
            if importlib.util.find_spec(name) is None:
                return name
        except ModuleNotFoundError:
            return name
    return build.missing()


pytestmark = pytest.mark.skipif(bool(_missing()), reason=f"without {_missing()}")


class Compiler:
    """The compiler of this test's processes, and what it did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"

    def runs(self) -> list[str]:
        """The architectures that it compiled for, by run."""
        path = self.folder / "runs"
        return path.read_text().split() if path.exists() else []

    def driver(self, kind: type[CudaLikeDriver] = CudaDriver, **settings: str) -> CudaLikeDriver:
        """A driver with a cache of the test's own."""
        made = kind()
        made.configure({"cache": str(self.cache), **settings})
        return made

    def hanging(self) -> tuple[int, ...]:
        """Wait for the compiler to hang; its process, the parent of that, and their group."""
        path = self.folder / "hangs"
        while not (path.exists() and path.read_text().count(" ") == 2):
            time.sleep(0.005)
        return tuple(map(int, path.read_text().split()))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of the loader, by kind."""
    found = {}
    for kind in ("cuda", "hip"):
        folder = tmp_path_factory.mktemp(kind)
        found[kind] = ":".join(map(str, build.build(kind, folder)))
    return found


@pytest.fixture
def compiler(
    libraries: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Compiler]:
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setenv("FAKE_COMPILER", f"{sys.executable} -S {tmp_path / 'script.py'}")
    monkeypatch.setenv("FAKE_COMPILER_AHEAD", "1")
    monkeypatch.setenv("LD_PRELOAD", libraries["cuda"])
    yield Compiler(tmp_path)
    places = tmp_path / "places"
    for place in places.read_text().split() if places.exists() else ():
        shutil.rmtree(place, ignore_errors=True)  # a compiler that was killed leaves its files


def function(source: bytes = GOOD, path: str = "k.c", arch: str = "", name: str = "f") -> Function:
    """A function with one kernel from one file."""
    body = {
        "inputs": ["y"],
        "buffers": {},
        "outputs": ["y"],
        "control_flow": [{"ExecKernel": ["one", [{"Ptr": "y"}], {}]}],
    }
    module = {"path": path, **({"backend": "cuda", "arch": arch} if arch else {})}
    given = {"modules": {"m": module}, "kernels": {"one": "m"}, "blueprint": body}
    main = json.dumps(given).encode()
    files = {path: source}
    code = CodeObject("blueprint", digest_of(main), {n: digest_of(d) for n, d in files.items()})
    spec = FunctionSpec(name, (SetSpec("y"),), (SetSpec("y"),), {}, (code,))
    return Function(spec, code, main, files)


def bad(word: str) -> bytes:
    return GOOD + f"/* {word} */\n".encode()


def gone(process: int) -> bool:
    """Wait until a process is over."""
    while True:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.005)


# --- what is compiled -----------------------------------------------------------------------


def test_a_source_is_compiled_once_for_each_architecture(compiler: Compiler) -> None:
    compiler.driver().checker().prepare(function(), SM_90)
    compiler.driver().checker().prepare(function(name="another"), SM_90)
    assert compiler.runs() == ["sm_90a"]
    compiler.driver().checker().prepare(function(), ("sm_86", "compute_86"))
    assert compiler.runs() == ["sm_90a", "sm_86"]
    assert len(list(compiler.cache.iterdir())) == 2


def test_what_is_known_starts_no_process(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.driver().checker().prepare(function(), SM_90)

    def refuse(*arguments: object, **others: object) -> None:
        raise AssertionError("a process")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    compiler.driver().checker().prepare(function(), SM_90)


def test_the_engine_finds_what_was_compiled(compiler: Compiler) -> None:
    """The name in the cache is the one that an engine looks up."""
    from dandelion.backends.gpu.compiling import CodeCache, compiled
    from dandelion.backends.gpu.source import choose

    from dandelion.blueprint import Code, Module

    compiler.driver().checker().prepare(function(), SM_90)
    formats = (CodeFormat.PORTABLE,)
    code = choose(Module("m", (Code("k.c"),)), {"k.c": GOOD}, "cuda", formats, SM_90)
    table = CudaDriver.device_class.compiler()
    before = compiler.runs()
    found = compiled(table, code, "sm_90", CodeCache(compiler.cache))
    assert found.startswith(b"binary of ")
    assert compiler.runs() == before


def test_amds_sources_are_compiled_too(
    compiler: Compiler, libraries: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", libraries["hip"])
    compiler.driver(HipDriver).checker().prepare(function(), ("gfx90a", "gfx90a:xnack-"))
    assert compiler.runs() == ["gfx90a"]


def test_without_a_cache_the_first_call_compiles(compiler: Compiler) -> None:
    compiler.driver(cache="off").checker().prepare(function(), SM_90)
    assert compiler.runs() == []


def test_without_a_compiler_the_first_call_says_so(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setattr(CudaDriver, "name", "null")  # has no compiler, on any machine
    compiler.driver().checker().prepare(function(), SM_90)
    assert not compiler.cache.exists()


def test_where_no_process_can_be_had_the_first_call_compiles(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **others: object) -> None:
        raise BlockingIOError("no further process")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    compiler.driver().checker().prepare(function(), SM_90)
    assert compiler.runs() == []


def test_binaries_are_not_compiled(compiler: Compiler) -> None:
    compiler.driver().checker().prepare(function(b"ELF", "k.cubin", "sm_90"), SM_90)
    assert compiler.runs() == []


# --- what is refused ------------------------------------------------------------------------


def test_code_for_other_devices_is_refused(compiler: Compiler) -> None:
    with pytest.raises(InvalidBlueprint) as caught:
        compiler.driver(cache="off").checker().prepare(function(arch="sm_80"), SM_90)
    (problem,) = caught.value.problems
    assert problem.code == "no-code"
    assert "sm_80" in problem.message
    assert "sm_90" in problem.message
    assert compiler.runs() == []


def test_the_compilers_words_and_the_place_are_told(compiler: Compiler) -> None:
    with pytest.raises(InvalidFunction) as caught:
        compiler.driver().checker().prepare(function(bad("BAD")), SM_90)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("compile", "k.c")
    assert 'bad.c(2): error: identifier "BAD" is undefined' in problem.excerpt
    assert not compiler.cache.exists()


def test_a_compilers_words_have_an_end(compiler: Compiler) -> None:
    with pytest.raises(InvalidFunction) as caught:
        compiler.driver().checker().prepare(function(bad("WORDY")), SM_90)
    assert len(caught.value.problems[0].excerpt) == LOG_BYTES


def test_files_of_the_machine_are_not_included(compiler: Compiler) -> None:
    with pytest.raises(InvalidFunction, match="headers"):
        compiler.driver().checker().prepare(function(GOOD + b'#include "/etc/passwd"\n'), SM_90)
    assert compiler.runs() == []


def test_a_compiler_that_hangs_is_ended(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def late(process: int, limit_s: float) -> bool:
        compiler.hanging()
        limits.append(limit_s)
        return False

    monkeypatch.setattr(compile_process, "_ended", late)
    with pytest.raises(InvalidFunction, match="more than 30 s"):
        compiler.driver().checker().prepare(function(bad("HANG")), SM_90)
    assert limits == [30.0]
    process, _, group = compiler.hanging()
    assert gone(process)
    assert gone(group)
    assert not compiler.cache.exists()


def _open_to_all(folder: Path) -> None:
    for path in (folder, *folder.parents[:-2]):
        path.chmod(0o755)


def test_a_compiler_that_uses_up_its_cpu_time_is_ended_by_the_signal_that_says_so(
    tmp_path: Path,
) -> None:
    text = (
        "import os, sys\n"
        "from dandelion.backends.gpu.compile_process import Job, _confine\n"
        "_confine(Job(os.getppid(), sys.argv[1], 'cuda', 'sm_90', (), 0), [], str)\n"
        "while True: pass"
    )
    _open_to_all(tmp_path)
    spinning = subprocess.run([sys.executable, "-c", text, str(tmp_path)], check=False)
    assert spinning.returncode == -signal.SIGXCPU


def test_a_compiler_that_dies_is_the_sources_fault(compiler: Compiler) -> None:
    with pytest.raises(InvalidFunction, match="signal 11; it has 4 GiB"):
        compiler.driver().checker().prepare(function(bad("CRASH")), SM_90)
    assert gone(int((compiler.folder / "crashed").read_text())), (
        "and leaves nothing that it started"
    )


def test_a_compiler_that_is_killed_from_outside_is_not_the_sources_fault(
    compiler: Compiler,
) -> None:
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(compile_apart, "cuda", "sm_90", [source(bad("HANG"))])
        _, _, process = compiler.hanging()
        os.kill(process, signal.SIGKILL)
        assert found.result(20) == ()


def test_a_compiler_dies_with_its_node(compiler: Compiler) -> None:
    text = (
        "from dandelion.backends.gpu.compile_process import compile_apart\n"
        "from dandelion.backends.gpu.source import LoadedCode\n"
        f"compile_apart('cuda', 'sm_90', [LoadedCode('k.c', 'cuda-c', {bad('HANG')!r}, 'd')])"
    )
    node = subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.DEVNULL)
    script, _, process = compiler.hanging()
    try:
        node.kill()
        node.wait()
        assert gone(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(script, signal.SIGKILL)  # only the fixture's compiler has a child


def test_a_caller_that_is_interrupted_leaves_no_process(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(process: int, limit_s: float) -> bool:
        started.append(process)
        raise KeyboardInterrupt

    started: list[int] = []
    monkeypatch.setattr(compile_process, "_ended", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compiler.driver().checker().prepare(function(), SM_90)
    assert gone(started[0])


# --- the process ----------------------------------------------------------------------------


def source(text: bytes = GOOD) -> LoadedCode:
    return LoadedCode("k.cu", CodeFormat.CUDA, text, Digest("d"))


def test_sources_go_to_one_process_and_come_back_in_order(compiler: Compiler) -> None:
    texts = [bad("0000001"), bad("0000002")]
    found = compile_apart("cuda", "sm_90", map(source, texts))
    assert found == tuple(b"binary of " + text[-10:] for text in texts)
    assert compiler.runs() == ["sm_90a", "sm_90a"]


def test_too_little_time_is_a_typed_error(compiler: Compiler) -> None:
    with pytest.raises(InvalidFunction, match="more than 0 s"):
        compile_apart("cuda", "sm_90", [source()], 0.0)


def test_a_process_that_says_nothing_is_our_bug(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(InternalError, match="no answer"):
        compile_apart("cuda", "sm_90", [source()])
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(InternalError, match="code 1"):
        compile_apart("cuda", "sm_90", [source()])


def test_what_backends_have_no_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(os.getpid(), "", "null", "sm_90", (Source("k.cu", "cuda-c", GOOD, "d"),), 1.0)
    compiler, readable = prepared(job)
    assert not readable
    told = answer(job, compiler)
    assert told.error is not None
    assert isinstance(from_record(told.error), BackendUnavailable)
    assert told.binaries == ()


@pytest.mark.parametrize(
    ("raised", "wanted"), [(MemoryError(), InvalidFunction), (ZeroDivisionError(), InternalError)]
)
def test_what_a_compiler_raises_is_typed(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, wanted: type[Exception]
) -> None:
    def fail(*arguments: object) -> bytes:
        raise raised

    monkeypatch.setattr(RuntimeCompiler, "compile", fail)
    job = Job(os.getpid(), "", "cuda", "sm_90", (Source("k", "cuda-c", GOOD, "d"),), 1.0)
    told = answer(job, RuntimeCompiler(CudaDriver.device_class.compiler()))
    assert isinstance(told, Answer)
    assert told.error is not None
    assert type(from_record(told.error)) is wanted


_CONFINED = """
import errno, os, resource as r, socket, sys, threading
from dandelion.backends.gpu import compile_process as c
folder, kept = sys.argv[1:]
c._confine(c.Job(os.getppid(), folder, "cuda", "sm_90", (), 7.5), [kept], lambda folder: None)

def told(what):
    try:
        what()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
    except MemoryError:
        return "no memory"

print([r.getrlimit(x) for x in (r.RLIMIT_DATA, r.RLIMIT_CPU, r.RLIMIT_CORE)])
print(told(lambda: bytearray(c.MEMORY_BYTES)))
print(told(lambda: open(kept + "/header.h")), told(lambda: open(folder + "/temporary", "w")))
print(told(lambda: threading.Thread(target=int).start()))
for what in (
    lambda: open("/etc/passwd"), lambda: os.listdir("/"), lambda: open("/proc/self/environ"),
    lambda: open(kept + "/new", "w"), lambda: socket.socket(), os.fork, lambda: os.kill(1, 0),
    lambda: os.execv("/bin/true", ["true"]), lambda: os.memfd_create("x"),
):
    print(told(what))
print(os.geteuid())
"""


def test_the_process_is_bounded_and_confined(tmp_path: Path) -> None:
    if landlock_abi() < 2:
        pytest.skip("this kernel has no Landlock")
    folder, kept = tmp_path / "folder", tmp_path / "kept"
    folder.mkdir()
    kept.mkdir()
    _open_to_all(tmp_path)  # permissions must not be what stops the process
    (kept / "header.h").write_text("")
    command = [sys.executable, "-c", _CONFINED, str(folder), str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    limits, memory, files, thread, *denied, user = done.stdout.splitlines()
    assert limits == f"[({4 << 30}, {4 << 30}), (8, 9), (0, 0)]"
    assert memory == "no memory"
    assert files == "done done"
    assert thread == "done"
    assert denied == ["EACCES"] * 4 + ["EPERM"] * 5
    assert user == str(os.geteuid() or 65534)
