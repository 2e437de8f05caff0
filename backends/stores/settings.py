"""The operator's settings of stores.

Options are text, ``store.NAME.OPTION`` for those of one store, and ``OPTION`` for those of the
backend. A backend declares its own by subclasses of the two records here; the types of their fields
decide what values are valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from dandelion.errors import InvalidInput, nearest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
ALL_TENANTS = "*"
TENANT_FIELD = "{tenant}"

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
CountOrNone = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]

_WORDS = {"yes": True, "no": False}
_SECRET_WORDS = ("secret", "password", "token", "key")


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one store. They name secrets, and have none.

    Attributes:
        tenants: that may use it; ``*`` is all.
        read_only: nothing is written or deleted.
        prefix: in front of every path; ``{tenant}`` in it stands for the name of the tenant.
        concurrency: requests of all calls together that are under way.
    """

    tenants: tuple[str, ...] = ("default",)
    read_only: bool = False
    prefix: str = ""
    concurrency: Count = 32

    def visible_to(self, tenant: str) -> bool:
        """Tell whether a tenant may use the store."""
        return ALL_TENANTS in self.tenants or tenant in self.tenants

    def prefix_of(self, tenant: str) -> str:
        """Return the prefix of a tenant's paths."""
        return self.prefix.replace(TENANT_FIELD, tenant)


S = TypeVar("S", bound=StoreSettings)


class StoresSettings(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """Settings of a backend of stores.

    Attributes:
        stores: by name.
        concurrency: requests of all stores together that are under way, for each engine.
        connect_s: seconds for a connection.
        idle_s: seconds without a byte from a store, after which a request has failed.
        retries: how often an idempotent request is repeated after a transient failure.
    """

    stores: dict[str, S]
    concurrency: Count = 64
    connect_s: Seconds = 10.0
    idle_s: Seconds = 30.0
    retries: CountOrNone = 2


def read_stores(
    backend: str, options: Mapping[str, str], settings_type: type[StoresSettings[S]], store: type[S]
) -> StoresSettings[S]:
    """Read the options of a backend of stores.

    Raises:
        InvalidInput: an option is unknown or has a bad value.
    """
    own: dict[str, Any] = {}
    stores: dict[str, dict[str, Any]] = {}
    known = [f.name for f in msgspec.structs.fields(settings_type) if f.name != "stores"]
    of_store = [f.name for f in msgspec.structs.fields(store)]
    for option, text in options.items():
        where = f"options.{backend}.{option}"
        head, _, rest = option.partition(".")
        if head != "store":
            _check_known(where, option, [*known, "store.NAME.OPTION"])
            own[option] = text
            continue
        name, _, field = rest.partition(".")
        if not NAME.fullmatch(name):
            hint = "write store.NAME.OPTION; a name has letters, digits, '_' and '-'"
            raise InvalidInput(where, f"'{name[:80]}' is not a name of a store", hint)
        _check_known(where, field, of_store)
        stores.setdefault(name, {})[field] = _value(field, text)
    made = {name: _made(f"options.{backend}.store.{name}", store, v) for name, v in stores.items()}
    settings: StoresSettings[S] = _made(f"options.{backend}", settings_type, {**own, "stores": {}})
    return msgspec.structs.replace(settings, stores=made)


def check_folder_prefix(where: str, prefix: str) -> None:
    """Refuse a prefix that does not end where a folder does: it would be one of other paths too.

    Raises:
        InvalidInput: it is not valid.
    """
    *parts, last = prefix.split("/")
    if last or any(part in ("", ".", "..") for part in parts):
        raise InvalidInput(where, f"'{prefix}' is not a prefix", "write it such as 'a/b/'")


def _value(field: str, text: str) -> object:
    if field == "tenants":
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return _WORDS.get(text, text)


def _check_known(where: str, name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name in names:
        return
    secret = [n for n in names if n.endswith("_file")]
    if secret and any(word in name for word in _SECRET_WORDS):
        hint = f"credentials are read from a file or a variable: {', '.join(secret)} or ..._env"
        raise InvalidInput(where, "unknown setting", hint)
    close = nearest(name, names)
    hint = f"did you mean '{close}'?" if close else f"the settings are {', '.join(names)}"
    raise InvalidInput(where, "unknown setting", hint)


def _made(where: str, kind: type[Any], values: Mapping[str, object]) -> Any:
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        raise InvalidInput(f"{where}.{path.rstrip('`')}".rstrip("."), message) from None
