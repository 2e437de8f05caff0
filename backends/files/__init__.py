"""Files in folders that the operator allows: `FileRead`, `FileWrite`, `FileList`.

Files: `settings` (the operator's options), `folder` (resolving paths, reading, writing), `tree`
(listing), `engine` (calls of these in threads). All else is shared, see
`dandelion.backends.stores`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dandelion.driver import AsyncEngine
from dandelion.function import FunctionSpec

from ..stores.driver import StoresDriver, by_name, store_function
from ..stores.jobs import Operation
from ..stores.settings import StoresSettings
from .settings import read_settings

READ = Operation(
    "read",
    store_function("files", "read", "FileRead", ["requests"], ["contents", "missing"], True),
    options=("range",),
)
WRITE = Operation(
    "write",
    store_function("files", "write", "FileWrite", ["contents", "to"], ["written"], True),
    changes=True,
)
LIST = Operation(
    "list",
    store_function("files", "list", "FileList", ["requests"], ["files", "details", "rest"], True),
    options=("limit", "after"),
    lists=True,
)
_ALL = (READ, WRITE, LIST)


class FilesDriver(StoresDriver):
    """Performs functions of the format ``files`` on the node's event loop."""

    name: ClassVar[str] = "files"
    formats: ClassVar[frozenset[str]] = frozenset({"files"})
    first_option: ClassVar[str] = "folder"
    description: ClassVar[str] = "folders of this machine"
    operations: ClassVar[Mapping[str, Operation]] = by_name(*_ALL)
    platform_functions: ClassVar[tuple[FunctionSpec, ...]] = tuple(o.spec for o in _ALL)

    def read_options(self, options: Mapping[str, str]) -> StoresSettings[Any]:
        return read_settings(options)

    def make_engine(self, settings: StoresSettings[Any]) -> AsyncEngine:
        from .engine import FilesEngine

        return FilesEngine(settings, self.operations)


def driver(options: Mapping[str, str] | None = None) -> FilesDriver:
    """Make the driver of this backend."""
    return FilesDriver(options)
