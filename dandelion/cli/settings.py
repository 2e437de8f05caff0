"""Settings of ``dandelion serve``: a TOML file, below the environment, below the flags.

Text from the environment and from flags is read by the type of its field: sizes may have a unit
(``512MiB``), lists are separated by commas, and tables are written ``engines=process=2,null=1`` and
``options=http.allow=example.org``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dandelion.errors import InvalidInput, nearest
from dandelion.settings import Settings

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([A-Za-z]*)")
_FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}


def load_settings(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, str]
) -> Settings:
    """Bring the three sources of settings together.

    Args:
        file: a TOML file, or None.
        environment: ``DANDELION_NAME`` for the setting ``name``.
        flags: text of the flags that were given, by setting.

    Raises:
        InvalidInput: a setting is unknown, or its value does not fit; `where` names it.
    """
    values: dict[str, Any] = _read_file(file) if file is not None else {}
    for name in _FIELDS:
        for source, text in (
            (f"DANDELION_{name.upper()}", environment.get(f"DANDELION_{name.upper()}")),
            ("--" + name.replace("_", "-"), flags.get(name)),
        ):
            if text is not None:
                values[name] = _convert(source, name, read_text(source, name, text))
    return Settings(**values)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(str(file), f"this is no valid TOML: {error}") from None
    values = {}
    for name, value in table.items():
        if name not in _FIELDS:
            close = nearest(name, _FIELDS)
            hint = f"did you mean '{close}'?" if close else f"settings are {', '.join(_FIELDS)}"
            raise InvalidInput(f"{file}: {name}", "there is no such setting", hint)
        where = f"{file}: {name}"
        if isinstance(value, str) and name.endswith("_bytes"):
            value = read_text(where, name, value)
        values[name] = _convert(where, name, value)
    return values


def read_text(where: str, name: str, text: str) -> Any:
    """Read the text of one setting into plain values of its kind.

    Raises:
        InvalidInput: the text is not of the form that the setting has.
    """
    default = _FIELDS[name].default
    if name.endswith("_bytes"):
        return _size(where, text)
    if isinstance(default, tuple):
        return [part.strip() for part in text.split(",") if part.strip()]
    if name == "engines":
        return dict(_pair(where, part) for part in _parts(text))
    if name == "options":
        options: dict[str, dict[str, str]] = {}
        for part in _parts(text):
            path, value = _pair(where, part)
            backend, dot, option = path.partition(".")
            if not dot:
                raise InvalidInput(where, f"'{part}'", "write BACKEND.NAME=VALUE")
            options.setdefault(backend, {})[option] = value
        return options
    return text


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pair(where: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InvalidInput(where, f"'{text}'", "write NAME=VALUE, separated by commas")
    return name.strip(), value.strip()


def _size(where: str, text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2] not in _UNITS:
        raise InvalidInput(where, f"'{text}' is no size", "such as 1048576, 512MiB or 2GiB")
    return int(match[1]) * _UNITS[match[2]]


def _convert(where: str, name: str, value: Any) -> Any:
    try:
        return msgspec.convert(value, _FIELDS[name].type, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(where, str(error)) from None
