"""Objects in S3-compatible stores: the platform functions `S3Get`, `S3Put`, `S3List`, `S3Delete`.

Files: `settings` (the operator's options), `engine` (requests over the library obstore), `listing`
(keys that the library changes), `errors` (what its exceptions mean), `opening` (clients),
`log_store` (the log of a cluster). All else is shared, see `dandelion.backends.stores`.
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

GET = Operation(
    "get",
    store_function("s3", "get", "S3Get", ["requests"], ["objects", "missing"], idempotent=True),
    options=("range",),
)
PUT = Operation(
    "put",
    store_function("s3", "put", "S3Put", ["contents", "to"], ["written"], idempotent=True),
    changes=True,
)
LIST = Operation(
    "list",
    store_function(
        "s3", "list", "S3List", ["requests"], ["objects", "details", "rest"], idempotent=True
    ),
    options=("limit", "after"),
    lists=True,
)
DELETE = Operation(
    "delete",
    store_function("s3", "delete", "S3Delete", ["requests"], ["deleted"], idempotent=True),
    changes=True,
)


class S3Driver(StoresDriver):
    """Performs functions of the format ``s3`` on the node's event loop."""

    name: ClassVar[str] = "s3"
    formats: ClassVar[frozenset[str]] = frozenset({"s3"})
    library: ClassVar[str] = "obstore"
    first_option: ClassVar[str] = "bucket"
    description: ClassVar[str] = "S3-compatible stores over the node's event loop"
    operations: ClassVar[Mapping[str, Operation]] = by_name(GET, PUT, LIST, DELETE)
    platform_functions: ClassVar[tuple[FunctionSpec, ...]] = tuple(
        operation.spec for operation in (GET, PUT, LIST, DELETE)
    )

    def read_options(self, options: Mapping[str, str]) -> StoresSettings[Any]:
        return read_settings(options)

    def make_engine(self, settings: StoresSettings[Any]) -> AsyncEngine:
        from .engine import S3Engine

        return S3Engine(settings, self.operations)


def driver(options: Mapping[str, str] | None = None) -> S3Driver:
    """Make the driver of this backend."""
    return S3Driver(options)
