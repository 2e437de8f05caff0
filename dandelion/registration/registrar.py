"""`Registrar`: a document, checked against a catalogue and the backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dandelion.blobs import Blobs
from dandelion.catalog import Batch, Catalog, CompositionRecord, ReducedView, Removal
from dandelion.documents import RegistrationDocument
from dandelion.driver import Checker
from dandelion.errors import Conflict, InvalidInput
from dandelion.function import CodeObject, Environment, FunctionSpec, Limits
from dandelion.registration.compositions import CompositionChecks
from dandelion.registration.declarations import LARGEST
from dandelion.registration.draft import RegistrationDraft, Target
from dandelion.registration.functions import FunctionReader, blobs_of

_NO_CAPS = Limits(**dict.fromkeys(Limits.__struct_fields__, LARGEST))


@dataclass(frozen=True, slots=True)
class Registrar:
    """Checks documents against a catalogue and the backends.

    Attributes:
        catalog: the registered records.
        platform: functions that the platform provides, by name; their names are reserved.
        checkers: checkers of code objects, by format.
        targets: returns the available devices that run a format and have architectures.
        caps: the operator's largest limits. Higher limits are refused; limits at their default are
            lowered to the cap.
        secrets: lists the names of the tenant's secrets.
        offered: backends that are installed and not started, by the functions that they provide.
        environment: gives the packages of code, which were prepared before.
    """

    catalog: Catalog
    platform: Mapping[str, FunctionSpec]
    checkers: Mapping[str, Checker]
    targets: Callable[[str], Sequence[Target]] = lambda format_name: ()
    caps: Limits = _NO_CAPS
    secrets: Callable[[], Sequence[str]] = lambda: ()
    offered: Mapping[str, str] = field(default_factory=dict)
    environment: Callable[[CodeObject], Environment | None] = lambda code: None

    def draft(
        self,
        document: RegistrationDocument,
        blobs: Blobs | None = None,
        replaced: Sequence[Removal] = (),
    ) -> RegistrationDraft:
        """Check a document except for the code of its functions.

        Args:
            document: the document.
            blobs: its blobs, if they are hashed already; see `blobs_of`.
            replaced: what is removed in the same step, see `Catalog.replace`.

        Raises:
            InvalidFunction, InvalidBlueprint: the declaration of a function; all its problems.
            InvalidComposition: texts; all problems of all texts.
            Conflict: a name is reserved, or a registered composition would break.
        """
        generation = self.catalog.generation
        reader = FunctionReader(
            self.catalog,
            self.checkers,
            self.targets,
            self.caps,
            self.secrets,
            self.environment,
            document.libraries,
            blobs if blobs is not None else blobs_of(document),
        )
        functions = [reader.record(f) for f in document.functions]
        batch = self._checked(document, functions, reader, replaced)
        return RegistrationDraft(
            document, reader.blobs, replaced, batch, generation, reader.codes, reader.preparations
        )

    def batch(self, draft: RegistrationDraft) -> Batch:
        """Return the batch of a draft whose code was checked.

        Raises:
            DandelionError: see `draft`, if the catalogue has changed since.
        """
        if self.catalog.generation == draft.generation:
            return draft.batch
        current = self.draft(draft.document, draft.blobs, draft.replaced)
        current.check_new_code(draft)
        return current.batch

    def composition(self, text: str) -> CompositionRecord:
        """Check the text of one composition that is invoked without being registered.

        Raises:
            InvalidComposition: all its problems.
            InvalidInput: the text does not have exactly one composition.
            TooLarge: the text is too long.
        """
        found = self._composition_checks().records({"composition": text}, {})
        if len(found) != 1:
            message = f"the text has {len(found)} compositions"
            raise InvalidInput("composition", message, "send exactly one")
        return found[0]

    def _checked(
        self,
        document: RegistrationDocument,
        functions: list[FunctionSpec],
        reader: FunctionReader,
        replaced: Sequence[Removal],
    ) -> Batch:
        checks, by_name = self._composition_checks(replaced), {f.name: f for f in functions}
        texts = {f"composition {i}": text for i, text in enumerate(document.compositions, start=1)}
        compositions = checks.records(texts, by_name)
        for name in [f.name for f in functions] + [c.name for c in compositions]:
            if name in self.platform:
                raise Conflict(
                    "function", name, "a function of this node has this name; rename yours"
                )
        checks.check_users(by_name, compositions, {one.name for one in replaced})
        return Batch(functions, compositions, list(reader.libraries.values()), reader.blobs)

    def check_removals(self, removals: Sequence[Removal]) -> None:
        """Refuse a removal after which a composition would not fit the functions that stay.

        Raises:
            Conflict: a registered composition would break.
        """
        self._composition_checks().check_removals(removals)

    def _composition_checks(self, replaced: Sequence[Removal] = ()) -> CompositionChecks:
        view = self.catalog.view()
        left = ReducedView(view, replaced) if replaced else view
        return CompositionChecks(left, self.platform, self.offered)
