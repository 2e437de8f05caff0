"""Keys and values by the Redis protocol: `KvGet`, `KvSet`, `KvAdd`, `KvDelete`, `KvIncrement`.

Files: `settings` (the operator's options), `connections` (bounded reading over the library redis),
`engine` (many items in one round trip), `replies` (what an answer means for the item). All else is
shared, see `dandelion.backends.stores`.
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
    store_function("kv", "get", "KvGet", ["requests"], ["values", "missing"], idempotent=True),
)
SET = Operation(
    "set",
    store_function("kv", "set", "KvSet", ["values", "to"], ["written"], idempotent=True),
    options=("ttl",),
    changes=True,
)
ADD = Operation(
    "add",
    store_function(
        "kv", "add", "KvAdd", ["values", "to"], ["written", "present"], idempotent=False
    ),
    options=("ttl",),
    changes=True,
)
DELETE = Operation(
    "delete",
    store_function("kv", "delete", "KvDelete", ["requests"], ["deleted", "missing"], True),
    changes=True,
)
INCREMENT = Operation(
    "increment",
    store_function("kv", "increment", "KvIncrement", ["requests"], ["values"], idempotent=False),
    options=("by",),
    changes=True,
)
_ALL = (GET, SET, ADD, DELETE, INCREMENT)


class KvDriver(StoresDriver):
    """Performs functions of the format ``kv`` on the node's event loop."""

    name: ClassVar[str] = "kv"
    formats: ClassVar[frozenset[str]] = frozenset({"kv"})
    library: ClassVar[str] = "redis"
    first_option: ClassVar[str] = "address"
    description: ClassVar[str] = "key-value stores by the Redis protocol over the node's event loop"
    operations: ClassVar[Mapping[str, Operation]] = by_name(*_ALL)
    platform_functions: ClassVar[tuple[FunctionSpec, ...]] = tuple(o.spec for o in _ALL)

    def read_options(self, options: Mapping[str, str]) -> StoresSettings[Any]:
        return read_settings(options)

    def make_engine(self, settings: StoresSettings[Any]) -> AsyncEngine:
        from .engine import KvEngine

        return KvEngine(settings, self.operations)


def driver(options: Mapping[str, str] | None = None) -> KvDriver:
    """Make the driver of this backend."""
    return KvDriver(options)
