"""Engine processes that die, hang or are killed: one call pays, the next one works."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from dandelion.compositions.matmul import bundle as matmul

from dandelion.documents import RegistrationDocument, gpu_function
from dandelion.errors import DeadlineExceeded, Faulted, TimedOut
from dandelion.function import Limits
from dandelion.node import Node, Settings
from tests.played_nodes import memory_of_calls
from tests.processes import children, command_of

SOURCE = """#include "dandelion.h"
KERNEL void spin(GLOBAL u64 *a) {
    volatile u64 keep = 1;
    while (keep) { }
    a[0] = keep;
}
KERNEL void stray(GLOBAL u64 *a) {
    GLOBAL volatile u64 *far = (GLOBAL volatile u64 *)(u64)8;
    a[0] = *far;
}
"""


def blueprint(kernel: str) -> str:
    return f"""{{
      "modules": {{"bad": "bad.c"}}, "kernels": {{"{kernel}": "bad"}},
      "blueprint": {{"inputs": ["a"], "buffers": {{}}, "outputs": ["a"],
        "control_flow": [{{"ExecKernel": ["{kernel}", [{{"Ptr": "a"}}], {{}}]}}]}}
    }}"""


def bad(name: str, wall_s: float) -> RegistrationDocument:
    function = gpu_function(
        name,
        blueprint(name),
        inputs=["a"],
        outputs=["a"],
        files={"bad.c": SOURCE},
        limits=Limits(wall_s=wall_s),
    )
    return RegistrationDocument(functions=(function,))


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(Settings(backends=("null", "opencl"))) as node:
        node.register(bad("spin", 0.5))
        node.register(bad("stray", 20))
        node.register(matmul.document())
        assert node.wait_ready()
        yield node


def engine_process() -> int:
    """The process id of the only engine process below this one."""
    [process] = [pid for pid in children() if b"engine_process" in (command_of(pid) or b"")]
    return process


def assert_works(node: Node) -> None:
    inputs = matmul.example_inputs(1)
    outputs = node.invoke("matmul", **inputs)
    assert matmul.agrees(matmul.results(outputs), matmul.expected(inputs))


def test_a_killed_engine_is_replaced_without_an_error(node: Node) -> None:
    for _ in range(2):
        before = engine_process()
        os.kill(before, signal.SIGKILL)
        assert_works(node)
        assert engine_process() != before


def test_an_endless_kernel_ends_at_its_limit(node: Node) -> None:
    with pytest.raises(TimedOut) as caught:
        node.invoke("spin", a=np.zeros(1, np.uint64))
    assert (caught.value.what, caught.value.limit_s) == ("wall", 0.5)
    assert_works(node)


def test_a_deadline_of_the_invocation_is_no_limit_of_the_function(node: Node) -> None:
    node.register(bad("spin", 20))
    with pytest.raises(DeadlineExceeded):
        node.invoke("spin", a=np.zeros(1, np.uint64), deadline_s=0.2)
    assert_works(node)


def test_a_stray_pointer_ends_its_call_alone(node: Node) -> None:
    with pytest.raises(Faulted, match="stray"):
        node.invoke("stray", a=np.zeros(1, np.uint64))
    assert_works(node)
    assert memory_of_calls(node) == 0


def test_a_process_without_a_backend_whose_node_is_gone_ends_quietly() -> None:
    ours, its = socket.socketpair()
    ours.close()
    with its:
        arguments = [str(its.fileno()), "-1", "-1", "0", "", "0", "{}", "nowhere"]
        done = subprocess.run(
            [sys.executable, "-m", "dandelion.engine_process", *arguments],
            pass_fds=[its.fileno()], capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
