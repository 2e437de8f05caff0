"""Sections of a plan: what runs without a look at the device, and loops that look at a word.

A plan with such a loop cannot be captured as a whole, since the host decides whether there is a
further iteration. So its program is cut into sections: launches in order, which are paced, measured
and captured like a plan of their own, and rounds of sections that are repeated while a word is not
zero. After each iteration the word is copied to memory that the device was told of, and the host
waits for it; there it also looks whether the call must end.

Rejected: the next iteration launched before the word is known. An iteration after the last one
changes the result, and what it changes would have to be copied beforehand each time.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from dandelion.blueprint.records import WORD_BYTES
from dandelion.memory.lease import address_of

from .adaptive_wait import LONG_NS
from .device import Device
from .draft_records import Loop, Program

if TYPE_CHECKING:
    from .plan import Plan
    from .ready_plans import Ready


@dataclass(frozen=True, slots=True)
class Round:
    """Sections that are repeated.

    Attributes:
        times: how often, or at most.
        word: the buffer that begins with the word that ends the loop; empty if there is none.
        sections: of one iteration.
    """

    times: int
    word: str
    sections: tuple[Section, ...]


Section: TypeAlias = Program | Round


def sections_of(program: Program) -> tuple[Section, ...]:
    """Cut a program at its loops with conditions."""
    found: list[Section] = []
    plain: list[int | Loop] = []
    for step in program:
        if not isinstance(step, Loop) or not has_words(step):
            plain.append(step)
            continue
        if plain:
            found.append(tuple(plain))
            plain = []
        found.append(Round(step.times, step.word, sections_of(step.program)))
    if plain:
        found.append(tuple(plain))
    return tuple(found)


def has_words(loop: Loop) -> bool:
    """Tell whether a loop, or one inside of it, has a condition."""
    inner = (step for step in loop.program if isinstance(step, Loop))
    return bool(loop.word) or any(map(has_words, inner))


def launches_of(program: Program) -> int:
    """Count the steps of a program, loops unrolled."""
    return sum(
        step.times * launches_of(step.program) if isinstance(step, Loop) else 1 for step in program
    )


def section_plan(plan: Plan, program: Program) -> Plan:
    """Make a plan of a part of a plan's program."""
    return replace(plan, program=program, launches=launches_of(program), words={})


@dataclass(frozen=True, slots=True, eq=False)
class ReadyRound:
    """A round on a device.

    Attributes:
        times: how often, or at most.
        word: offset of its word in the pool; None if it has none.
        sections: of one iteration.
    """

    times: int
    word: int | None
    sections: tuple[Ready | ReadyRound, ...]


def straight(sections: Sequence[Ready | ReadyRound]) -> Iterator[Ready]:
    """Give the sections that are launches in order, each once."""
    for section in sections:
        if isinstance(section, ReadyRound):
            yield from straight(section.sections)
        else:
            yield section


class WordReader:
    """Reads words from the pool of a device.

    Args:
        device: with the pool; it must be closed before the reader is dropped.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._memory = memoryview(b"")
        self._kept: list[memoryview] = []  # all that the device was told of
        self._waited_ns = 0

    def fetch(self, offsets: Sequence[int]) -> memoryview:
        """Have words copied; they are there when the device has done its work up to here.

        Returns:
            Their bytes, one after the other, until the next fetch.
        """
        if self._memory.nbytes < len(offsets) * WORD_BYTES:
            pages = -(-len(offsets) * WORD_BYTES // mmap.PAGESIZE)
            memory = memoryview(mmap.mmap(-1, pages * mmap.PAGESIZE))
            self._device.register(address_of(memory), memory.nbytes)
            self._memory = memory
            self._kept.append(memory)
        found = self._memory[: len(offsets) * WORD_BYTES]
        for index, offset in enumerate(offsets):
            part = found[index * WORD_BYTES : (index + 1) * WORD_BYTES]
            self._device.copy_out(offset, part)
        return found

    def read(self, offset: int) -> int:
        """Read one word; waits until the device has done its work up to here.

        If the last wait was short, this one is awake: waking up takes longer than many iterations.
        """
        found = self.fetch([offset])
        began_ns = time.perf_counter_ns()
        if self._waited_ns < LONG_NS:
            self._device.synchronize()
        else:
            self._device.wait(self._device.mark())
        self._waited_ns = time.perf_counter_ns() - began_ns
        return int.from_bytes(found, "little")


class SectionRunner:
    """Runs the sections of one call.

    Args:
        words: reads the words.
        launch: launches a section, and measures it unless it is brief; it is captured when due.
        check: called before each iteration; raises if the call must end.
        brief_ns: how long sections may take that are not cut into parts.
    """

    def __init__(
        self,
        words: WordReader,
        launch: Callable[[Ready], None],
        check: Callable[[], None],
        brief_ns: int,
    ) -> None:
        self._words = words
        self._launch = launch
        self._check = check
        self._brief_ns = brief_ns
        self._launched: dict[int, Ready] = {}  # since the last look at a word
        self._last_ns = time.perf_counter_ns()

    def run(self, sections: Sequence[Ready | ReadyRound]) -> None:
        """Run sections in order."""
        for section in sections:
            if isinstance(section, ReadyRound):
                self._repeat(section)
            else:
                self._launched[id(section)] = section
                self._launch(section)

    def _repeat(self, section: ReadyRound) -> None:
        for _ in range(section.times):
            self._check()
            self.run(section.sections)
            if section.word is not None:
                word = self._words.read(section.word)
                self._looked()
                if not word:
                    return

    def _looked(self) -> None:
        """Have sections measured again that were taken for brief and are not."""
        now_ns = time.perf_counter_ns()
        if now_ns - self._last_ns > self._brief_ns:
            for section in self._launched.values():
                if section.brief:
                    section.took_long()
        self._launched.clear()
        self._last_ns = now_ns
