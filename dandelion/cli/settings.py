"""Settings of ``dandelion serve``: a TOML file, below the environment, below the flags.

Text from the environment and from flags is read by the type of its field: sizes may have a unit
(``512MiB``), lists are separated by commas, and tables are written ``engines=process=2,null=1`` and
``options=http.allow=example.org``.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from dandelion.errors import InvalidInput, nearest
from dandelion.errors.misfits import misfit_text
from dandelion.settings import Settings, check_entries, options_of, tenant_settings
from dandelion.sizes import exact_size_text, parse_size

_NamedText: TypeAlias = tuple[str, str]
_FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}
_PREFIX = "DANDELION_"
_NO_SETTINGS = frozenset({"CA", "SETTINGS", "TOKEN", "TRITON", "URL"})
"""Variables with another purpose."""


def load_settings(
    file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, Sequence[str]],
    default_catalog: Callable[[], str] | None = None,
) -> Settings:
    """Merge the three sources of settings.

    Args:
        file: a TOML file, or None.
        environment: ``DANDELION_NAME`` for the setting ``name``.
        flags: texts of the flags that were given, by setting. Lists and tables take the parts of
            all texts, other settings the last text.
        default_catalog: gives the catalogue if no source does; without it, that of `Settings`.

    Raises:
        InvalidInput: a setting is unknown, or its value does not fit; `where` names it.
    """
    values: dict[str, Any] = _read_file(file) if file is not None else {}
    for name in _FIELDS:
        for source, text in _texts(name, environment, flags):
            values[name] = _convert(source, name, read_text(source, name, text))
    if default_catalog is not None and "catalog" not in values:
        values["catalog"] = default_catalog()
    return Settings(**values)


def _texts(
    name: str, environment: Mapping[str, str], flags: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str]]:
    """Yield the texts of one setting with their sources, in ascending priority."""
    variable = _PREFIX + name.upper()
    if variable in environment:
        yield variable, environment[variable]
    if given := flags.get(name):
        text = ",".join(given) if _takes_several(name) else given[-1]
        yield "--" + name.replace("_", "-"), text


def _takes_several(name: str) -> bool:
    return isinstance(_default(name), tuple | dict)


def _default(name: str) -> Any:
    return getattr(Settings(), name)


def setting_help(name: str) -> str:
    """Return the help text of one setting: its documentation and default."""
    documented = re.search(
        rf"^    (?:\w+, )*{name}(?:, \w+)*: (.*?)(?=^    \w|^\w|\Z)",
        inspect.cleandoc(Settings.__doc__ or ""),  # Python 3.13 does that itself
        re.MULTILINE | re.DOTALL,
    )
    text = " ".join(documented[1].split()).replace("`", "") if documented else ""
    return f"{text} [{setting_default(name)}]".lstrip()


def setting_default(name: str) -> str:
    """Return the default of one setting as text, as a user would write it."""
    default = _default(name)
    if name == "catalog":
        return "the user's data folder"
    if isinstance(default, tuple):
        return ",".join(default) or "none"
    if name.endswith("_bytes") and default:
        return exact_size_text(default)
    if isinstance(default, bool):
        return str(default).lower()
    return str(default or "none") if isinstance(default, dict | str) else str(default)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable that looks like a setting and is not one.

    They are not errors. A variable may belong to another program, or be set by the system
    (Kubernetes sets ``DANDELION_SERVICE_HOST`` for a service of that name).
    """
    known = [_PREFIX + name.upper() for name in _FIELDS]
    found = []
    for variable in sorted(environment):
        name = variable.removeprefix(_PREFIX)
        if name == variable or variable in known or name in _NO_SETTINGS:
            continue
        close = nearest(variable, known)
        hint = f"did you mean {close}?" if close else "it is ignored"
        found.append(f"the variable {variable} is not a setting; {hint}")
    return found


def _read_file(file: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(str(file), f"not valid TOML: {error}") from None
    values = {}
    for name, value in table.items():
        if name not in _FIELDS:
            close = nearest(name, _FIELDS)
            hint = f"did you mean '{close}'?" if close else f"settings are {', '.join(_FIELDS)}"
            raise InvalidInput(f"{file}: {name}", "no such setting", hint)
        where = f"{file}: {name}"
        if isinstance(value, str) and name.endswith("_bytes"):
            value = read_text(where, name, value)
        if name == "options":
            value = options_of(where, value)
        if name == "tenants" and isinstance(value, dict):
            value = {
                tenant: tenant_settings(f"{where}.{tenant}", given)
                for tenant, given in value.items()
            }
        values[name] = _convert(where, name, value)
    return values


def read_text(where: str, name: str, text: str) -> Any:
    """Parse the text of one setting.

    Raises:
        InvalidInput: the text does not have the form of the setting.
    """
    if name.endswith("_bytes"):
        return parse_size(where, text)
    if isinstance(_default(name), tuple):
        return [part.strip() for part in text.split(",") if part.strip()]
    if name == "engines":
        return dict(_pair(where, part) for part in _parts(text))
    if name == "options":
        options: dict[str, dict[str, str]] = {}
        for part in _parts(text):
            path, value = _pair(where, part)
            backend, dot, option = path.partition(".")
            if not dot:
                raise InvalidInput(where, f"'{part}' has no backend", "write BACKEND.NAME=VALUE")
            options.setdefault(backend, {})[option] = value
        return options
    return text


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pair(where: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        hint = "write NAME=VALUE, separated by commas; put a value with commas into the file"
        raise InvalidInput(where, f"'{text}' is not NAME=VALUE", hint)
    return name.strip(), value.strip()


def _convert(where: str, name: str, value: Any) -> Any:
    check_entries(where, value, _FIELDS[name].type, strict=False)
    try:
        return msgspec.convert(value, _FIELDS[name].type, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(where, misfit_text(error)) from None
