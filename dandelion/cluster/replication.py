"""The log of the catalogue's changes, the same on all nodes: pure, events in, actions out.

Registrations and removals are *commands*. Every node carries out the same commands in the same
order, so all have the same records with the same versions. For each place of the log the voters
agree on one command by Paxos; there is no leader, so any node may propose, and nothing has to be
elected when a node is lost. A command is acknowledged when it is chosen: then a majority of the
voters has it, and it cannot be lost with fewer.

For one place, a proposer with a ballot higher than all that it knows::

    Prepare ->  voters promise to accept nothing lower, and tell what they have accepted
    Accept  ->  with a majority: the accepted command of the highest ballot, else its own
    Chosen  ->  with a majority again: all learn it

If another command was chosen, the proposer goes on with its own at the next place. Two that
disturb each other wait for different times before they try again. A ballot has the number of the
proposer's start, since one that is started again need not know which ballots it has used: two
commands with the same ballot could not be told apart.

What a voter has promised and accepted must survive: it is in `Changes.saved`, and messages may
leave only after it is stored. A voter whose memory was lost, because it was never stored, must not
vote where it may have voted before. It asks the others how many commands they have (`Recover`): a
majority of voters that have not lost theirs, or all others. With n as the largest answer it may
have voted about place n + 1 at most, since only then it had all commands before, and each of them
was known to one of those that answered. So it votes from place n + 2 on, and proposes commands
without effect until the log is as long. If no voter has voted about anything, as after the first
start, the one that detects this informs the others, and the log begins.

Source: Lamport, "Paxos Made Simple", 2001.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable

from dandelion.cluster.ballots import (
    NO_BALLOT,
    NOTHING,
    Accept,
    Accepted,
    BallotMessage,
    CatchUp,
    Chosen,
    Command,
    Outbid,
    Prepare,
    Promise,
    Recover,
    Recovered,
    Saved,
    SavedBase,
    SavedCommand,
    SavedVote,
    SnapshotAt,
)
from dandelion.cluster.log_tail import LogTail
from dandelion.cluster.rounds import (
    ASK_NS,
    GIVE_UP_NS,
    PATIENCE_NS,
    PROPOSALS_LIMIT,
    Changes,
    Proposal,
    Round,
)


class Replica:
    """One node's part of the log.

    Args:
        me: name of the node.
        voters: names of all voters. A node that is none only learns and proposes.
        life: another number after each start of the node.
        saved: what was stored before. Without a `SavedVote` in it the memory of a voter is lost.

    Attributes:
        tail: the end of the log: commands that were chosen.
        lost: it has lost its memory, and does not vote yet.
    """

    def __init__(
        self, me: str, voters: Iterable[str], life: int, saved: Iterable[Saved] = ()
    ) -> None:
        self.me = me
        self.voters = tuple(sorted(voters))
        self.tail = LogTail()
        self._promised = self._accepted = NO_BALLOT
        self._command: Command | None = None  # accepted for the next place
        self._round: Round | None = None
        self._proposals: deque[Proposal] = deque()
        self._highest = 0
        self._random = random.Random(f"{life} {me}")
        self._changes = Changes()
        self._floor: int | None = None
        self._recovered: dict[str, Recovered] = {}
        self._life = life
        self._fresh = True
        self._cleared: dict[str, int] = {}
        self._retry_ns = 0
        others = [name for name in self.voters if name != me]
        self.lost = me in self.voters and bool(others)
        for one in saved:
            self._load(one)

    def _load(self, one: Saved) -> None:
        if isinstance(one, SavedBase):
            if one.place > self.length:
                self._begin_at(one.place)
            return
        if isinstance(one, SavedCommand):
            if one.place == self.length:
                self._append(one.command)
            return
        self.lost = False
        if one.promised != NO_BALLOT:
            self._fresh = False
        if one.place == self.length:
            self._promised, self._accepted, self._command = one.promised, one.accepted, one.command
            self._highest = max(self._highest, one.promised[0])

    def take(self) -> Changes:
        """Take what follows from the events since the last time."""
        changes, self._changes = self._changes, Changes()
        return changes

    @property
    def length(self) -> int:
        """Number of the commands that were chosen and that this node knows."""
        return self.tail.length

    @property
    def accepted(self) -> Command | None:
        """What this voter has accepted for the next place."""
        return self._command

    @property
    def majority(self) -> int:
        """How many voters choose."""
        return len(self.voters) // 2 + 1

    # --- events -----------------------------------------------------------------------------------

    def propose(self, command: Command, now_ns: int) -> bool:
        """Propose a command; its id is in `acknowledged` or `failed` later. False if it is full."""
        if len(self._proposals) >= PROPOSALS_LIMIT:
            return False
        self._proposals.append(Proposal(command, now_ns + GIVE_UP_NS))
        if self._round is None:
            self._begin(now_ns)
        return True

    def tick(self, now_ns: int) -> None:
        """Time has passed; call it a few times a second."""
        while self._proposals and self._proposals[0].until_ns <= now_ns:
            self._changes.failed.append(self._proposals.popleft().command.id)
            self._round = None
        if self.lost and now_ns >= self._retry_ns:
            self._retry_ns = now_ns + ASK_NS
            if self._floor is not None and not self._proposals:
                number = self.length
                self.propose(Command(f"{self.me} {self._life} {number}", NOTHING, b""), now_ns)
            for name in self.voters:
                if name != self.me:
                    self._send(name, Recover(self._life))
        if self._proposals and (self._round is None or self._round.until_ns <= now_ns):
            self._begin(now_ns)

    def heard_length(self, name: str, length: int) -> None:
        """Another node has so many commands."""
        if length > self.length:
            self._send(name, CatchUp(self.length))

    def restarted(self, name: str) -> None:
        """There is a new link to another node, which may have forgotten what it said."""
        self._retry_ns = 0
        if self._round is not None:
            self._round.promises.pop(name, None)
            self._round.accepted.discard(name)

    def received(self, name: str, message: BallotMessage, now_ns: int) -> None:
        """A message of another node, or of this one."""
        if isinstance(message, Prepare):
            self._prepare(name, message)
        elif isinstance(message, Accept):
            self._accept(name, message)
        elif isinstance(message, Promise):
            self._promise(name, message)
        elif isinstance(message, Accepted):
            self._counted(name, message)
        elif isinstance(message, Outbid):
            self._outbid(message, now_ns)
        elif isinstance(message, Chosen):
            self._learn(message, now_ns)
        elif isinstance(message, CatchUp):
            self._catch_up(name, message.place)
        elif isinstance(message, SnapshotAt):
            if message.place > self.length:
                self._changes.offered = message
        elif isinstance(message, Recover):
            cleared = self._cleared.get(name) == message.number
            lost, length, fresh = self.lost, self.length, self._fresh
            self._send(name, Recovered(message.number, lost, length, fresh, self._life, cleared))
        else:
            self._recover(name, message)

    # --- what is kept ---------------------------------------------------------------------------

    def compact(self, carried_out: int) -> None:
        """Keep and store less of the log, since the catalogue has so many commands of it."""
        self.tail.shorten(carried_out)
        self._save_anew()

    def restored(self, place: int) -> None:
        """A snapshot of another node is stored, with all commands before a place."""
        if place <= self.length:
            return
        self._begin_at(place)
        self._changes.adopted = place
        self._round = None
        self._changes.failed += [one.command.id for one in self._proposals]
        self._proposals.clear()
        self._save_anew()
        self._found()

    def _save_anew(self) -> None:
        base = self.tail.base
        changes = self._changes
        changes.anew = True
        changes.saved = [SavedBase(base)]
        for number, command in enumerate(self.tail.commands):
            changes.saved.append(SavedCommand(base + number, command))
        if self.me in self.voters and not self.lost:
            self._save()

    # --- the voter --------------------------------------------------------------------------------

    def _may_vote(self, name: str, place: int) -> bool:
        """Whether this node votes about a place; else it tells what it has, or asks for it."""
        if place < self.length:
            self._catch_up(name, place)
            return False
        if place > self.length:
            self._send(name, CatchUp(self.length))
            return False
        return self.me in self.voters and not self.lost

    def _prepare(self, name: str, message: Prepare) -> None:
        if not self._may_vote(name, message.place):
            return
        if message.ballot < self._promised:
            self._send(name, Outbid(message.place, self._promised))
            return
        self._promised, self._fresh = message.ballot, False
        self._save()
        self._send(name, Promise(message.place, message.ballot, self._accepted, self._command))

    def _accept(self, name: str, message: Accept) -> None:
        if not self._may_vote(name, message.place):
            return
        if message.ballot < self._promised:
            self._send(name, Outbid(message.place, self._promised))
            return
        self._promised = self._accepted = message.ballot
        self._command, self._fresh = message.command, False
        self._save()
        self._send(name, Accepted(message.place, message.ballot))

    def _save(self) -> None:
        self._highest = max(self._highest, self._promised[0])
        vote = SavedVote(self.length, self._promised, self._accepted, self._command)
        self._changes.saved.append(vote)

    def _catch_up(self, name: str, place: int) -> None:
        if place < 0 or place >= self.length:
            return
        if place < self.tail.base:
            self._changes.behind.append(name)
        else:
            self._send(name, Chosen(place, self.tail.part(place)))

    def _recover(self, name: str, message: Recovered) -> None:
        if not self.lost or message.number != self._life or name not in self.voters:
            return
        self._recovered[name] = message
        if message.cleared:
            self._floor = 0
            self._found()
            return
        if self._floor is not None:
            return
        answers = list(self._recovered.values())
        complete = len(answers) == len(self.voters) - 1
        if sum([not one.lost for one in answers]) < self.majority and not complete:
            return
        length = max([self.length, *(one.length for one in answers)])
        anew = complete and self._fresh and all(one.fresh for one in answers)
        self._floor = 0 if anew else length + 2
        self._retry_ns = 0
        if anew:
            self._cleared = {name: one.life for name, one in self._recovered.items()}
            for voter, life in self._cleared.items():
                self._send(voter, Recovered(life, True, 0, True, self._life, cleared=True))
        self._found()

    def _found(self) -> None:
        """End the loss of memory if the log is long enough."""
        if self.lost and self._floor is not None and self.length >= self._floor:
            self.lost = False
            self._save()
            if self._round is not None:
                self._round.until_ns = 0

    # --- the proposer -----------------------------------------------------------------------------

    def _begin(self, now_ns: int) -> None:
        """Try to have the first own proposal chosen at the next place."""
        if not self._proposals:
            self._round = None
            return
        self._highest += 1
        ballot = (self._highest, f"{self.me} {self._life}")
        wait_ns = PATIENCE_NS + self._random.randrange(PATIENCE_NS)
        place = self.length
        command = self._proposals[0].command
        self._round = Round(place, ballot, command, until_ns=now_ns + wait_ns)
        for name in self.voters:
            self._send(name, Prepare(place, ballot))

    def _promise(self, name: str, message: Promise) -> None:
        attempt = self._round
        if attempt is None or message.ballot != attempt.ballot or name not in self.voters:
            return
        attempt.promises[name] = message
        if attempt.requested is None and len(attempt.promises) >= self.majority:
            best = max(attempt.promises.values(), key=lambda one: one.accepted)
            attempt.requested = best.command or attempt.command
            for voter in self.voters:
                self._send(voter, Accept(attempt.place, attempt.ballot, attempt.requested))

    def _counted(self, name: str, message: Accepted) -> None:
        attempt = self._round
        if attempt is None or message.ballot != attempt.ballot or name not in self.voters:
            return
        attempt.accepted.add(name)
        if len(attempt.accepted) == self.majority and attempt.requested is not None:
            for voter in self.voters:
                if voter != self.me:
                    self._send(voter, Chosen(attempt.place, (attempt.requested,)))
            self._send(self.me, Chosen(attempt.place, (attempt.requested,)))

    def _outbid(self, message: Outbid, now_ns: int) -> None:
        self._highest = max(self._highest, message.ballot[0])
        attempt = self._round
        if attempt is not None and message.place == attempt.place and attempt.requested is None:
            pause_ns = self._random.randrange(PATIENCE_NS // 4)
            attempt.until_ns = min(attempt.until_ns, now_ns + pause_ns)

    def _learn(self, message: Chosen, now_ns: int) -> None:
        if message.place > self.length:
            return
        new = message.commands[self.length - message.place :]
        for command in new:
            self._changes.saved.append(SavedCommand(self.length, command))
            self._append(command)
            self._changes.chosen.append(command)
            self._acknowledge(command.id)
        self._found()
        if new and (self._round is None or self._round.place < self.length):
            self._begin(now_ns)

    def _append(self, command: Command) -> None:
        self.tail.append(command)
        self._forget_votes()

    def _begin_at(self, place: int) -> None:
        self.tail.begin_at(place)
        self._forget_votes()

    def _forget_votes(self) -> None:
        """There is a new next place."""
        self._fresh = False
        self._promised = self._accepted = NO_BALLOT
        self._command = None

    def _acknowledge(self, id_: str) -> None:
        for proposal in self._proposals:
            if proposal.command.id == id_:
                self._proposals.remove(proposal)
                self._changes.acknowledged.append(id_)
                return

    def _send(self, name: str, message: BallotMessage) -> None:
        self._changes.sent.append((name, message))
