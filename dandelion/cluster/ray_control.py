"""Finding the nodes of a cluster by Ray: one detached actor for each node, with its address.

Ray starts and restarts machines and knows which there are; calls, data and heartbeats do not pass
through it. A node puts an actor into the namespace ``dandelion`` on its own machine, which has its
address and how many calls it runs, and asks now and then which others there are. An actor ends when
its node leaves. If a node was killed, its actor asks whether the address still answers, and ends by
itself; what other nodes do meanwhile does not depend on that, since they have their own heartbeats.

Ray pickles what is given to actors. These are texts and numbers of the operator; nothing of users.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import ray

from dandelion.cluster.settings import parsed_address
from dandelion.errors import BackendUnavailable

NAMESPACE = "dandelion"
PREFIX = "dandelion-node "
LOOK_S = 2.0
"""How often a node asks for others."""
CONNECT_S = 1.0
FAILURES = 5
"""So often in a row an address does not answer before its actor ends."""

log = logging.getLogger("dandelion.cluster")


class NodeRecord:
    """The actor of a node. It runs in a process of Ray.

    Args:
        address: of the node.
        resources: how many calls it runs at once, by backend.
    """

    def __init__(self, address: str, resources: dict[str, int]) -> None:
        self._address = address
        self._resources = resources
        self._failures = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def describe(self) -> tuple[str, dict[str, int]]:
        """Give the address and the resources."""
        return self._address, self._resources

    def _watch(self) -> None:
        """End with the node."""
        pause = threading.Event()
        while self._failures < FAILURES:
            pause.wait(LOOK_S)
            try:
                host, port = parsed_address("address", self._address)
                socket.create_connection((host, port), CONNECT_S).close()
                self._failures = 0
            except OSError:
                self._failures += 1
        os._exit(0)  # `exit_actor` is for methods only


class RayControl:
    """Implements `dandelion.cluster.discovery.Discovery`.

    Args:
        address: of a Ray cluster: ``auto``, ``local`` for a new one, or ``HOST:PORT``.

    Raises:
        BackendUnavailable: there is no such cluster.
    """

    def __init__(self, address: str) -> None:
        self._began = not ray.is_initialized()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._actor: Any = None
        if self._began:
            try:
                ray.init(
                    address=address,
                    namespace=NAMESPACE,
                    log_to_driver=False,
                    configure_logging=False,
                    include_dashboard=False if address == "local" else None,
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                remedy = "start it with 'ray start', or use --cluster local"
                raise BackendUnavailable("ray", f"{address}: {error}", remedy) from None

    def start(self, name: str, resources: Mapping[str, int], found: Callable[[str], None]) -> None:
        """See `Discovery`."""
        self._thread = threading.Thread(
            target=self._run, args=(name, dict(resources), found), name="dandelion-ray", daemon=True
        )
        self._thread.start()

    def _run(self, name: str, resources: dict[str, int], found: Callable[[str], None]) -> None:
        while not self._closing.is_set():
            try:
                if self._actor is None:
                    self._actor = self._made(name, resources)
                for other in members():
                    if other != name:
                        found(other)
            except Exception as error:  # Ray may be restarted; the cluster goes on without it
                log.warning("Ray does not answer: %s", error)
            self._closing.wait(LOOK_S)

    def _made(self, name: str, resources: dict[str, int]) -> Any:
        """Make the actor, on this machine; take the place of one that an earlier node has left."""
        with contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(PREFIX + name, NAMESPACE))
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )
        made = ray.remote(NodeRecord).options(
            name=PREFIX + name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_restarts=0,
            scheduling_strategy=here,
        )
        actor = made.remote(name, resources)
        ray.get(actor.describe.remote(), timeout=60)
        return actor

    def close(self) -> None:
        """See `Discovery`."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(5)
        with contextlib.suppress(Exception):
            if self._actor is not None:
                ray.kill(self._actor)
        if self._began:
            ray.shutdown()


def members() -> list[str]:
    """Return the addresses of all nodes that have an actor."""
    listed = ray.util.list_named_actors(all_namespaces=True)
    return sorted(
        one["name"].removeprefix(PREFIX)
        for one in listed
        if one["namespace"] == NAMESPACE and one["name"].startswith(PREFIX)
    )
