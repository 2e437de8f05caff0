"""Python packages of the functions of a node: at registration, and when a function is loaded."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from dandelion.catalog import Catalog
from dandelion.documents import CodeDocument, RegistrationDocument
from dandelion.errors import (
    Cancelled,
    DandelionError,
    InvalidFunction,
    InvalidInput,
    Overloaded,
    Problem,
)
from dandelion.function import CodeObject, Digest, Environment, FunctionSpec
from dandelion.packages import Environments, PackageSource
from dandelion.packages.records import PrepareLimits
from dandelion.settings import Settings

PreparedPackages = tuple[tuple[str, ...], dict[str, Digest]]
_logger = logging.getLogger("dandelion.packages")


class NodePackages:
    """Prepares the packages of functions. Safe from any thread.

    Args:
        settings: of the node.
        catalog: of all tenants; says which packages are in use.
        takes_packages: tells whether code objects of a format may name packages.

    Raises:
        InvalidInput: see `package_source`.
    """

    def __init__(
        self, settings: Settings, catalog: Catalog, takes_packages: Callable[[str], bool]
    ) -> None:
        self._catalog = catalog
        self._takes_packages = takes_packages
        limits = PrepareLimits(disk_bytes=settings.packages_bytes)
        self._environments = Environments(
            _cache_folder(settings), package_source(settings), limits, self._used
        )

    @contextlib.contextmanager
    def prepared(self, document: RegistrationDocument) -> Iterator[RegistrationDocument]:
        """Prepare the packages of all functions; yields the document with the chosen wheels.

        Nothing of them is removed before the end of the context; afterwards they stay as long as
        the catalogue has the functions.

        Raises:
            InvalidFunction, BackendUnavailable, DiskFull, EnvironmentsFull: see
                `Environments.prepare`.
        """
        with contextlib.ExitStack() as pinned:
            yield self._completed(
                document, lambda *given: pinned.enter_context(self._environments.prepare(*given))
            )

    def resolved(self, document: RegistrationDocument) -> RegistrationDocument:
        """Complete a document as `prepared`, but without preparing anything."""
        return self._completed(document, self._environments.resolve)

    def planned(self, code: CodeObject, tenant: str) -> Environment | None:
        """Return the environment of code that is being registered."""
        folder = self._environments.place(code)
        return Environment(folder, tenant) if folder else None

    def environment(self, code: CodeObject, tenant: str) -> Environment | None:
        """Return the environment of registered code; it is made again if it is gone.

        Raises:
            InvalidFunction, BackendUnavailable, DiskFull, EnvironmentsFull: that is not possible.
        """
        folder = self._environments.site(code)
        return Environment(folder, tenant) if folder else None

    def restore(self) -> None:
        """Prepare what registered functions need and is gone, so that calls need not."""
        tried = set()
        for code in self._used():
            place = self._environments.place(code)
            if place in tried:
                continue
            tried.add(place)
            try:
                self._environments.site(code)
            except Cancelled:
                return
            except Overloaded:  # by calls, which prepare what they need
                continue
            except DandelionError as error:
                _logger.warning("packages %s: %s", ", ".join(code.packages), error)

    def release_unused(self) -> None:
        """Take note that functions were removed."""
        self._environments.release_unused()

    def stop(self) -> None:
        """End all preparations, since the node closes."""
        self._environments.stop()

    def close(self) -> None:
        """Let other nodes remove what this one used. May be called twice."""
        self._environments.close()

    def _completed(
        self,
        document: RegistrationDocument,
        choose: Callable[[Iterable[str], Mapping[str, Digest], str], PreparedPackages],
    ) -> RegistrationDocument:
        if not any(c.packages or c.wheels for f in document.functions for c in f.code):
            return document
        chosen: dict[tuple[object, ...], PreparedPackages] = {}

        def complete(where: str, code: CodeDocument) -> CodeDocument:
            if not code.packages and not code.wheels:
                return code
            self._check(where, code)
            key = (code.packages, *sorted(code.wheels.items()))
            if key not in chosen:
                chosen[key] = choose(code.packages, code.wheels, f"{where}.packages")
            packages, wheels = chosen[key]
            return msgspec.structs.replace(code, packages=packages, wheels=wheels)

        functions = tuple(
            msgspec.structs.replace(
                function,
                code=tuple(
                    complete(f"function {function.name}: code[{i}]", code)
                    for i, code in enumerate(function.code)
                ),
            )
            for function in document.functions
        )
        return msgspec.structs.replace(document, functions=functions)

    def _check(self, where: str, code: CodeDocument) -> None:
        if not self._takes_packages(code.format):
            message = f"functions of the format '{code.format}' have no Python packages"
            raise InvalidFunction((Problem("no-packages", message, where),))
        if not code.packages:
            message = "wheels without requirements"
            problem = Problem("bad-wheel", message, where, expected="packages beside wheels")
            raise InvalidFunction((problem,))

    def _used(self) -> Iterator[CodeObject]:
        """Yield all code that has packages, of all tenants and versions."""
        for record in self._catalog.records():
            if not isinstance(record, FunctionSpec):
                continue
            for version in self._catalog.versions(FunctionSpec, record.name):
                found = self._catalog.find_callable(record.name, version)
                if isinstance(found, FunctionSpec):
                    yield from (code for code in found.code if code.packages)


def package_source(settings: Settings) -> PackageSource:
    """Read where packages come from.

    Raises:
        InvalidInput: the index is not an address.
    """
    folder, index = settings.packages_folder, settings.packages_index
    if index and (urlsplit(index).scheme not in ("https", "http") or not urlsplit(index).hostname):
        hint = "write https://HOST/simple"
        raise InvalidInput("packages_index", "it is not the address of an index", hint)
    return PackageSource(str(Path(folder).expanduser().resolve()) if folder else "", index)


def _cache_folder(settings: Settings) -> Path:
    if settings.packages_cache:
        return Path(settings.packages_cache).expanduser().absolute()
    scheme, _, path = settings.catalog.partition(":")
    if scheme == "sqlite" and path:
        return Path(path).expanduser().absolute() / "packages"
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches).absolute() / "dandelion" / "packages"
