"""What an experiment is, and what it gets.

An experiment answers one question on whatever machine it runs. It is a function in a module of
``bench/experiments/``, made known by a decorator::

    @experiment("chain", group="dispatcher", question="what does one application cost?")
    def chain(bench: Bench) -> Found:
        ...

It measures all systems that it compares in one run, in turns, and skips with a reason what is not
there. It scales itself: `Bench.pick` chooses between sizes for a quick run, a machine without a
GPU, and a machine with one. It takes minutes at most, leaves nothing behind, and raises nothing for
a missing device, library or peer: that is a `Skip`.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from dandelion.errors import Unknown

from . import experiments
from .records import Found

T = TypeVar("T")

GROUPS = {
    "harness": "is the harness right?",
    "dispatcher": "what does the engine add to a function?",
    "data": "what do data, memory and cold starts cost?",
    "sandbox": "what does untrusted code cost?",
    "thesis": "the figures of the GPU thesis for Dandelion",
    "plover": "the tables of PyPlover",
    "kaas": "the figures of KaaS, with synthetic graphs of the same shape",
    "kaas_load": "the figures of KaaS with many tenants at once",
    "gpu": "what do the GPU engines cost over bare loops?",
}
"""Groups of experiments, and what each asks."""


@dataclass(slots=True)
class Bench:
    """What an experiment gets.

    Attributes:
        quick: everything in seconds; figures are indications.
        backend: which backend runs GPU functions here: "cuda", "hip", "opencl", or "" for none.
        say: shows progress; a few words, like "25 rps, 2 workers". Called often.
        seed: for everything random.
    """

    quick: bool = False
    backend: str = ""
    say: Callable[[str], None] = field(default=lambda _: None)
    seed: int = 1

    @property
    def gpu(self) -> bool:
        """Whether there is a real GPU; OpenCL on processors is none."""
        return self.backend in ("cuda", "hip")

    def pick(self, quick: T, small: T, full: T) -> T:
        """Choose a size: of a quick run, of a machine without a GPU, or of one with a GPU."""
        if self.quick:
            return quick
        return full if self.gpu else small


Run: TypeAlias = Callable[[Bench], Found]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A question and who answers it.

    Attributes:
        name: unique; for the command line and file names.
        group: key of `GROUPS`.
        question: one sentence, answered by one table.
        source: figure or table of a paper that it repeats; empty for our own.
        needs_gpu: whether it makes no sense on a processor.
        run: measures.
    """

    name: str
    group: str
    question: str
    run: Run
    source: str = ""
    needs_gpu: bool = False


_known: dict[str, Experiment] = {}


def experiment(
    name: str, *, group: str, question: str, source: str = "", needs_gpu: bool = False
) -> Callable[[Run], Run]:
    """Make a function known as an experiment."""
    assert group in GROUPS, group

    def known(run: Run) -> Run:
        assert name not in _known, f"two experiments are named {name}"
        _known[name] = Experiment(name, group, question, run, source, needs_gpu)
        return run

    return known


def all_experiments() -> dict[str, Experiment]:
    """Load every module of ``bench/experiments`` and give what they hold, by group and name."""
    for module in pkgutil.iter_modules(experiments.__path__, experiments.__name__ + "."):
        importlib.import_module(module.name)
    order = list(GROUPS)
    ranked = sorted(_known.values(), key=lambda e: (order.index(e.group), e.name))
    return {e.name: e for e in ranked}


def chosen(names: list[str]) -> list[Experiment]:
    """Find experiments by their names or groups; all of them for no name.

    Raises:
        Unknown: there is none of that name.
    """
    known = all_experiments()
    unknown = [n for n in names if n not in known and n not in GROUPS]
    if unknown:
        near = difflib.get_close_matches(unknown[0], [*known, *GROUPS], 1)
        raise Unknown("experiment", unknown[0], nearest=near[0] if near else None)
    return [e for e in known.values() if not names or e.name in names or e.group in names]
