"""Kernels on the host's processors, through a node: what is refused, and what maps the arena."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dandelion.confinement.lockdown import landlock_abi
from dandelion.documents import RegistrationDocument, gpu_function
from dandelion.driver import load_driver
from dandelion.errors import BackendUnavailable, InvalidFunction
from dandelion.node import Node, Settings

BLUEPRINT = """{
  "modules": {"k": "k.cl"}, "kernels": {"k": "k"},
  "blueprint": {"inputs": ["a"], "buffers": {}, "outputs": ["a"],
    "control_flow": [{"ExecKernel": ["k", [{"Ptr": "a"}], {}]}]}
}"""
KERNEL = "__kernel void k(__global long *a) { a[0] += 42; }"
LIBC = "int open(const char *p, int f); __kernel void k(__global long *a) { a[0] = open(0, 0); }"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    try:
        load_driver("opencl").factory().probe()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    if landlock_abi() < 2:
        pytest.skip("this kernel has no Landlock")
    with Node(Settings(backends=("opencl",))) as node:
        assert node.wait_ready()
        yield node


def document(name: str, source: str) -> RegistrationDocument:
    function = gpu_function(
        name, BLUEPRINT, inputs=["a: int64"], outputs=["a: int64"], files={"k.cl": source}
    )
    return RegistrationDocument(functions=(function,))


def test_functions_of_libc_cannot_be_called(node: Node) -> None:
    with pytest.raises(InvalidFunction, match="open"):
        node.register(document("libc", LIBC))
    assert node.ready()


@pytest.mark.parametrize(
    "line", ['__asm__("nop");', '#include "/etc/passwd"', '#pragma push_macro("asm")']
)
def test_registration_refuses(node: Node, line: str) -> None:
    with pytest.raises(InvalidFunction):
        node.register(document("refused", f"{line}\n{KERNEL}"))


def templates() -> set[int]:
    """Process ids of the templates of kernel hosts whose engine process is a child of this one."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            engine = parent(path.name)
            if b"gpu.kernel_host" in (path / "cmdline").read_bytes() and (
                parent(str(engine)) == os.getpid()
            ):
                found.add(int(path.name))
    return found


def parent(pid: str) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_template_that_is_stopped_is_replaced(node: Node) -> None:
    """A call that needs it is run again on the engine that replaces the lost one."""
    before = templates()
    for pid in before:
        os.kill(pid, signal.SIGSTOP)
    for number in range(3):  # one host waits already
        name = f"stopped{number}"
        node.register(document(name, KERNEL.replace("42", str(number))))
        assert node.invoke(name, a=np.zeros(8, np.int64), deadline_s=30).a.numpy()[0] == number
    after = templates()
    assert after
    assert not before & after


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look into a kernel host")
def test_the_engine_process_alone_maps_the_arena(node: Node) -> None:
    node.register(document("ordinary", KERNEL))
    assert node.invoke("ordinary", a=np.zeros(8, np.int64)).a.numpy()[0] == 42
    maps = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if b"gpu.kernel_host" in (path / "cmdline").read_bytes():
                maps.append((path / "maps").read_text())
    assert maps
    assert not any("dandelion-arena" in text for text in maps)
