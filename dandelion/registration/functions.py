"""Functions and libraries of one document become records; their contents become blobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from dandelion.blobs import Blobs
from dandelion.catalog import Catalog, LibraryRecord
from dandelion.data import Bytes
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
from dandelion.errors import InvalidFunction, InvalidInput, Problem, nearest
from dandelion.function import (
    CodeObject,
    Digest,
    Environment,
    Function,
    FunctionSpec,
    Limits,
    StaticItem,
)
from dandelion.registration.declarations import check_declaration
from dandelion.registration.draft import Preparation, Target

_LIBRARY_NAME_LIMIT = 255


class FunctionReader:
    """Reads the functions of one document, which may refer to its libraries.

    Args:
        catalog, checkers, targets, caps, secrets, environment: see `Registrar`.
        libraries: of the document.
        blobs: of the document, as far as they are hashed; gets the others.

    Attributes:
        blobs: all blobs.
        libraries: the records of the libraries.
        codes: all code objects, loaded, with their checkers.
        preparations: code that can be compiled ahead.

    Raises:
        InvalidInput: the name of a library cannot be one.
    """

    def __init__(
        self,
        catalog: Catalog,
        checkers: Mapping[str, Checker],
        targets: Callable[[str], Sequence[Target]],
        caps: Limits,
        secrets: Callable[[], Sequence[str]],
        environment: Callable[[CodeObject], Environment | None],
        libraries: Mapping[str, ContentLike],
        blobs: Blobs,
    ) -> None:
        self._catalog = catalog
        self._checkers = checkers
        self._targets = targets
        self._caps = caps
        self._secrets = secrets
        self._environment = environment
        self.blobs = blobs
        self.libraries = {name: self._library(name, value) for name, value in libraries.items()}
        self.codes: list[tuple[Checker, Function]] = []
        self.preparations: list[Preparation] = []

    def record(self, document: FunctionDocument) -> FunctionSpec:
        """Make the record of a function; its code is loaded and not looked into.

        Raises:
            InvalidFunction, InvalidBlueprint: all mistakes of the declaration.
        """
        where = f"function {document.name}"
        check_declaration(where, document, self._caps, self._secrets)
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
            document.limits.within(self._caps),
            cache=document.cache,
            batching=document.batching,
            secrets=document.secrets,
        )
        codes = tuple(
            self._code(f"{where}: code[{i}]", spec, c) for i, c in enumerate(document.code)
        )
        return msgspec.structs.replace(spec, code=codes)

    def _static(self, name: str, value: ItemContentLike) -> StaticItem:
        item = item_content(value).item(name)
        return StaticItem(name, self.blobs.add(item.bytes()), item.dtype, item.shape)

    def _code(self, where: str, spec: FunctionSpec, document: CodeDocument) -> CodeObject:
        checker = self._checkers.get(document.format)
        if checker is None:
            close = nearest(document.format, self._checkers) or ""
            known = ", ".join(sorted(self._checkers))
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
        function = Function(spec, code, main, loaded, environment=self._environment(code))
        self.codes.append((checker, function))
        targets = tuple(self._targets(document.format))
        if targets:
            self.preparations.append(Preparation(function, targets))
        return code

    def _reference(self, where: str, name: str, files: Mapping[str, Digest]) -> Digest:
        """Find a file that code refers to in the libraries."""
        library = self.libraries.get(name) or self._catalog.find_library(name)
        if library is not None:
            return library.digest
        known = [*files, *self.libraries, *self._library_names()]
        raise InvalidFunction(
            (Problem("unknown-file", f"the code refers to '{name}', which is neither among its "
                     "files nor a library", where, nearest=nearest(name, known) or ""),)
        )  # fmt: skip

    def _library_names(self) -> Iterator[str]:
        return (r.name for r in self._catalog.records() if isinstance(r, LibraryRecord))

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
        return self.blobs.add(content(value).bytes())

    def _read(self, digest: Digest) -> Bytes:
        return self.blobs[digest] if digest in self.blobs else self._catalog.blob(digest)


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
