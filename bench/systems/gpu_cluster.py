"""Nodes of a cluster on one machine, each of which sees one GPU."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from dandelion.cluster.joining import cluster_of
from dandelion.errors import BackendUnavailable
from dandelion.node import Node, Settings

from . import kaas_graphs
from .kaas_shapes import TunedShape
from .nodes import node_server, one_item, wait_engines
from .tenants import Tenants, node_settings

VARIABLES = {"cuda": "CUDA_VISIBLE_DEVICES", "hip": "HIP_VISIBLE_DEVICES"}
_SEE_S = 60.0


def gpu_count(backend: str) -> int:
    """Return how many GPUs this machine has; 0 if that cannot be found out."""
    if backend != "cuda" or shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(
        ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60, check=False
    )
    return len([line for line in listed.stdout.splitlines() if line.startswith("GPU ")])


class GpuCluster(Tenants):
    """One node in this process, and others in processes of their own, each with its GPU.

    Requests are made to the node in this process; the others take what waits there.

    Args:
        backend: of the GPU functions.
        given: what each request runs.
        clients: how many functions, with constants of their own.
        nodes: how many in all.

    Raises:
        BackendUnavailable: an engine does not start, or the nodes do not see each other.
    """

    def __init__(self, backend: str, given: TunedShape, clients: int, nodes: int) -> None:
        self.name = f"{nodes} node{'s' * (nodes > 1)}"
        self._functions = [kaas_graphs.function_name(given.shape, n) for n in range(clients)]
        self._closing = contextlib.ExitStack()
        settings = node_settings(backend, given, clients, workers=None, weights_bytes=0)
        try:
            self._start(backend, settings, nodes)
            self.node.register(kaas_graphs.document(given, clients))
        except BaseException:
            self.close()
            raise

    def _start(self, backend: str, settings: dict[str, object], nodes: int) -> None:
        folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory()))
        (folder / "secret").write_text(secrets.token_hex(32))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        settings |= {"cluster_secret": str(folder / "secret"), "peers": (address,)}
        mine = msgspec.convert({**settings, "cluster_listen": address}, Settings, strict=False)
        others = [_seen(backend, number) for number in range(1, nodes)]
        # Workers are started during the whole life of the node.
        self._closing.enter_context(_changed(_seen(backend, 0)))
        self.node = self._closing.enter_context(Node(mine, cluster=cluster_of(mine)))
        wait_engines(self.node)
        for seen in others:
            server = node_server({**settings, "cluster_listen": "127.0.0.1:0"}, environment=seen)
            self._closing.enter_context(server)
        end_s = time.monotonic() + _SEE_S
        while self._with_engines(backend) < nodes:
            if time.monotonic() > end_s:
                raise BackendUnavailable("cluster", "the nodes do not see each other's engines")
            time.sleep(0.01)

    def _with_engines(self, backend: str) -> int:
        info = self.node.cluster()
        members = () if info is None else info.members
        return sum([member.engines.get(backend, 0) > 0 for member in members])

    def call(self, tenant: int, body: bytes) -> bytes:
        sets = one_item(kaas_graphs.INPUT, body)
        result = self.node.invoke_sets(self._functions[tenant], sets, deadline_s=300.0)
        found = result.sets[kaas_graphs.OUTPUT]
        assert found is not None
        return bytes(found.items[0].data)

    @property
    def sent(self) -> int:
        """How many calls other nodes ran."""
        info = self.node.cluster()
        return 0 if info is None else info.sent_calls

    def close(self) -> None:
        self._closing.close()


def _seen(backend: str, number: int) -> dict[str, str]:
    """Return the variables of a process that sees one GPU only."""
    name = VARIABLES.get(backend)
    if name is None:
        return {}
    visible = os.environ.get(name, "").split(",")
    return {name: visible[number] if number < len(visible) and visible[0] else str(number)}


@contextlib.contextmanager
def _changed(variables: Mapping[str, str]) -> Iterator[None]:
    """Change the environment of this process meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
