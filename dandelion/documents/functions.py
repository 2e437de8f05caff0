"""Describing Python functions and GPU functions."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dandelion.contents import (
    Content,
    ContentLike,
    ItemContent,
    ItemContentLike,
    content,
    file_bytes,
    item_content,
    read_if_path,
)
from dandelion.data import Bytes, Item, SetSpec, Value
from dandelion.documents.records import (
    CodeDocument,
    FunctionDocument,
    GivenLimits,
    SetLike,
    limits_of,
    set_spec,
)
from dandelion.errors import InvalidInput
from dandelion.errors.misfits import named_type
from dandelion.function import Batching, as_tuple
from dandelion.set_values import is_json, item_set

if TYPE_CHECKING:
    from dandelion.blueprint import Blueprint


def python_function(
    source: Callable[..., Any] | str | Path,
    *,
    inputs: Iterable[SetLike] | None = None,
    outputs: Iterable[SetLike],
    name: str | None = None,
    entry: str | None = None,
    imports: Iterable[str] = (),
    limits: GivenLimits = None,
    static: Mapping[str, Value] | None = None,
    cache: bool = False,
    batching: Batching | None = None,
    secrets: Mapping[str, str] | None = None,
    packages: Iterable[str] = (),
) -> FunctionDocument:
    """Describe a Python compute function.

    It gets one `dandelion.ItemSet` (or None) for each input set, by keyword, and returns a
    dict from output set to anything that `dandelion.set_values.item_set` takes; for a single output
    set the value alone is enough.

    Args:
        source: a function (its own source is taken, so it must import what it needs inside its
            body), the text of a module, or the path of one.
        inputs: input sets; by default the parameters of `source` if that is a function.
        outputs: output sets.
        name: registered name; by default that of the function.
        entry: name of the function within the module; by default `name`.
        imports: modules that the sandbox must have loaded before it is locked, such as ``numpy``.
        limits: what one instance may use; a `Limits` or its fields, sizes also as ``"128MiB"``.
        static: input sets that are fixed now: a value, or values by item name.
        cache: keep results by the content of the inputs.
        batching: how waiting calls are joined.
        secrets: names of secrets of the node, by the input set that each fills.
        packages: requirements of Python packages that the node prepares at registration.
    """
    inputs = None if inputs is None else as_tuple(inputs)
    if callable(source):
        text = _source_of(source)
        entry = entry or source.__name__
        if inputs is None:
            inputs = tuple(inspect.signature(source).parameters)
    else:
        text = source if isinstance(source, str) else file_bytes("source", source).decode()
    name = name or entry
    if name is None:
        raise InvalidInput("name", "a function given as text needs a name", "give name=...")
    options = {"entry": entry or name} | ({"imports": ",".join(imports)} if imports else {})
    return FunctionDocument(
        name=name,
        inputs=inputs or (),
        outputs=as_tuple(outputs),
        static=static_contents(static, inputs or ()),
        limits=limits_of(limits, f"{name}.limits"),
        code=(CodeDocument("python", text, options=options, packages=as_tuple(packages)),),
        cache=cache,
        batching=batching,
        secrets=dict(secrets or {}),
    )


def gpu_function(
    name: str,
    blueprint: str | bytes | Path | Blueprint,
    *,
    inputs: Iterable[SetLike],
    outputs: Iterable[SetLike],
    files: Mapping[str, ContentLike | bytes | Path] | None = None,
    static: Mapping[str, Value] | None = None,
    limits: GivenLimits = None,
    batching: Batching | None = None,
) -> FunctionDocument:
    """Describe a GPU function: a blueprint and the files with its kernels.

    Args:
        name: registered name.
        blueprint: JSON text of the blueprint, its path, or a builder.
        inputs: input sets; their names are those of the blueprint's inputs and weights.
        outputs: output sets; their names are those of the blueprint's outputs.
        files: kernel sources and binaries by the name that the blueprint uses for them. Those that
            are registered as libraries are left out.
        static: weights and other inputs that are fixed now: a value, or values by item name.
        limits: what one instance may use; a `Limits` or its fields, sizes also as ``"128MiB"``.
        batching: how waiting calls are joined.
    """
    inputs = as_tuple(inputs)
    if isinstance(blueprint, Mapping):
        raise InvalidInput(f"{name}.blueprint", "it is a dict", "give json.dumps(...) of it")
    if hasattr(blueprint, "json"):
        blueprint = blueprint.json()
    main = _file(f"{name}.blueprint", blueprint)
    read: dict[str, ContentLike] = {
        n: _file(f"{name}.files.{n}", f) for n, f in (files or {}).items()
    }
    return FunctionDocument(
        name=name,
        inputs=inputs,
        outputs=as_tuple(outputs),
        static=static_contents(static, inputs),
        limits=limits_of(limits, f"{name}.limits"),
        code=(CodeDocument("blueprint", main, read),),
        batching=batching,
    )


def static_contents(
    given: Mapping[str, Value] | None, sets: Iterable[SetLike] = ()
) -> dict[str, dict[str, ItemContentLike]]:
    """Describe fixed input sets.

    Args:
        given: a value of each set, as callers give them; see `dandelion.set_values.item_set`.
            Values may be `ItemContent`. Keys are not kept.
        sets: declarations, by which Python numbers become arrays.

    Raises:
        InvalidInput: a value cannot be an item.
    """
    specs = {spec.name: spec for spec in map(set_spec, sets)}
    return {
        name: _static_set(name, value, specs.get(name)) for name, value in (given or {}).items()
    }


def _static_set(name: str, value: Value, spec: SetSpec | None) -> dict[str, ItemContentLike]:
    named = value if isinstance(value, Mapping) and not is_json(value, spec) else {name: value}
    if all(isinstance(v, str | bytes | Content | np.ndarray | np.generic) for v in named.values()):
        return {str(item): item_content(v) for item, v in named.items()}
    made = item_set(name, value, spec)
    return {item.name: _as_content(item) for item in (made.items if made is not None else ())}


def _as_content(item: Item) -> ItemContent:
    return ItemContent(data=item.bytes(), dtype=item.dtype, shape=item.shape)


def _source_of(function: Callable[..., Any]) -> str:
    """Return the source of a function.

    Raises:
        InvalidInput: it has none that can be read.
    """
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        message = f"the source of {function!r:.60} cannot be read"
        hint = "give a function that a file defines with def, or the text of a module"
        raise InvalidInput("source", message, hint) from None


def _file(where: str, given: ContentLike | Bytes | Path) -> Content:
    """Return the content of a file that is given as text, bytes or its path.

    Raises:
        InvalidInput: at `where`: it is none of these, or the file cannot be read.
    """
    if isinstance(given, Content | str | bytes | bytearray | memoryview):
        return content(given)
    if isinstance(given, Path):
        return content(read_if_path(where, given))
    hint = "give text, bytes or a Path"
    raise InvalidInput(where, f"{named_type(given)} is not the content of a file", hint)
