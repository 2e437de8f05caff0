"""What an engine keeps of calls whose like it has run."""

from __future__ import annotations

from dataclasses import dataclass, field

from dandelion.blueprint.records import WORD_BYTES
from dandelion.data import Bytes
from dandelion.driver import InstanceSets

from .adaptive_wait import AdaptiveWait
from .layout import aligned
from .open_arguments import OpenArgument
from .plan import Plan
from .program import Program
from .ready_plans import Ready


@dataclass(slots=True, eq=False)
class KnownCall:
    """What all calls of one function with the same signature have in common.

    Attributes:
        program: of the function.
        ready: its plan on the device.
        copies: for each input that is copied, the position of its set and its offset in the pool.
        results: for each output its name, offset in the context, size, offset in the pool.
        context_bytes: size of the context of the outputs.
        keep: its constants were to stay on the device when it was planned.
        refused: they were, but the device did not take them.
        words: the offsets of words in the pool that say whether outputs are there.
        decided: for each of these words, the positions of the outputs.
        open_arguments: arguments by value that each of them gives.
        waiting: how such calls are waited for.
        candidates: the key of its alternatives, until they were measured.
    """

    program: Program
    ready: Ready
    copies: tuple[tuple[int, int], ...]
    results: tuple[tuple[str, int, int, int], ...]
    context_bytes: int
    keep: bool
    refused: bool
    words: tuple[int, ...] = ()
    decided: tuple[tuple[int, ...], ...] = ()
    open_arguments: tuple[OpenArgument, ...] = ()
    waiting: AdaptiveWait = field(default_factory=AdaptiveWait)
    candidates: str = ""

    def present(self, outputs: InstanceSets, words: Bytes) -> InstanceSets:
        """Leave the outputs out whose words are zero.

        Args:
            outputs: of a call.
            words: the bytes of `words`, one after the other.
        """
        found = list(outputs)
        for index, positions in enumerate(self.decided):
            if not any(words[index * WORD_BYTES : (index + 1) * WORD_BYTES]):
                for position in positions:
                    found[position] = None
        return tuple(found)


def known_call(
    program: Program, plan: Plan, ready: Ready, keep: bool, refused: bool, candidates: str
) -> KnownCall:
    """Work out what calls with a plan have in common; the arguments are the attributes."""
    copies = [(p, plan.slots[n].offset_bytes) for n, p in program.inputs if n in plan.slots]
    results = []
    end = 0
    for name in program.outputs:
        slot = plan.outputs[name]
        results.append((name, end, slot.size_bytes, slot.offset_bytes))
        end += aligned(slot.size_bytes)
    words = tuple(dict.fromkeys(plan.present_if.values()))
    decided = tuple(
        tuple(i for i, n in enumerate(program.outputs) if plan.present_if.get(n) == word)
        for word in words
    )
    return KnownCall(
        program, ready, tuple(copies), tuple(results), end, keep, refused, words, decided,
        plan.open_arguments, candidates=candidates,
    )  # fmt: skip
