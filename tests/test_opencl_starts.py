"""Kernel hosts where the system refuses something: closed folders, limits."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dandelion.backends.gpu import compile_process, pocl
from dandelion.backends.gpu.compile_process import compile_apart
from dandelion.backends.gpu.conformance import opened
from dandelion.backends.gpu.host_template import HostTemplate
from dandelion.backends.gpu.opencl_device import OpenClDevice
from dandelion.backends.gpu.plan import Launch, Pointer
from dandelion.backends.gpu.pocl_runtime import KNOWN_VERSION
from dandelion.backends.gpu.source import CodeFormat, LoadedCode

from dandelion.confinement.lockdown import landlock_abi
from dandelion.errors import BackendUnavailable, DeviceFault, EngineDied, Faulted
from dandelion.function import digest_of

from .kernel_attacks import CONFINED, attacker, function, skip_without_opencl
from .processes import children_of

MODULE = "dandelion.backends.gpu.compile_process"
TEXT = b"__kernel void f(__global int *x) { x[0] = 1; }"
SOURCE = LoadedCode("f.cl", CodeFormat.OPENCL, TEXT, digest_of(TEXT))
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="hosts keep the user of their node")
pytestmark = pytest.mark.skipif(landlock_abi() < 2, reason="this kernel has no Landlock")


_available = pytest.fixture(autouse=True)(skip_without_opencl)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files, which only root can enter; those above it are open."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "closed"
        folder.mkdir(mode=0o700)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        yield folder


def changed(line: str) -> tuple[str, ...]:
    """Give the command of a template that does something else first."""
    return (*CONFINED[:-1], CONFINED[-1].replace("sys.exit", f"{line}; sys.exit"))


@AS_ROOT
def test_hosts_work_in_a_folder_that_only_root_can_enter(closed: Path) -> None:
    with attacker(CONFINED) as who:
        assert who.engine._folders._folder.parent == closed
        assert who.attack([("getpid",)])[0] == [who.pid()]


@AS_ROOT
def test_a_folder_that_hosts_cannot_enter_is_named(closed: Path) -> None:
    """Without mounts, which a container may not allow."""
    command = changed("h.lockdown.mount_memory = lambda *given: False")
    with pytest.raises(BackendUnavailable, match=str(closed)) as caught, attacker(command):
        pass
    assert "TMPDIR" in caught.value.remedy
    assert f"chmod o+x {closed}" in caught.value.remedy


@AS_ROOT
def test_sources_are_compiled_in_a_folder_that_only_root_can_enter(closed: Path) -> None:
    assert compile_apart("opencl", os.uname().machine, [SOURCE]) == (b"",)
    assert not list(closed.iterdir())


def test_the_limit_of_processes_is_named() -> None:
    """Threads of hosts count, too; the limit does not hold for root, which hosts are not."""
    version = pocl.binding().get_platforms()[0].version
    if KNOWN_VERSION not in version:
        pytest.skip(f"its process is ended by {version.strip()} itself")
    command = changed("import resource as r; r.setrlimit(r.RLIMIT_NPROC, (1, 1))")
    with pytest.raises(BackendUnavailable, match="limit of processes") as caught, attacker(command):
        pass
    assert "ulimit -u" in caught.value.remedy


def test_a_broker_without_a_thread_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(BackendUnavailable, match="limit of processes"), attacker(CONFINED):
        pass


@contextmanager
def descriptors(more: int) -> Iterator[None]:
    """Allow this process only a few further descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] <= highest:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1 + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


def test_a_host_ends_for_another_one_where_there_are_few_descriptors() -> None:
    with attacker(CONFINED, processes=64) as who:
        names = [f"F{number}" for number in range(6)]
        who.attack([("getpid",)], wanted=function(names[0]))
        with descriptors(9):
            for name in names[1:]:
                who.attack([("getpid",)], wanted=function(name))
            kept = who.engine.hosts()
            assert 0 < len(kept) < len(names)
            used = [name for name in names if function(name).identity in kept]
            assert used == names[-len(kept) :], "those that were called last"


def test_the_limit_of_descriptors_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with attacker(CONFINED) as who:
        who.attack([("getpid",)])
        monkeypatch.setattr(who.engine._template, "fork", refuse)
        with pytest.raises(EngineDied, match=r"limit of open files .*ulimit -n"):
            who.attack([("getpid",)], wanted=function("Other"))
    with pytest.raises(BackendUnavailable, match="limit of open files"):
        monkeypatch.setattr(HostTemplate, "fork", refuse)
        with attacker(CONFINED):
            pass


@pytest.mark.parametrize("call", ["pidfd_open", "socketpair"])
def test_nothing_is_left_of_a_host_without_descriptors(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*given: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def left() -> tuple[int, int, int]:
        return (
            len(children_of(who.template)),
            len(os.listdir("/proc/self/fd")),
            len(list(who.engine._folders._folder.iterdir())),
        )

    with attacker(CONFINED) as who:
        who.attack([("getpid",)])
        before = left()
        with monkeypatch.context() as patch:
            patch.setattr(os if call == "pidfd_open" else socket, call, refuse)
            with pytest.raises(OSError, match="Too many open files"):
                who.engine._started()
        assert left() == before


ERRORS = {
    "OSError(28, 'full')": "TMPDIR",
    "OSError(12, 'no memory')": "MemoryMax=",
    "MemoryError()": "MemoryMax=",
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("step", ["HostFolders", "give_up_rights", "lock", "ArenaMap"])
def test_the_want_of_space_or_memory_is_named(step: str, error: str) -> None:
    """Of a template, and of a host at every step of its start."""
    command = changed(f"h.{step} = lambda *given: (_ for _ in ()).throw({error})")
    with pytest.raises(BackendUnavailable) as caught, attacker(command) as who:
        who.attack([("getpid",)])
    assert ERRORS[error] in caught.value.remedy


def test_a_broker_without_a_folder_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**given: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(BackendUnavailable, match="temporary files"), attacker(CONFINED):
        pass


def test_a_host_without_memory_for_its_compiler_is_replaced() -> None:
    """Also if the compiler reports it as an error of the source."""
    command = changed("h.DATA_BYTES = 30 << 20")
    with attacker(command) as who:
        for _ in range(2):
            with pytest.raises(Faulted, match="MemoryMax="):
                who.attack([("getpid",)])
            assert not who.engine.hosts()


def test_a_compiler_that_fails_for_every_source_is_the_fault_of_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cl = pocl.binding()
    device = OpenClDevice()
    device.open()

    def refuse(*given: object) -> None:
        raise cl.Error("no file can be written")

    with monkeypatch.context() as patch:
        patch.setattr(cl.Program, "build", refuse)
        with pytest.raises(DeviceFault, match="TMPDIR"):
            device.load(SOURCE)
    assert device.fault() is not None
    device.close()


def test_a_source_is_not_at_fault_if_its_compiler_cannot_be_confined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = "(_ for _ in ()).throw(OSError(28, 'full'))"
    line = f"import {MODULE} as m; m._confine = lambda *given: {refused}; sys.exit(m.main())"
    ran = subprocess.Popen

    def changed_popen(command: list[str], **given: Any) -> subprocess.Popen[bytes]:
        return ran([*command[:2], "-c", f"import sys; {line}"], **given)

    monkeypatch.setattr(compile_process.subprocess, "Popen", changed_popen)
    assert compile_apart("opencl", os.uname().machine, [SOURCE]) == ()


def test_a_compiler_that_does_not_work_makes_the_backend_unavailable() -> None:
    command = changed("h._SOURCE += b'not C'")
    with pytest.raises(BackendUnavailable, match="no kernel runs"), attacker(command):
        pass


def test_errors_name_the_device_as_the_node_does() -> None:
    """The template opens it under another name, beside one without threads."""
    refused = "(_ for _ in ()).throw(MemoryError('refused'))"
    command = changed(f"o.SharedRange = lambda *given: {refused}")
    with pytest.raises(DeviceFault, match="opencl:cpu: allocate"), attacker(command):
        pass


_ENFORCED = """
from dandelion.backends import opencl
enforced = opencl.enforcement()["seccomp"]
import pyopencl
print(len(pyopencl.get_platforms()), enforced.split()[0])
"""


def test_hosts_are_confined_where_there_are_several_platforms(tmp_path: Path) -> None:
    """Putting them in order would open their devices, and so start threads."""
    pocl.opencl_devices(pocl.binding())
    mapped = Path("/proc/self/maps").read_text().split()
    for name in ("one", "two"):
        (tmp_path / f"{name}.icd").write_text(next(word for word in mapped if "libpocl" in word))
    started = subprocess.run(
        [sys.executable, "-c", _ENFORCED],
        env=os.environ | {"OCL_ICD_VENDORS": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    platforms, filtered = started.stdout.split()
    assert int(platforms) >= 2
    assert filtered == "allow-list;"


def test_a_kernel_that_has_not_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the queue does not tell, so old memory would be taken for its results."""
    with opened(OpenClDevice()) as device:
        launch = Launch("f", (Pointer(0, 4),), (1, 1, 1), (1, 1, 1), 0)
        prepared = device.prepare(device.load(SOURCE), "f", launch)
        event = SimpleNamespace(command_execution_status=-1)
        for wait in (device.synchronize, lambda: device.wait(device.mark())):
            with monkeypatch.context() as failing:
                failing.setattr(pocl.binding(), "enqueue_nd_range_kernel", lambda *given: event)
                device.launch([prepared])
            with pytest.raises(DeviceFault, match="kernel 'f' has not run"):
                wait()
        device.launch([prepared])
        device.synchronize()
