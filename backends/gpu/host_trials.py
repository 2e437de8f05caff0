"""Whether the kernels of a function run in several threads or in the one that launches them.

With threads, each launch wakes the threads of the device's library up and waits for them. That pays
for long kernels only: a network of six launches that takes 0.07 ms in one thread makes some 20
switches between threads instead of one, and takes twice as long where other processes want the same
cores. Which way is better depends on kernels, sizes and machine, so it is measured.

A function begins on a host with threads. When all its calls are brief and it has been used for
longer than compiling it took, a second host is started for it, without threads. A **trial** has
these phases, and no call waits for it but by sharing the processors::

    STARTING    the rival gives up its rights and opens the device
    CONFINED    it can get code; the next call is copied to it, too, and its answer is dropped
    COMPILING   the rival compiles, while calls go to the other host
    COMPARING   calls go to both in turns

The host without threads stays unless its calls take longer by a quarter; the other one ends. Both
have only this function, and one call at a time. A call that might have to end while the rival runs
it goes to the other one. A function that is called too rarely to be compared within a minute may
have another trial later.

A host without threads whose calls are brief no longer is ended, too; the function then begins anew
with threads, and keeps them.
"""

from __future__ import annotations

import enum
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from dandelion.driver import Call
from dandelion.engine_process.channel import Ended
from dandelion.errors import DandelionError

from .host_process import START_LIMIT_S, Expected, HostEnded, HostProcess
from .known_answers import KnownAnswer

BRIEF_NS = 3_000_000
"""Calls that take longer have threads."""
START_NS = 500_000_000
"""About what it takes to start a host."""
CALLS = 16
"""So many calls of each host are compared, by their medians."""
_TOLERANCE = 1.25
"""Without threads, calls may take so much longer: they leave cores to others."""
_FUNCTIONS = 256  # more than have a host; what is forgotten is found out again


class Phase(enum.Enum):
    """Where a trial is; see the module's text."""

    STARTING = "starting"
    CONFINED = "confined"
    COMPILING = "compiling"
    COMPARING = "comparing"


class TrialFailed(Exception):
    """The rival cannot run the function; the host that is there stays."""


class TooFewCalls(Exception):
    """The function is not called often enough to compare two hosts."""


@dataclass(slots=True)
class HostUse:
    """How one function was used since it has its host.

    Attributes:
        first_ns: how long the first call took, most of which is compiling.
        spent_ns: in the calls since the last one that was not brief.
        brief_calls: how many these are.
        has_threads: its host has.
        is_settled: there is nothing to find out any more.
    """

    first_ns: int = 0
    spent_ns: int = 0
    brief_calls: int = 0
    has_threads: bool = True
    is_settled: bool = False

    def ran(self, took_ns: int, is_brief: bool) -> None:
        """Note a call."""
        if not self.first_ns:
            self.first_ns = took_ns
        elif is_brief:
            self.brief_calls += 1
            self.spent_ns += took_ns
        else:
            self.brief_calls = self.spent_ns = 0

    def is_due(self, start_ns: int) -> bool:
        """Tell whether a trial is worth its cost."""
        return (
            not self.is_settled
            and self.brief_calls >= CALLS
            and self.spent_ns > self.first_ns + start_ns
        )


class HostTrial:
    """Compares two hosts of a function.

    Args:
        identity: of the function.
        rival: a host without threads, that was just started.
    """

    def __init__(self, identity: str, rival: HostProcess) -> None:
        self.identity = identity
        self.rival = rival
        self.phase = Phase.STARTING
        self._expected: Expected | None = None  # while the rival compiles
        self._known: KnownAnswer | None = None
        self._begun_s = self._rehearsed_s = 0.0  # of the rehearsal: its start, how long it took
        self._end_s = time.monotonic() + START_LIMIT_S
        self._took_ns: dict[bool, list[int]] = {False: [], True: []}

    def look(self) -> None:
        """Go on, without waiting; between calls.

        Raises:
            TrialFailed: the rival cannot run the function.
            TooFewCalls: it could not be compared in time.
        """
        try:
            if self.phase is Phase.STARTING and self.rival.wait_confined(0.0):
                self.phase = Phase.CONFINED
            elif self.phase is Phase.COMPILING:
                assert self._expected is not None, "it was sent"
                if self.rival.end_rehearsal(self._expected):
                    self.rival.memory.clean()
                    self._compare()
        except (DandelionError, HostEnded, Ended, OSError) as error:
            raise TrialFailed(str(error)) from error
        if time.monotonic() > self._end_s:
            if self.phase in (Phase.CONFINED, Phase.COMPARING):
                raise TooFewCalls
            raise TrialFailed("the rival takes too long")

    def _compare(self) -> None:
        now_s = time.monotonic()
        self._rehearsed_s = now_s - self._begun_s
        self._end_s = now_s + START_LIMIT_S
        self._expected = None
        self.phase = Phase.COMPARING

    def rehearse(self, call: Call, known: KnownAnswer) -> None:
        """Give a call to the rival, too, if it can be given one; its answer is awaited by `look`.

        Raises:
            TrialFailed: the rival cannot run the function.
        """
        if self.phase is not Phase.CONFINED:
            return
        self._begun_s = time.monotonic()
        self._end_s = self._begun_s + START_LIMIT_S
        try:
            self.rival.load(call)
            place = self.rival.memory.place_call(call, known.context_bytes)
            self._expected = self.rival.begin_rehearsal(call, place, known, self._end_s)
        except (DandelionError, HostEnded) as error:
            raise TrialFailed(str(error)) from error
        self._known = known
        self.phase = Phase.COMPILING

    def is_rivals(self, known: KnownAnswer, left_s: float) -> bool:
        """Tell whether the next call with these sizes, and so much time, goes to the rival."""
        took = self._took_ns
        return (
            self.phase is Phase.COMPARING
            and known is self._known
            and left_s > self._rehearsed_s
            and len(took[True]) <= len(took[False])
        )

    def ran(self, known: KnownAnswer, host: HostProcess, took_ns: int) -> bool | None:
        """Note a call of the function.

        Returns:
            Whether the rival has won, or None if that is not known yet.
        """
        if self.phase is not Phase.COMPARING or known is not self._known:
            return None
        self._took_ns[host is self.rival].append(took_ns)
        threads, rival = self._took_ns[False], self._took_ns[True]
        if min(len(threads), len(rival)) < CALLS:
            return None
        return statistics.median(rival) <= _TOLERANCE * statistics.median(threads)


class HostTrials:
    """Starts trials and carries out what they find. Used by the thread of the engine.

    Args:
        start: starts a host without threads, and does not wait for it; None if there are none.
        end: ends a host.
        adopt: gives a function another host instead of the one that it has.
        drop: ends the host of a function.
        start_ns: what starting a host costs.

    Attributes:
        current: the trial that runs, if there is one.
    """

    def __init__(
        self,
        start: Callable[[], HostProcess] | None,
        end: Callable[[HostProcess], None],
        adopt: Callable[[str, HostProcess], None],
        drop: Callable[[str], None],
        start_ns: int = START_NS,
    ) -> None:
        self._start = start
        self._end = end
        self._adopt = adopt
        self._drop = drop
        self._start_ns = start_ns
        self._uses: OrderedDict[str, HostUse] = OrderedDict()
        self._due = ""
        self.current: HostTrial | None = None

    def choose(self, call: Call, known: KnownAnswer, host: HostProcess) -> HostProcess:
        """Give the host of the next call: the function's own, or its rival."""
        trial = self.current
        if trial is None or trial.identity != call.function.identity:
            return host
        try:
            trial.rehearse(call, known)
        except TrialFailed:
            self.give_up()
            return host
        if not trial.is_rivals(known, call.left_s()):
            return host
        if not trial.rival.is_quiet():
            self.give_up()
            return host
        return trial.rival

    def ran(self, identity: str, known: KnownAnswer, host: HostProcess, took_ns: int) -> None:
        """Note a call that succeeded."""
        trial = self.current
        if trial is not None and trial.identity == identity:
            won = trial.ran(known, host, took_ns)
            if won is not None:
                self._decided(trial, won)
            return
        known.ran(host.child.pid, took_ns)
        use = self._uses.get(identity) or HostUse()
        self._note(identity, use)
        use.ran(took_ns, known.least_ns <= BRIEF_NS)
        if use.has_threads:
            if trial is None and self._start is not None and use.is_due(self._start_ns):
                self._due = identity
        elif known.calls > CALLS and known.least_ns > BRIEF_NS:
            self._note(identity, HostUse(is_settled=True))
            self._drop(identity)

    def _note(self, identity: str, use: HostUse) -> None:
        """Remember the use of a function; that of the one that was called least recently goes."""
        self._uses[identity] = use
        self._uses.move_to_end(identity)
        if len(self._uses) > _FUNCTIONS:
            self._uses.popitem(last=False)

    def _decided(self, trial: HostTrial, has_won: bool) -> None:
        self._note(trial.identity, HostUse(has_threads=not has_won, is_settled=True))
        self.current = None
        if has_won:
            self._adopt(trial.identity, trial.rival)
        else:
            self._end(trial.rival)

    def step(self, has_room: bool) -> None:
        """Go on, without waiting; between calls.

        Args:
            has_room: there may be one more host.
        """
        if self.current is not None:
            try:
                self.current.look()
            except TrialFailed:
                self.give_up()
            except TooFewCalls:
                self.put_off()
        elif self._due:
            identity, self._due = self._due, ""
            if has_room and self._start is not None:
                try:
                    self.current = HostTrial(identity, self._start())
                except (OSError, DandelionError):
                    self._note(identity, HostUse(is_settled=True))

    def give_up(self) -> None:
        """End the trial that runs, if one does; its function keeps the host that it has."""
        if self.current is not None:
            self._decided(self.current, has_won=False)

    def put_off(self) -> None:
        """End the trial that runs, if one does; there may be another one of its function later."""
        trial, self.current = self.current, None
        if trial is not None:
            self._uses.pop(trial.identity, None)
            self._end(trial.rival)

    def dropped(self, identity: str) -> None:
        """Note that a function has no host any more; the next one has threads."""
        if self.current is not None and self.current.identity == identity:
            self.put_off()
        if self._due == identity:
            self._due = ""
        use = self._uses.pop(identity, None)
        if use is not None and use.is_settled and use.has_threads:
            self._note(identity, use)
