"""`Cluster`: makes a node one of several.

    cluster = Cluster(ClusterSettings("10.0.0.1:7077", secret, peers=("10.0.0.2:7077",)))
    with Node(settings, cluster=cluster) as node:
        ...

Everything here is on the node's loop, unless said otherwise. The decisions are in pure modules:
`membership` (which nodes are alive), `placement` (which node gets a call), `replication` (the log
of the catalogue). This carries them out with `doors` and links.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path

from dandelion.asynchronous.store import KeptStore
from dandelion.catalog import Catalog
from dandelion.cluster.ballots import Command
from dandelion.cluster.blob_source import BlobSource
from dandelion.cluster.call_messages import Done, Failed
from dandelion.cluster.catalog import ClusterCatalog, refused_on_loop, unacknowledged
from dandelion.cluster.catching_up import CatchingUp
from dandelion.cluster.control_end import ControlEnd
from dandelion.cluster.departure import ClusterShutdown
from dandelion.cluster.discovery import Discovery
from dandelion.cluster.doors import Door, bound_socket
from dandelion.cluster.exchange import Exchange
from dandelion.cluster.executor import RemoteEngines
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.kept_keeper import KeptKeeper
from dandelion.cluster.link import OutLink
from dandelion.cluster.log_file import LogFile
from dandelion.cluster.log_parts import CatalogLog, LogParts
from dandelion.cluster.membership import DEAD_NS, Beat, Connect, Lost, Membership, Renew
from dandelion.cluster.messages import Ballot, Pong
from dandelion.cluster.placement import Placement
from dandelion.cluster.questions import Answer
from dandelion.cluster.replication import Replica
from dandelion.cluster.serving import InLink
from dandelion.cluster.settings import ClusterSettings
from dandelion.cluster.shares import RecentUse, ToldShares, UsedElsewhere
from dandelion.cluster.staged_blobs import StagedBlobs
from dandelion.cluster.status import Status
from dandelion.cluster.store_driver import StoreDriver
from dandelion.data import Bytes
from dandelion.errors import InvalidInput
from dandelion.executors import to_dandelion_error
from dandelion.node.attachment import NodeParts

TICK_S = 0.05
SILENT_NS = 2 * DEAD_NS
"""After so long without a message of a node, its calls here are ended."""
LAST_ANSWERS_S = 1.0
"""How long a node that said that it leaves may take to end its connections."""

log = logging.getLogger("dandelion.cluster")


class Cluster(Status, ClusterShutdown):
    """One node's part of a cluster. Use it for one node.

    Args:
        settings: see `ClusterSettings`.
        discovery: finds further nodes.

    Attributes:
        name: of the node: its address for others.
        incarnation: another number after each start.
        voters: names of the nodes that keep the catalogue.

    Raises:
        InvalidInput: the address cannot be listened on, TLS cannot be used, or there are no voters.
    """

    _log: CatalogLog
    _log_parts: LogParts
    _door: Door

    def __init__(self, settings: ClusterSettings, discovery: Discovery | None = None) -> None:
        self._settings = settings
        self._discovery = discovery
        settings.contexts()
        self._socket = bound_socket(settings.listen)
        self.name = settings.address or settings.listen
        if self.name.endswith(":0"):
            self.name = f"{self.name.rpartition(':')[0]}:{self._socket.getsockname()[1]}"
        others = [peer for peer in settings.peers if peer != self.name]
        self.incarnation = time.time_ns()
        self.voters = tuple(sorted(set(settings.peers))) or (self.name,)
        keepers = self.voters
        if settings.store:  # all nodes name the same, and need not name the same peers
            self.voters, keepers = (f"store {settings.store}",), (self.name,)
        if discovery is not None and not settings.peers and not settings.store:
            self._socket.close()
            hint = "give the same addresses to all nodes with --peers: they vote on its changes"
            raise InvalidInput("peers", "no node keeps the catalogue", hint)
        self._membership = Membership(self.name, others, keepers)
        self._catching_up = CatchingUp(others)
        self._placement = Placement(self.name)
        self._links: dict[str, OutLink] = {}
        self._in_links: dict[str, InLink] = {}
        self._round_trips: dict[str, int] = {}
        self._used = UsedElsewhere()
        self._own_shares = ToldShares(())
        self._own_use = RecentUse()
        self._reasons: dict[str, str] = {}  # why others cannot be reached
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._draining = self._left = False
        self._sent = self._lost = self._served = self._sent_bytes = self._received_bytes = 0
        self._has_majority = threading.Event()
        self.thread = self._wanted = 0
        self._kept = KeptKeeper(
            self.name,
            keepers,
            bool(settings.store),
            self._membership,
            self._links,
            settings.copies,
            self._spawn,
        )
        self.elsewhere = self._kept.elsewhere
        self._to_close: list[Callable[[], None]] = []
        self._listens = False

    # --- the node's side --------------------------------------------------------------------------

    def wrap(
        self, catalog: Catalog, url: str, post: Callable[[Callable[[], None]], None]
    ) -> ClusterCatalog:
        """See `ClusterPart.wrap`.

        Raises:
            CatalogCorrupt, Conflict: see `LogFile`.
        """
        self._post = post
        scheme, _, path = url.partition(":")
        folder = Path(path).expanduser() if scheme != "memory" else None
        self._log_parts = LogParts(self._settings, folder, bool(catalog.records()))
        self._to_close = [self._log_parts.close]
        self.source = BlobSource(post)
        staged = StagedBlobs(folder)
        store = self._settings.store
        self.catalog = ClusterCatalog(catalog, self.name, self.source, staged, store)
        return self.catalog

    def wrap_store(self, store: KeptStore) -> KeptStore:
        """See `ClusterPart.wrap_store`."""
        return self._kept.wrap(store, self._post)

    def start(self, parts: NodeParts) -> None:
        """See `ClusterPart.start`."""
        self.thread = threading.get_ident()
        self.parts, self.around = parts, parts.around
        self.catalog.removed = parts.removed
        self.catalog.refuse_on_loop = self._refuse_on_loop
        self._log = self._log_parts.driver(
            self._replica, self.catalog, self.source, self._post, self._send_ballot
        )
        self._to_close = [self._log.close]
        self.catalog.propose = lambda command: self._post(partial(self._propose, command))
        self._engines = RemoteEngines(parts.runtime, self.around, self._placement, self._links)
        self._kept.start(parts.kept, lambda: self.catalog.blocked is None)
        self._door = Door(self._settings, self, self, self._exchange)
        self._spawn(self._door.listen(self._socket))
        self._listens = True
        if self._discovery is not None:
            resources = {group.backend: group.engines for group in self.load(0).groups}
            self._discovery.start(self.name, resources, self._found, lambda: self._wanted)
        self._tick()

    def is_current(self) -> bool:
        """See `ClusterPart.is_current`."""
        return self._catching_up.is_done

    def _replica(self, file: LogFile) -> Replica:
        return Replica(self.name, self.voters, self.incarnation, file.saved)

    def _found(self, name: str) -> None:
        """Discovery found a node; from any thread."""

        def learn() -> None:
            self._membership.learned(name)
            self._act()

        self._post(learn)

    def _refuse_on_loop(self) -> None:
        if threading.get_ident() == self.thread:
            raise refused_on_loop()

    # --- time and members -------------------------------------------------------------------------

    def _tick(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        now_ns = time.monotonic_ns()
        for name, link in list(self._links.items()):
            if link.is_moving(now_ns):
                self._membership.moving(name, now_ns)
        self._membership.tick(now_ns)
        self._act()
        for end in list(self._in_links.values()):
            if end.is_moving(now_ns):
                end.heard_ns = now_ns
            elif now_ns - end.heard_ns > SILENT_NS:
                end.close("it sent no heartbeat")
        self._log.tick()
        if not self._catching_up.is_done:
            self._catching_up.tick(self._log.carried, now_ns)
            self.parts.changed()
        self._kept.tick(now_ns / 1e9)
        self._wanted = self._placement.wanted(self.load(0)) if self._discovery else 0

    def _act(self) -> None:
        """Carry out what membership decided."""
        for action in self._membership.take():
            if isinstance(action, Connect):
                if not self._left:
                    self._spawn(self._open(action.name))
            elif isinstance(action, Beat):
                link = self._links.get(action.name)
                if link is not None:
                    link.ping()
            elif isinstance(action, Lost):
                link = self._links.get(action.name)
                if link is not None:
                    log.warning("node %s is lost: %s", action.name, action.reason)
                    if action.left and link.under_way:  # the other side ends it behind its answers
                        loop = asyncio.get_running_loop()
                        loop.call_later(LAST_ANSWERS_S, link.close, action.reason)
                    else:
                        link.close(action.reason)
            elif isinstance(action, Renew):
                self._renew()
        majority = self._membership.has_majority
        if majority != self._has_majority.is_set():
            (self._has_majority.set if majority else self._has_majority.clear)()
        for name, view in self._placement.views.items():
            member = self._membership.members.get(name)
            is_open = member is not None and member.state.value == "alive" and not self._draining
            if view.open != is_open:
                view.open = is_open
                self._placement.changed()
        self._engines.refresh(min(self._round_trips.values(), default=0))

    def _renew(self) -> None:
        """This node was stopped for so long that others gave it up: begin anew."""
        log.warning("this node was stopped; it joins the cluster again")
        self.incarnation = max(self.incarnation + 1, time.time_ns())
        for link in list(self._in_links.values()):
            link.close("this node was stopped")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            to_dandelion_error(error, "the cluster")

    async def _open(self, name: str) -> None:
        """Open a link to another node."""
        try:
            link, incarnation, load = await self._door.open(name)
        except (OSError, TimeoutError, BadPeer, InvalidInput, UnicodeError) as error:
            member = self._membership.members.get(name)
            reason = str(error) or "it does not answer"
            if member is not None and self._reasons.get(name) != reason:
                self._reasons[name] = reason
                log.warning("node %s cannot be reached: %s", name, reason)
            self._catching_up.failed(name)
            self._membership.failed(name, time.monotonic_ns())
            if name not in self._membership.members:  # it is forgotten
                self._reasons.pop(name, None)
            self._act()
            return
        if self._left or not self._membership.connected(name, incarnation, time.monotonic_ns()):
            link.close("it is not a member")
            return
        self._links[name] = link
        self._reasons.pop(name, None)
        link.on_pong = partial(self._pong, name)
        link.on_load = partial(self._answered, name)
        link.on_leave = partial(self.left, name)
        self._log.linked(name, link)
        self._kept.linked(name, link)
        self._used.joined(name)
        self._placement.joined(name)
        self._placement.loaded(name, load)
        log.info("node %s is a member", name)
        self._act()

    def _pong(self, name: str, pong: Pong, round_trip_ns: int) -> None:
        self._membership.heard(name, pong.draining, time.monotonic_ns())
        self._round_trips[name] = round_trip_ns
        for other in pong.members:
            self._membership.learned(other)
        self._placement.loaded(name, pong.load)
        self._placement.used(name, pong.used_ns)
        self._log.heard_length(name, pong.registered)
        self._catching_up.heard(name, pong.registered)
        scheduler = self.parts.runtime.scheduler
        for tenant, backend, used_ns in self._used.heard(name, pong.used_ns, pong.uncharged_ns):
            scheduler.used_elsewhere(tenant, backend, used_ns)
        self._act()

    def _answered(self, name: str, backend: str, refused: bool, message: Done | Failed) -> None:
        """A call was answered."""
        self._placement.loaded(name, message.load)
        self._placement.ended(name, backend, refused)
        self._sent += 1
        self._engines.answered(backend)

    # --- links ------------------------------------------------------------------------------------

    def _exchange(self, peer: str) -> Exchange:
        around = self.around
        return Exchange(peer, around.arena, around.pool, around.events.post)

    def admits(self, name: str, incarnation: int) -> bool:
        """See `Acceptance`."""
        if self._left or not self._membership.joined(name, incarnation, time.monotonic_ns()):
            return False
        asyncio.get_running_loop().call_soon(self._act)
        return True

    def accepted(self, link: InLink) -> None:
        """See `Acceptance`."""
        old = self._in_links.get(link.peer)
        if old is not None:
            old.close("it opened a new one")
        self._in_links[link.peer] = link

    def ended(self, link: ControlEnd, reason: str) -> None:
        """See `Hub`."""
        self.source.lost(link)
        self._sent_bytes += link.sent_bytes
        self._received_bytes += link.received_bytes
        if isinstance(link, InLink):
            self._served += link.count
            if self._in_links.get(link.peer) is link:
                del self._in_links[link.peer]
            return
        if not isinstance(link, OutLink) or self._links.get(link.peer) is not link:
            return
        del self._links[link.peer]
        self._kept.unlinked(link.peer, link)
        self._lost += link.lost_calls
        self._round_trips.pop(link.peer, None)
        self._placement.left(link.peer)
        self._used.left(link.peer)
        if not self._left:
            self._membership.ended(link.peer, time.monotonic_ns())
            self._act()

    def left(self, peer: str) -> None:
        """See `Host`."""
        self._membership.left(peer)
        asyncio.get_running_loop().call_soon(self._act)

    # --- the catalogue ----------------------------------------------------------------------------

    def _propose(self, command: Command) -> None:
        if isinstance(self._log, StoreDriver) or self._membership.has_majority:
            self._log.propose(command)
        else:
            reason = "this node sees only a minority of the nodes"
            self.catalog.failed(command.id, unacknowledged(reason))

    def _send_ballot(self, name: str, content: bytes) -> None:
        link: ControlEnd | None = self._links.get(name) or self._in_links.get(name)
        if link is not None:
            link.control.send(Ballot(content))

    def ballot(self, peer: str, content: bytes) -> None:
        """See `Hub`."""
        self._log.received(peer, content, self._links.get(peer) or self._in_links.get(peer))

    async def answer(self, peer: str, content: bytes, data: Bytes) -> Answer:
        """See `Hub`."""
        return await self._kept.answer(peer, content, data)

    def registered(self) -> int:
        """See `Host`."""
        return self._log.length

    def members(self) -> tuple[str, ...]:
        """See `Host`."""
        known = self._membership.members.values()
        return (self.name, *[member.name for member in known if member.linked])

    @property
    def draining(self) -> bool:
        """See `Host`."""
        return self._draining
