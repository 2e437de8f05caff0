"""From documents to a checked batch: all checks of a registration.

A registration is checked as a whole, against itself and the catalogue, before anything is stored.
So whatever is registered can run: names resolve, sets agree, code loads, nothing is recursive, and
registered compositions still work.

Checking code may take long, since it may be compiled; code is then also compiled ahead for the
available devices. So a registration has three steps: `Registrar.draft` checks everything but the
code, `RegistrationDraft.look_into_code` checks the code without a lock, and `Registrar.batch`
returns the batch, which is the draft's if the catalogue has not changed since.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import networkx as nx
import numpy as np

from dandelion.blobs import Blobs
from dandelion.catalog import Batch, Catalog, CompositionRecord, LibraryRecord
from dandelion.data import FORMS, Bytes, SetSpec, checked
from dandelion.dataflow.excerpt import in_texts, with_excerpts
from dandelion.dataflow.graph import Composition, CompositionModule, Declaration
from dandelion.dataflow.language import parse
from dandelion.dataflow.printer import print_module
from dandelion.dataflow.validate import FunctionSignature, validate
from dandelion.documents import (
    CodeDocument,
    ContentLike,
    FunctionDocument,
    ItemContentLike,
    RegistrationDocument,
    content,
    item_content,
    set_spec,
)
from dandelion.driver import Checker
from dandelion.errors import (
    Conflict,
    DandelionError,
    InvalidBlueprint,
    InvalidComposition,
    InvalidFunction,
    InvalidInput,
    Problem,
    TooLarge,
    nearest,
)
from dandelion.function import (
    BATCH_CALLS,
    CodeObject,
    Digest,
    Environment,
    Function,
    FunctionSpec,
    Limits,
    StaticItem,
)

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_LIBRARY_NAME_LIMIT = 255
_LARGEST = 2**53
"""Limit of sizes in bytes, counts and seconds, which every codec can represent."""
_DIMENSIONS = 32
_BATCH_WAIT_S = 10.0
_NO_SECRETS = frozenset({"blueprint"})
"""Formats whose static sets may stay on a device that tenants share."""
_NO_CAPS = Limits(**dict.fromkeys(Limits.__struct_fields__, _LARGEST))
TEXT_LIMIT_BYTES = 128 * 1024
"""Limit of one composition text: some thousands of applications, a second or two of parsing."""


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
        batch: its records.
        generation: of the catalogue that it was checked against.
        codes: all code objects, loaded, with their checkers.
        preparations: code that can be compiled ahead.
    """

    document: RegistrationDocument
    blobs: Blobs
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


@dataclass(slots=True)
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
    _blobs: Blobs = field(default_factory=Blobs)
    _libraries: dict[str, LibraryRecord] = field(default_factory=dict)
    _codes: list[tuple[Checker, Function]] = field(default_factory=list)
    _preparations: list[Preparation] = field(default_factory=list)

    def draft(
        self, document: RegistrationDocument, blobs: Blobs | None = None
    ) -> RegistrationDraft:
        """Check a document except for the code of its functions.

        Args:
            document: the document.
            blobs: its blobs, if they are hashed already; see `blobs_of`.

        Raises:
            InvalidFunction, InvalidBlueprint: the declaration of a function; all its problems.
            InvalidComposition: texts; all problems of all texts.
            Conflict: a name is reserved, or a registered composition would break.
        """
        generation = self.catalog.generation
        blobs = blobs if blobs is not None else blobs_of(document)
        try:
            batch = self._checked(document, blobs)
            return RegistrationDraft(
                document, blobs, batch, generation, self._codes, self._preparations
            )
        finally:
            self._forget()

    def batch(self, draft: RegistrationDraft) -> Batch:
        """Return the batch of a draft whose code was checked.

        Raises:
            DandelionError: see `draft`, if the catalogue has changed since.
        """
        if self.catalog.generation == draft.generation:
            return draft.batch
        current = self.draft(draft.document, draft.blobs)
        current.check_new_code(draft)
        return current.batch

    def composition(self, text: str) -> CompositionRecord:
        """Check the text of one composition that is invoked without being registered.

        Raises:
            InvalidComposition: all its problems.
            InvalidInput: the text does not have exactly one composition.
            TooLarge: the text is too long.
        """
        found = self._compositions({"composition": text}, {})
        if len(found) != 1:
            message = f"the text has {len(found)} compositions"
            raise InvalidInput("composition", message, "send exactly one")
        return found[0]

    def _forget(self) -> None:
        """Release a document's contents, which may be large."""
        self._blobs = Blobs()
        self._codes = []
        self._preparations = []

    def _checked(self, document: RegistrationDocument, blobs: Blobs) -> Batch:
        self._blobs = blobs
        self._libraries = {name: self._library(name, c) for name, c in document.libraries.items()}
        functions = [self._function(f) for f in document.functions]
        names = [f.name for f in functions]
        texts = {f"composition {i}": text for i, text in enumerate(document.compositions, start=1)}
        compositions = self._compositions(texts, {f.name: f for f in functions})
        for name in [*names, *(c.name for c in compositions)]:
            if name in self.platform:
                raise Conflict(
                    "function", name, "a function of this node has this name; rename yours"
                )
        self._check_users({f.name: f for f in functions}, compositions)
        return Batch(functions, compositions, list(self._libraries.values()), self._blobs)

    # --- functions ----------------------------------------------------------------------------

    def _function(self, document: FunctionDocument) -> FunctionSpec:
        where = f"function {document.name}"
        problems = [
            *_declaration_problems(where, document),
            *_limit_problems(f"{where}: limits", document.limits, self.caps),
            *_batching_problems(f"{where}: batching", document),
            *self._secret_problems(f"{where}: secrets", document),
        ]
        if problems:
            raise InvalidFunction(tuple(problems))
        _check_static(where, document)
        static = {
            name: tuple(self._static(item, value) for item, value in items.items())
            for name, items in document.static.items()
        }
        spec = FunctionSpec(
            document.name,
            tuple(set_spec(s) for s in document.inputs),
            tuple(set_spec(s) for s in document.outputs),
            {name: items for name, items in static.items() if items},
            (),
            document.limits.within(self.caps),
            cache=document.cache,
            batching=document.batching,
            secrets=document.secrets,
        )
        codes = tuple(
            self._code(f"{where}: code[{i}]", spec, c) for i, c in enumerate(document.code)
        )
        return msgspec.structs.replace(spec, code=codes)

    def _secret_problems(self, where: str, document: FunctionDocument) -> Iterator[Problem]:
        if not document.secrets:
            return
        inputs = [s.name for s in map(_lenient, document.inputs) if s is not None]
        known = self.secrets()
        for set_name, name in document.secrets.items():
            if set_name not in inputs:
                yield Problem("unknown-set", f"'{set_name}' is not an input set", where,
                              nearest=nearest(set_name, inputs) or "")  # fmt: skip
            elif set_name in document.static:
                yield Problem("static-secret", f"set '{set_name}' is also static", where)
            elif name not in known:
                message = f"this tenant has no secret '{name}'"
                listed = ", ".join(known) or "a secret of the file that the setting 'secrets' names"
                yield Problem("unknown-secret", message, where, expected=listed,
                              nearest=nearest(name, known) or "")  # fmt: skip
        if document.cache:
            message = "results that depend on a secret are not kept"
            yield Problem("cached-secret", message, where, expected="cache = false")
        for code in document.code:
            if code.format in _NO_SECRETS:
                message = f"functions of the format '{code.format}' get no secrets"
                yield Problem("shared-secret", message, where)

    def _static(self, name: str, value: ItemContentLike) -> StaticItem:
        item = item_content(value).item(name)
        return StaticItem(name, self._blobs.add(item.bytes()), item.dtype, item.shape)

    def _code(self, where: str, spec: FunctionSpec, document: CodeDocument) -> CodeObject:
        checker = self.checkers.get(document.format)
        if checker is None:
            close = nearest(document.format, self.checkers) or ""
            known = ", ".join(sorted(self.checkers))
            raise InvalidFunction(
                (Problem("unknown-format", f"no backend runs '{document.format}'", where,
                         expected=f"one of {known}", nearest=close),)
            )  # fmt: skip
        main = content(document.main).bytes()
        files = {name: self._blob(value) for name, value in document.files.items()}
        for name in checker.references(main):
            if name not in files:
                files[name] = self._reference(where, name, files)
        code = CodeObject(
            document.format,
            self._blob(document.main),
            files,
            document.options,
            document.packages,
            document.wheels,
        )
        loaded = {name: self._read(digest) for name, digest in files.items()}
        function = Function(spec, code, main, loaded, environment=self.environment(code))
        self._codes.append((checker, function))
        targets = tuple(self.targets(document.format))
        if targets:
            self._preparations.append(Preparation(function, targets))
        return code

    def _reference(self, where: str, name: str, files: Mapping[str, Digest]) -> Digest:
        """Find a file that code refers to in the libraries."""
        library = self._libraries.get(name) or self.catalog.find_library(name)
        if library is not None:
            return library.digest
        known = [*files, *self._libraries, *self._library_names()]
        raise InvalidFunction(
            (Problem("unknown-file", f"the code refers to '{name}', which is neither among its "
                     "files nor a library", where, nearest=nearest(name, known) or ""),)
        )  # fmt: skip

    def _library_names(self) -> Iterator[str]:
        return (r.name for r in self.catalog.records() if isinstance(r, LibraryRecord))

    def _library(self, name: str, value: ContentLike) -> LibraryRecord:
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            size = 0
        if not 0 < size <= _LIBRARY_NAME_LIMIT or "\0" in name:
            message = "a library's name must have 1 to 255 bytes of UTF-8 without NUL"
            raise InvalidInput(f"libraries.{name!r}", message)
        data = content(value).bytes()
        return LibraryRecord(name, self._blob(value), len(data))

    def _blob(self, value: ContentLike) -> Digest:
        return self._blobs.add(content(value).bytes())

    def _read(self, digest: Digest) -> Bytes:
        return self._blobs[digest] if digest in self._blobs else self.catalog.blob(digest)

    # --- compositions -------------------------------------------------------------------------

    def _compositions(
        self, texts: Mapping[str, str], functions: Mapping[str, FunctionSpec]
    ) -> list[CompositionRecord]:
        for name, text in texts.items():
            if len(text) > TEXT_LIMIT_BYTES or len(text.encode()) > TEXT_LIMIT_BYTES:
                raise TooLarge(name, len(text), TEXT_LIMIT_BYTES)
        modules = [parse(text, name) for name, text in texts.items()]
        module = CompositionModule(  # texts may share nested compositions: equal records count once
            tuple(dict.fromkeys(d for m in modules for d in m.declarations)),
            tuple(dict.fromkeys(c for m in modules for c in m.compositions)),
        )
        known = self._known(functions)
        names = [*functions, *self.platform, *(r.name for r in self.catalog.records())]
        problems = validate(module, known, names=names)
        if not problems:
            signatures = {
                c.name: FunctionSignature(c.name, c.inputs, c.outputs) for c in module.compositions
            }

            def find(name: str) -> FunctionSignature | None:
                return signatures.get(name) or known(name)

            problems = [
                *self._static_problems(module, functions),
                *self._recursion_problems(module),
            ]
        if problems:
            problems = [self._with_backend(problem) for problem in problems]
            raise InvalidComposition(tuple(with_excerpts(problems, in_texts(texts))))
        return [_record(module, c, find) for c in module.compositions]

    def _with_backend(self, problem: Problem) -> Problem:
        """Say which backend has a function that is unknown, if one has."""
        if problem.code != "unknown-function":
            return problem
        for name, backend in self.offered.items():
            if f"'{name}'" in problem.message:
                message = f"'{name}' is a function of the backend '{backend}'"
                message += ", which is not started here; add it to the node's setting 'backends'"
                return msgspec.structs.replace(problem, message=message, nearest="")
        return problem

    def _known(
        self, functions: Mapping[str, FunctionSpec]
    ) -> Callable[[str], FunctionSignature | None]:
        def known(name: str) -> FunctionSignature | None:
            found = functions.get(name) or self._find(name)
            return None if found is None else signature_of(found)

        return known

    def _find(self, name: str) -> FunctionSpec | CompositionRecord | None:
        return self.platform.get(name) or self.catalog.find_callable(name)

    def _static_problems(
        self, module: CompositionModule, functions: Mapping[str, FunctionSpec]
    ) -> Iterator[Problem]:
        for composition in module.compositions:
            for application in composition.applications:
                callee = functions.get(application.function) or self._find(application.function)
                static = callee.fixed if isinstance(callee, FunctionSpec) else ()
                for binding in application.bindings:
                    if binding.parameter in static:
                        yield Problem(
                            "static-set",
                            f"set '{binding.parameter}' of function '{application.function}' is "
                            "fixed at registration and cannot be bound",
                            str(binding.place),
                            binding.place.line,
                            binding.place.column,
                        )

    def _recursion_problems(self, module: CompositionModule) -> Iterator[Problem]:
        graph: nx.DiGraph[str] = nx.DiGraph()
        for record in self.catalog.records():
            if isinstance(record, CompositionRecord):
                graph.add_edges_from((record.name, used) for used in record.uses)
        for composition in module.compositions:
            if composition.name in graph:
                graph.remove_edges_from(list(graph.out_edges(composition.name)))
            graph.add_edges_from((composition.name, a.function) for a in composition.applications)
        for composition in module.compositions:
            if composition.name in graph and (loop := _loop_through(graph, composition.name)):
                yield Problem(
                    "recursion",
                    f"composition '{composition.name}' would apply itself: {' -> '.join(loop)}",
                    str(composition.place),
                    composition.place.line,
                    composition.place.column,
                )

    def _check_users(
        self, functions: Mapping[str, FunctionSpec], compositions: list[CompositionRecord]
    ) -> None:
        """Refuse new versions whose sets no longer fit the compositions that use them."""
        new: dict[str, FunctionSpec | CompositionRecord] = {**functions}
        new.update({c.name: c for c in compositions})
        replaced = {c.name for c in compositions}

        def known(name: str) -> FunctionSignature | None:
            found = new.get(name) or self._find(name)
            return None if found is None else signature_of(found)

        for record in self.catalog.records():
            if not isinstance(record, CompositionRecord) or record.name in replaced:
                continue
            if new.keys().isdisjoint(record.uses):
                continue
            problems = validate(parse(record.text, record.name), known)
            if problems:
                used = sorted(new.keys() & set(record.uses))
                message = f"the new version of {', '.join(used)} breaks it; register both together"
                raise Conflict("composition", record.name, f"{message}: {problems[0]}")


def signature_of(found: FunctionSpec | CompositionRecord) -> FunctionSignature:
    """Return the names of the sets of a function or composition."""
    if isinstance(found, FunctionSpec):
        return FunctionSignature(found.name, found.input_names, found.output_names)
    return FunctionSignature(found.name, found.inputs, found.outputs)


def _record(
    module: CompositionModule,
    composition: Composition,
    find: Callable[[str], FunctionSignature | None],
) -> CompositionRecord:
    uses = tuple(dict.fromkeys(a.function for a in composition.applications))
    signatures = [s for s in map(find, uses) if s is not None]
    declarations = tuple(Declaration(s.name, s.inputs, s.outputs) for s in signatures)
    text = print_module(CompositionModule(declarations, (composition,)))
    return CompositionRecord(composition.name, text, composition.inputs, composition.outputs, uses)


def _loop_through(graph: nx.DiGraph[str], name: str) -> list[str]:
    for successor in graph.successors(name):
        if nx.has_path(graph, successor, name):
            return [name, *nx.shortest_path(graph, successor, name)]
    return []


def _declaration_problems(where: str, document: FunctionDocument) -> Iterator[Problem]:
    if not _IDENTIFIER.match(document.name):
        yield Problem("bad-name", f"'{document.name}' is not a valid identifier", where,
                      expected="a letter or _, then letters, digits, _")  # fmt: skip
    for role, sets in (("inputs", document.inputs), ("outputs", document.outputs)):
        seen: set[str] = set()
        for index, given in enumerate(sets):
            place = f"{where}: {role}[{index}]"
            try:
                spec = set_spec(given)
            except DandelionError as error:
                yield Problem("bad-set", str(error), place)
                continue
            yield from _set_problems(place, spec, seen)
            yield from _minimum_problems(place, role, spec)
            seen.add(spec.name)
    inputs = [s.name for s in map(_lenient, document.inputs) if s is not None]
    for name, items in document.static.items():
        if name not in inputs:
            yield Problem("unknown-set", f"static set '{name}' is not an input set",
                          f"{where}: static", nearest=nearest(name, inputs) or "")  # fmt: skip
        elif not items:
            yield Problem("empty-set", f"static set '{name}' has no items", f"{where}: static")
    if not document.code:
        yield Problem("no-code", "there is no code object", f"{where}: code")


def _limit_problems(where: str, limits: Limits, caps: Limits) -> Iterator[Problem]:
    for name, value in msgspec.structs.asdict(limits).items():
        cap = getattr(caps, name)
        if not 0 < value <= _LARGEST:  # also false for infinity and not-a-number
            yield Problem("bad-limit", f"{name} is {value}", where,
                          expected=f"> 0, at most {_LARGEST}")  # fmt: skip
        elif value > cap and value != getattr(Limits(), name):
            yield Problem("over-cap", f"{name} is {value}", where,
                          expected=f"at most {cap}, the node's setting max_{name}")  # fmt: skip


def _batching_problems(where: str, document: FunctionDocument) -> Iterator[Problem]:
    batching = document.batching
    if batching is None:
        return
    inputs = {s.name: s for s in map(_lenient, document.inputs) if s is not None}
    outputs = [s for s in map(_lenient, document.outputs) if s is not None]
    if not batching.inputs:
        yield Problem("no-set", "no input set is joined", where)
    if not document.outputs:
        yield Problem("no-set", "the function has no output set to be divided", where)
    for name in batching.inputs:
        if name not in inputs:
            yield Problem("unknown-set", f"'{name}' is not an input set", where,
                          nearest=nearest(name, inputs) or "")  # fmt: skip
        elif name in document.static:
            yield Problem("static-set", f"'{name}' is fixed at registration", where)
    joined = [inputs[name] for name in dict.fromkeys(batching.inputs) if name in inputs]
    for spec in [*joined, *outputs]:
        if spec.shape is not None and spec.shape[:1] != (-1,):
            shape = "[" + ", ".join("?" if n == -1 else str(n) for n in spec.shape) + "]"
            yield Problem("bad-shape", f"set '{spec.name}' is declared as {shape}", where,
                          expected="an open first dimension: [?, ...]")  # fmt: skip
        elif spec.shape is None and batching.rows is not None and spec in joined:
            yield Problem("bad-shape", f"set '{spec.name}' declares no shape", where,
                          expected="a shape, such as [?, 3], since rows are counted")  # fmt: skip
    if batching.rows is not None and batching.rows < 1:
        yield Problem("bad-limit", f"rows is {batching.rows}", where,
                      expected="at least 1")  # fmt: skip
    if not 2 <= batching.calls <= BATCH_CALLS:
        yield Problem("bad-limit", f"calls is {batching.calls}", where,
                      expected=f"2 to {BATCH_CALLS}")  # fmt: skip
    if not 0 <= batching.wait_s <= _BATCH_WAIT_S:  # also false for not-a-number
        yield Problem("bad-limit", f"wait_s is {batching.wait_s}", where,
                      expected=f"0 to {_BATCH_WAIT_S} seconds")  # fmt: skip


def blobs_of(document: RegistrationDocument) -> Blobs:
    """Hash all blobs of a document. Slow if they are large; has no side effects."""
    found: list[ContentLike | ItemContentLike] = [*document.libraries.values()]
    for function in document.functions:
        found += (value for items in function.static.values() for value in items.values())
        for code in function.code:
            found += [code.main, *code.files.values()]
    blobs = Blobs()
    blobs.add_all(content(value).bytes() for value in found)
    return blobs


def _check_static(where: str, document: FunctionDocument) -> None:
    """Check static items against the data model and the declaration of their set."""
    for spec in map(set_spec, document.inputs):
        fixed = document.static.get(spec.name, {})
        try:
            checked(spec.name, [item_content(v).item(n) for n, v in fixed.items()], spec)
        except InvalidInput as error:
            problem = Problem("bad-static", str(error), f"{where}: static")
            raise InvalidFunction((problem,)) from None


def _lenient(given: SetSpec | str) -> SetSpec | None:
    try:
        return set_spec(given)
    except DandelionError:
        return None


def _minimum_problems(where: str, role: str, spec: SetSpec) -> Iterator[Problem]:
    if role == "outputs" and spec.min_bytes:
        message = f"output set '{spec.name}' has a minimum; only input sets can have one"
        yield Problem("bad-minimum", message, where)
    elif spec.min_bytes < 0:
        message = f"min_bytes of set '{spec.name}' is {spec.min_bytes}"
        yield Problem("bad-minimum", message, where, expected=">= 0")


def _set_problems(where: str, spec: SetSpec, seen: set[str]) -> Iterator[Problem]:
    if not _IDENTIFIER.match(spec.name):
        yield Problem("bad-name", f"'{spec.name}' is not a valid identifier", where)
    if spec.name in seen:
        yield Problem("duplicate-set", f"set '{spec.name}' is declared twice", where)
    if spec.form not in FORMS:
        yield Problem("bad-form", f"'{spec.form:.40}' is not a form of values", where,
                      expected=", ".join(FORMS[1:]))  # fmt: skip
    if spec.dtype is None:
        if spec.shape is not None:
            yield Problem("bad-shape", "a shape needs a dtype", where)
        return
    try:
        dtype = np.dtype(spec.dtype)
    except (TypeError, ValueError, SyntaxError):  # numpy parses names with a grammar of its own
        yield Problem("bad-dtype", f"'{spec.dtype}' is not a numpy type", where,
                      expected="int64, float32, ...")  # fmt: skip
        return
    if dtype.kind not in "biufc" or not dtype.isnative:
        yield Problem("bad-dtype", f"'{spec.dtype}' is not a native number type", where)
    sizes = spec.shape or ()
    if any(n == 0 or n < -1 for n in sizes) or sum(n == -1 for n in sizes) > 1:
        yield Problem("bad-shape", f"shape {list(sizes)}", where,
                      expected="positive sizes, at most one open (-1)")  # fmt: skip
    elif len(sizes) > _DIMENSIONS or abs(math.prod(sizes)) * dtype.itemsize > _LARGEST:
        yield Problem("bad-shape", "the shape is too large", where,
                      expected=f"at most {_DIMENSIONS} dimensions, {_LARGEST} bytes")  # fmt: skip
