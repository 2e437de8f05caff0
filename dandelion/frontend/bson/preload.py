"""The preload file: functions and compositions that are registered when the server starts.

It is JSON in the format of the original::

    {"functions": [{"name": "f", "engineType": "Process", "ctxSize": 2097152,
                    "binaryPath": "f.elf",
                    "metadata": {"inputSets": ["in"], "outputSets": ["out"]}}],
     "compositions": ["function f(in) => (out); composition c(x) => (y) { ... }"]}

An input set is a name, or ``[name, null]``, or ``[name, [[item, [byte, ...]], ...]]`` with fixed
items. Relative paths are relative to the file. If anything in it is not valid, the server does not
start. Registering the same again changes nothing, so every frontend of a node does it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from dandelion.errors import InvalidInput
from dandelion.frontend.bson.requests import DeclaredInput, FunctionRequest
from dandelion.regular_files import open_regular

_Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]
_Size = Annotated[int, msgspec.Meta(ge=0)]
_FixedItems: TypeAlias = list[tuple[str, list[_Byte]]]
_InputSet: TypeAlias = str | tuple[str, _FixedItems | None]
_ENGINE_TYPES = {"process": "Process", "kvm": "Kvm"}


class _Metadata(msgspec.Struct, rename="camel"):
    input_sets: list[_InputSet] = []
    output_sets: list[str] = []
    min_set_bytes: list[_Size] = []


class _Function(msgspec.Struct, rename="camel"):
    name: str
    engine_type: str
    ctx_size: _Size
    binary_path: str
    metadata: _Metadata


class PreloadFile(msgspec.Struct):
    """The content of the file, as the client's records."""

    functions: list[_Function] = []
    compositions: list[str] = []


def read_preload(path: Path) -> tuple[list[FunctionRequest], list[str]]:
    """Read the file and its executables.

    Raises:
        InvalidInput: a file cannot be read, or the format does not fit.
    """
    where = "options.bson.preload"
    try:
        content = msgspec.json.decode(_bytes_of(path), type=PreloadFile)
        functions = [_request(path.parent, one) for one in content.functions]
    except OSError as error:
        raise InvalidInput(where, f"{error.filename}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not JSON
        raise InvalidInput(where, f"{path}: {error}") from None
    return functions, content.compositions


def _bytes_of(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def _request(folder: Path, given: _Function) -> FunctionRequest:
    inputs = []
    contents = [_bytes_of(folder / given.binary_path)]
    for one in given.metadata.input_sets:
        name, fixed = (one, None) if isinstance(one, str) else one
        inputs.append(DeclaredInput(name, tuple(item for item, _ in fixed or ())))
        contents += [bytes(data) for _, data in fixed or ()]
    return FunctionRequest(
        given.name,
        given.ctx_size,
        _ENGINE_TYPES.get(given.engine_type.lower(), given.engine_type),
        "",
        tuple(inputs),
        tuple(given.metadata.output_sets),
        tuple(given.metadata.min_set_bytes),
        tuple(contents),
    )
