"""Which nodes are members, and which of them are alive: pure, events in, actions out, no clock.

Each node has its own view. It opens a link to every member that it knows and sends heartbeats
there; the answers say that the member is alive. States of a member::

              connected                no answer for SUSPECT_NS
    UNKNOWN -------------> ALIVE --------------------------------> SUSPECT
       ^                     ^ \\____ the link ended ______________/ |  ^
       |                     |        an answer, or connected        |  |
       |                     +---------------------------------------+  |
       |                     | connected                                | no answer for DEAD_NS,
       +- learned          DEAD <---------------------------------------+ or the link ended and
                             |                                            cannot be opened again
                             +--> LEFT: it said so, and is forgotten

`Lost` is given once for each link that was up: what was under way there has to be done elsewhere.
A member that comes back has a new link, so answers from before can never be taken for new ones. A
link of an older incarnation than the newest one known is refused.

A node that was stopped for longer than `DEAD_NS` (a debugger, a suspended machine) finds this out
by its own clock. Others think that it is dead, so it takes a new incarnation and opens its links
again.

A node acknowledges changes of the catalogue only while it sees more than half of the voters,
itself included (`has_majority`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

MS = 1_000_000
BEAT_NS = 250 * MS
"""How often a heartbeat is sent."""
SUSPECT_NS = 700 * MS
"""After so long without an answer a member gets no new calls."""
DEAD_NS = 1500 * MS
"""After so long without an answer its calls are run elsewhere."""
RETRY_NS = (0, 50 * MS, 100 * MS, 250 * MS, 500 * MS, 1000 * MS)
"""Pauses before a link is opened again."""
LIMIT = 1024
"""How many members a node knows."""
FORGET_FAILURES = 300
"""After so many attempts in a row to open a link, about one a second, a member that is no voter is
forgotten: machines that come and go may have another address each time."""


class MemberState(enum.Enum):
    """The state of a member, as seen from one node."""

    UNKNOWN = "unknown"  # no link was up yet
    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    DRAINING = "draining"  # alive, and takes no more calls


@dataclass(slots=True)
class Member:
    """A member, other than the node itself.

    Attributes:
        name: its address.
        incarnation: the newest that is known.
        heard_ns: when it last answered.
        connecting: a link is being opened.
        linked: a link is up.
        failures: of opening a link, in a row.
        retry_ns: when to open one; 0 if that is not planned.
    """

    name: str
    state: MemberState = MemberState.UNKNOWN
    incarnation: int = 0
    heard_ns: int = 0
    connecting: bool = False
    linked: bool = False
    failures: int = 0
    retry_ns: int = 0

    @property
    def is_up(self) -> bool:
        """Whether it is alive for all that is known."""
        return self.state in (MemberState.ALIVE, MemberState.DRAINING)


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a link; answer with `connected` or `failed`."""

    name: str


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a heartbeat over the link."""

    name: str


@dataclass(frozen=True, slots=True)
class Lost:
    """End the link; what was under way there is lost.

    Attributes:
        left: the node shuts down, and its last answers may be on their way.
    """

    name: str
    reason: str
    left: bool = False


@dataclass(frozen=True, slots=True)
class Renew:
    """This node was stopped for long: end all links in both directions, with a new incarnation."""


Action: TypeAlias = Connect | Beat | Lost | Renew


class Membership:
    """One node's view of the cluster.

    Args:
        me: name of the node.
        known: names of other members, which are never forgotten.
        voters: names of the nodes whose majority counts; this one may be among them.
    """

    def __init__(self, me: str, known: Iterable[str], voters: Iterable[str]) -> None:
        self.me = me
        self.voters = frozenset(voters)
        self._named = self.voters.union(known)
        self.members: dict[str, Member] = {}
        self._actions: list[Action] = []
        self._ticked_ns: int | None = None
        self._beat_ns = 0
        for name in known:
            self.learned(name)

    def take(self) -> list[Action]:
        """Take the actions to carry out, in order."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def has_majority(self) -> bool:
        """Whether more than half of the voters are alive, for all that this node knows."""
        up = sum([name == self.me or self._is_up(name) for name in self.voters])
        return 2 * up > len(self.voters)

    @property
    def sees_all(self) -> bool:
        """Whether all members that are known are alive."""
        return all(member.is_up for member in self.members.values())

    def _is_up(self, name: str) -> bool:
        member = self.members.get(name)
        return member is not None and member.is_up

    # --- events ---------------------------------------------------------------------------------

    def learned(self, name: str) -> None:
        """Another node is a member, as one of them said."""
        if name != self.me and name not in self.members and len(self.members) < LIMIT:
            self.members[name] = Member(name)
            self._connect(self.members[name])

    def connected(self, name: str, incarnation: int, now_ns: int) -> bool:
        """A link is up. False if it is to an old incarnation, or the member left: end it."""
        member = self.members.get(name)
        if member is None or incarnation < member.incarnation:
            if member is not None:
                self.failed(name, now_ns)
            return False
        member.incarnation = incarnation
        member.connecting, member.linked = False, True
        member.failures = member.retry_ns = 0
        member.heard_ns = now_ns
        member.state = MemberState.ALIVE
        return True

    def failed(self, name: str, now_ns: int) -> None:
        """A link could not be opened."""
        member = self.members.get(name)
        if member is None:
            return
        member.connecting = False
        member.failures += 1
        if member.failures >= FORGET_FAILURES and name not in self._named:
            del self.members[name]
            return
        if member.state is MemberState.SUSPECT:
            member.state = MemberState.DEAD
        self._retry(member, now_ns)

    def ended(self, name: str, now_ns: int) -> None:
        """A link that was up has ended."""
        member = self.members.get(name)
        if member is not None and member.linked:
            self._lose(member, "its connection ended", MemberState.SUSPECT, now_ns)

    def heard(self, name: str, draining: bool, now_ns: int) -> None:
        """A member answered a heartbeat."""
        member = self.members.get(name)
        if member is not None and member.linked:
            member.heard_ns = now_ns
            member.state = MemberState.DRAINING if draining else MemberState.ALIVE

    def moving(self, name: str, now_ns: int) -> None:
        """A large message to or from a member moves on, and heartbeats wait for it."""
        member = self.members.get(name)
        if member is not None and member.linked:
            member.heard_ns = now_ns

    def joined(self, name: str, incarnation: int, now_ns: int) -> bool:
        """A member opened a link to this node. False if an old incarnation did: refuse it."""
        self.learned(name)
        member = self.members.get(name)
        if member is None or incarnation < member.incarnation:
            return False
        if incarnation > member.incarnation:
            if member.linked:
                self._lose(member, "it was started again", MemberState.SUSPECT, now_ns)
            member.incarnation = incarnation
        if not member.linked and not member.connecting:
            self._connect(member)  # it is there, so there is no reason to wait
        return True

    def left(self, name: str) -> None:
        """A member shuts down."""
        member = self.members.get(name)
        if member is None:
            return
        if member.linked:
            self._actions.append(Lost(name, "it left the cluster", left=True))
        if name in self._named:  # it may come back, and its vote may be missing
            member.linked = member.connecting = False
            member.state = MemberState.DEAD
            member.failures = len(RETRY_NS)
            member.retry_ns = 1
        else:
            del self.members[name]

    def tick(self, now_ns: int) -> None:
        """Time has passed; call it several times in each `BEAT_NS`."""
        last, self._ticked_ns = self._ticked_ns, now_ns
        if last is not None and now_ns - last > DEAD_NS:
            self._renew(now_ns)
            return
        beats = now_ns >= self._beat_ns
        if beats:
            self._beat_ns = now_ns + BEAT_NS
        for member in self.members.values():
            if member.retry_ns and now_ns >= member.retry_ns and not member.connecting:
                self._connect(member)
            if not member.linked:
                continue
            silent_ns = now_ns - member.heard_ns
            if silent_ns > DEAD_NS:
                reason = f"it did not answer for {silent_ns / 1e9:.1f} s"
                self._lose(member, reason, MemberState.DEAD, now_ns)
                continue
            if silent_ns > SUSPECT_NS:
                member.state = MemberState.SUSPECT
            if beats:
                self._actions.append(Beat(member.name))

    # --- private --------------------------------------------------------------------------------

    def _renew(self, now_ns: int) -> None:
        self._beat_ns = 0
        for member in self.members.values():
            if member.linked:
                self._lose(member, "this node was stopped", MemberState.SUSPECT, now_ns)
        self._actions.append(Renew())

    def _connect(self, member: Member) -> None:
        member.connecting, member.retry_ns = True, 0
        self._actions.append(Connect(member.name))

    def _retry(self, member: Member, now_ns: int) -> None:
        pause_ns = RETRY_NS[min(member.failures, len(RETRY_NS) - 1)]
        member.retry_ns = max(1, now_ns + pause_ns)

    def _lose(self, member: Member, reason: str, state: MemberState, now_ns: int) -> None:
        member.linked = False
        member.state = state
        self._actions.append(Lost(member.name, reason))
        self._retry(member, now_ns)
