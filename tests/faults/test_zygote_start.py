"""Zygotes that cannot be started: a typed error, nothing is left behind, and the next one works."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest
from dandelion.backends.native import sandbox_pool as native
from dandelion.backends.process import connected
from dandelion.backends.process import sandbox_pool as process

from dandelion.errors import SandboxLost
from tests.processes import children

DEADLINE_S = 30
PARTS = {
    "pipe": (os, "pipe2", OSError(errno.EMFILE, "too many open files")),
    "process": (subprocess, "Popen", BlockingIOError(errno.EAGAIN, "no more processes")),
    "lifetime": (connected, "bind_lifetime", OSError(errno.EINVAL, "not a pipe")),
    "thread": (threading.Thread, "start", RuntimeError("can't start new thread")),
}


def pool_with_imports(folder: Path) -> process.SandboxPool:
    """Give a pool whose zygote is watched by a thread of the node."""
    (folder / "brought.py").write_text("x = 1\n")
    return process.SandboxPool("p", process.SandboxContent(("brought",), str(folder), "t"), 1)


@pytest.mark.parametrize(
    ("backend", "part"),
    [
        *[("process", part) for part in ("pipe", "process", "lifetime", "thread")],
        *[("native", part) for part in ("pipe", "process", "lifetime")],
    ],
)
def test_nothing_is_left_of_a_zygote_that_cannot_be_started(
    backend: str, part: str, tmp_path: Path
) -> None:
    pool: process.SandboxPool | native.NativeSandboxPool
    pool = pool_with_imports(tmp_path) if backend == "process" else native.NativeSandboxPool("n")
    where, name, error = PARTS[part]

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    with closing(pool):
        gc.collect()
        descriptors, processes = set(os.listdir("/proc/self/fd")), children()
        gc.disable()  # which would close sockets that were forgotten
        try:
            with pytest.MonkeyPatch.context() as patch, pytest.raises(SandboxLost) as caught:
                patch.setattr(where, name, fail)
                pool.take(time.monotonic_ns() + DEADLINE_S * 10**9)
            assert str(error) in str(caught.value)
            assert children() <= processes
            assert set(os.listdir("/proc/self/fd")) <= descriptors
        finally:
            gc.enable()
        pool.take(time.monotonic_ns() + DEADLINE_S * 10**9).close()
