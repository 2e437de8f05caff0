"""What `replication` works with: its times, what follows from events, attempts of a proposer."""

from __future__ import annotations

from dataclasses import dataclass, field

from dandelion.cluster.ballots import (
    BallotMessage,
    BallotNumber,
    Command,
    Promise,
    Saved,
    SnapshotAt,
)

MS = 1_000_000
PATIENCE_NS = 400 * MS
"""After so long without a majority a proposer tries again."""
ASK_NS = 100 * MS
"""How often a voter that lost its memory asks the others."""
GIVE_UP_NS = 5000 * MS
"""After so long a proposal is not acknowledged. It may still be chosen later."""
PROPOSALS_LIMIT = 256


@dataclass(slots=True)
class Changes:
    """What follows from events: carry it out in this order.

    Attributes:
        saved: to be stored before anything else, where it is stored at all.
        anew: `saved` replaces all that was stored before.
        sent: receivers and messages.
        chosen: commands to be carried out, in order.
        acknowledged: ids of own proposals that are chosen.
        failed: ids of own proposals that are not acknowledged.
        behind: nodes that need a snapshot.
        offered: a snapshot of another node that this one needs.
        adopted: the log goes on at this place, behind a snapshot.
    """

    saved: list[Saved] = field(default_factory=list)
    anew: bool = False
    sent: list[tuple[str, BallotMessage]] = field(default_factory=list)
    chosen: list[Command] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    offered: SnapshotAt | None = None
    adopted: int | None = None


NOTHING_NEW = Changes()


@dataclass(slots=True)
class Round:
    """One attempt of a proposer at one place."""

    place: int
    ballot: BallotNumber
    command: Command
    promises: dict[str, Promise] = field(default_factory=dict)
    accepted: set[str] = field(default_factory=set)
    requested: Command | None = None
    until_ns: int = 0


@dataclass(slots=True)
class Proposal:
    command: Command
    until_ns: int
