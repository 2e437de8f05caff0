"""Finding the nodes of a cluster by Ray: one detached actor for each node, with its address.

Ray starts and restarts machines and knows which there are; calls, data and heartbeats do not pass
through it. A node puts an actor into the namespace ``dandelion`` on its own machine, which has its
address and how many calls it runs, and asks now and then which others there are. An actor ends when
its node leaves. If a node was killed, its actor asks whether the address still answers, and ends by
itself; what other nodes do meanwhile does not depend on that, since they have their own heartbeats.

With `cluster_reserve` a node takes resources of its machine's Ray node, so other jobs of Ray are
not placed on what its engines use: the actor is in a placement group with these resources there.
The group ends with the process of the node, as Ray sees that it is gone, and the actor with the
group. Of the nodes that reserve something, the one with the lowest name asks Ray's autoscaler
for as many such groups as calls would keep busy; Ray starts machines for those that do not fit, and
stops machines that have been idle.

Ray pickles what is given to actors. These are texts and numbers of the operator; nothing of users.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from dandelion.cluster.settings import parsed_address
from dandelion.errors import BackendUnavailable, InvalidInput

ray: Any = importlib.import_module("ray")
NAMESPACE = "dandelion"
PREFIX = "dandelion-node "
RESERVES = " reserves"
"""The end of the name of an actor whose node has reserved something."""
LOOK_S = 2.0
"""How often a node asks for others."""
RESERVE_S = 10.0
"""How long a node waits for the resources that it reserves, each time."""
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
        reserve: resources that a node takes, by Ray's names; none takes none.

    Raises:
        BackendUnavailable: there is no such cluster.
        InvalidInput: a resource is not a positive number.
    """

    def __init__(self, address: str, reserve: Mapping[str, float] | None = None) -> None:
        self._reserve = dict(reserve or {})
        for resource, amount in self._reserve.items():
            if not 0 < amount < 1e9:
                hint = "give a positive number, such as CPU=8"
                raise InvalidInput("cluster_reserve", f"{resource}={amount:g}", hint)
        self._group: Any = None
        self._asked = 0
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

    def start(
        self,
        name: str,
        resources: Mapping[str, int],
        found: Callable[[str], None],
        wanted: Callable[[], int],
    ) -> None:
        """See `Discovery`."""
        given = (name, dict(resources), found, wanted)
        self._thread = threading.Thread(
            target=self._run, args=given, name="dandelion-ray", daemon=True
        )
        self._thread.start()

    def _run(
        self,
        name: str,
        resources: dict[str, int],
        found: Callable[[str], None],
        wanted: Callable[[], int],
    ) -> None:
        while not self._closing.is_set():
            try:
                if self._actor is None:
                    self._actor = self._made(name, resources)
                for other in members():
                    if other != name:
                        found(other)
                if self._reserve and members(reserving=True)[:1] == [name]:
                    self._ask_for(wanted())
            except Exception as error:  # Ray may be restarted; the cluster goes on without it
                log.warning("Ray does not answer: %s", error)
            self._closing.wait(LOOK_S)

    def _made(self, name: str, resources: dict[str, int]) -> Any:
        """Make the actor, on this machine; take the place of one that an earlier node has left."""
        for suffix in ("", RESERVES):
            with contextlib.suppress(ValueError):
                ray.kill(ray.get_actor(PREFIX + name + suffix, NAMESPACE))
        here = self._strategy()
        made = ray.remote(NodeRecord).options(
            name=PREFIX + name + (RESERVES if self._reserve else ""),
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_restarts=0,
            scheduling_strategy=here,
        )
        actor = made.remote(name, resources)
        ray.get(actor.describe.remote(), timeout=60)
        return actor

    def _strategy(self) -> Any:
        """Choose where the actor runs: on this machine, in a group if something is reserved.

        Raises:
            BackendUnavailable: the resources are not free.
        """
        node = ray.get_runtime_context().get_node_id()
        strategies = ray.util.scheduling_strategies
        if not self._reserve:
            return strategies.NodeAffinitySchedulingStrategy(node, soft=True)
        self._release()
        [mine] = [one for one in ray.nodes() if one["NodeID"] == node]
        place = {one: 0.001 for one in mine["Resources"] if one.startswith("node:")}
        place.pop("node:__internal_head__", None)
        group = ray.util.placement_group([{**self._reserve, **place}], strategy="STRICT_PACK")
        if not group.wait(RESERVE_S):
            ray.util.remove_placement_group(group)
            there = {one: mine["Resources"].get(one, 0) for one in self._reserve}
            remedy = "lower cluster_reserve, or give the Ray node these resources"
            raise BackendUnavailable("ray", f"{self._reserve} is not free; it has {there}", remedy)
        self._group = group
        return strategies.PlacementGroupSchedulingStrategy(group)

    def _ask_for(self, nodes: int) -> None:
        """Tell Ray's autoscaler how many nodes are to be there."""
        if nodes != self._asked:
            sdk = importlib.import_module("ray.autoscaler.sdk")
            sdk.request_resources(bundles=[self._reserve] * nodes)
            self._asked = nodes

    def _release(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            ray.util.remove_placement_group(group)

    def close(self) -> None:
        """See `Discovery`."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(5)
        with contextlib.suppress(Exception):
            if self._actor is not None:
                ray.kill(self._actor)
        with contextlib.suppress(Exception):
            self._release()
        if self._began:
            ray.shutdown()


def members(reserving: bool = False) -> list[str]:
    """Return the addresses of all nodes that have an actor, or of those that reserve something."""
    listed = ray.util.list_named_actors(all_namespaces=True)
    names = [one["name"] for one in listed if one["namespace"] == NAMESPACE]
    return sorted(
        name.removeprefix(PREFIX).removesuffix(RESERVES)
        for name in names
        if name.startswith(PREFIX) and (name.endswith(RESERVES) or not reserving)
    )
