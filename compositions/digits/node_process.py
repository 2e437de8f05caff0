"""A node in a process of its own, for the length of a demonstration."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from dandelion.errors import BackendUnavailable

STOP_S = 20.0


class _Place(msgspec.Struct):
    """The line that the node prints when it listens."""

    url: str


@contextmanager
def node_process(backend: str) -> Iterator[str]:
    """Start a node that may fetch files from this machine.

    Args:
        backend: GPU backends, separated by ``|``; the first that works is started.

    Yields:
        The URL of the node. Its process has ended when the context is left.

    Raises:
        BackendUnavailable: the node ended before it listened.
    """
    settings = {
        "host": "127.0.0.1",
        "port": "0",
        "catalog": "memory:",
        "backends": f"process,http,{backend}",
        "options": "http.allow=127.0.0.1",
        "log-level": "error",
    }
    command = [sys.executable, "-m", "dandelion", "serve", "--json"]
    for name, value in settings.items():
        command += [f"--{name}", value]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _url(process)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _url(process: subprocess.Popen[str]) -> str:
    """Read the line with the node's URL."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise BackendUnavailable("node", f"it ended with code {process.wait()}", "see above")
    return msgspec.json.decode(line, type=_Place).url
