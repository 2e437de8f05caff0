"""Checking the code of a document, and compiling it ahead for the devices that are up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dandelion.blobs import Blobs
from dandelion.catalog import Batch, Removal
from dandelion.documents import RegistrationDocument
from dandelion.driver import Checker
from dandelion.errors import InvalidBlueprint, Problem
from dandelion.function import Function


@dataclass(frozen=True, slots=True)
class Target:
    """Available devices of one kind: the checker that prepares their code, `Capacity.archs`."""

    checker: Checker
    archs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Preparation:
    """Checked code, and the devices that it may run on."""

    function: Function
    targets: tuple[Target, ...]

    def run(self) -> None:
        """Compile the code for the devices that it fits.

        Raises:
            InvalidBlueprint: it fits none of them.
            InvalidFunction: it does not compile for one.
        """
        unfit: list[Problem] = []
        misses = 0
        for target in self.targets:
            try:
                target.checker.prepare(self.function, target.archs)
            except InvalidBlueprint as error:
                if any(problem.code != "no-code" for problem in error.problems):
                    raise
                unfit += error.problems
                misses += 1
        if misses and misses == len(self.targets):
            raise InvalidBlueprint(tuple(dict.fromkeys(unfit)))


@dataclass(frozen=True, slots=True)
class RegistrationDraft:
    """A document that was checked except for the code of its functions.

    Attributes:
        document: the document.
        blobs: its blobs.
        replaced: what is removed in the same step.
        batch: its records.
        generation: of the catalogue that it was checked against.
        codes: all code objects, loaded, with their checkers.
        preparations: code that can be compiled ahead.
    """

    document: RegistrationDocument
    blobs: Blobs
    replaced: Sequence[Removal]
    batch: Batch
    generation: int
    codes: list[tuple[Checker, Function]]
    preparations: list[Preparation]

    def look_into_code(self) -> None:
        """Check the code, and compile it ahead where possible. Slow; needs no lock.

        Raises:
            InvalidFunction, InvalidBlueprint: the code is not valid.
        """
        self._check(self.codes)
        for preparation in self.preparations:
            preparation.run()

    def check_new_code(self, earlier: RegistrationDraft) -> None:
        """Check code that an earlier draft of the same document lacks, since libraries changed.

        Raises:
            InvalidFunction, InvalidBlueprint: the code is not valid.
        """
        known = {function.identity for _, function in earlier.codes}
        self._check([(c, f) for c, f in self.codes if f.identity not in known])

    def _check(self, codes: Iterable[tuple[Checker, Function]]) -> None:
        """Check the functions of each checker together."""
        functions: dict[Checker, list[Function]] = {}
        for checker, function in codes:
            functions.setdefault(checker, []).append(function)
        for checker, found in functions.items():
            checker.check(found)
