"""``dandelion invoke NAME set=text set=@file set:=json``: invoke and show the result."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dandelion.arrays import kind_of, text_of
from dandelion.cli.connection import connect
from dandelion.cli.output import Output, WrongUsage
from dandelion.cli.parser import Arguments
from dandelion.data import Item, ItemSet, Sets, SetSpec
from dandelion.errors import DandelionError, InvalidInput, nearest
from dandelion.frontend.client import Client
from dandelion.frontend.outgoing import Plain
from dandelion.frontend.set_encoding import encode_json
from dandelion.sizes import size_text

PREVIEW = 60  # characters
_NUMBER = re.compile(r"[-+]?\.?\d[\d_.eE+-]*")
_OF_BYTES = frozenset({"uint8", "int8", "bool"})


def run(arguments: Arguments, out: Output) -> int:
    """Invoke, and print or write the sets."""
    sets = read_sets(arguments.sets)
    with connect(arguments) as client, explaining_json(arguments.sets):
        check_numbers(arguments.sets, described(client, arguments))
        result = client.invoke_sets(
            arguments.name,
            sets,
            version=arguments.version_,
            deadline_s=arguments.deadline,
            priority=arguments.priority,
            idempotency_key=arguments.key,
        )
    show_result(arguments, out, result.id, result.sets)
    return 0


def show_result(arguments: Arguments, out: Output, id_: str, result: Sets) -> None:
    """Print or write output sets as the arguments say."""
    if arguments.set_ is not None:
        result = _only_set(result, arguments.set_)
    if arguments.output is not None:
        arguments.output.write_bytes(_only_item(result).data)
    elif arguments.raw:
        out.raw(_only_item(result).bytes())
    elif out.as_json:
        for chunk in encode_json(id_, result):
            out.json(bytes(chunk))
    else:
        _show(id_, result, out)


def read_sets(arguments: Iterable[str]) -> dict[str, Any]:
    """Read ``set=text``, ``set=@file`` and ``set:=json``.

    A set that is named more than once has an item for each. Files give their names to the items,
    and several texts are numbered, as the elements of a list are in requests.

    Raises:
        WrongUsage: an argument is of another form, or its JSON is broken.
        OSError: a file cannot be read.
    """
    plain: dict[str, Plain] = {}
    items: dict[str, list[Item | bytes]] = {}
    for argument in arguments:
        left, equals, value = argument.partition("=")
        if not equals or not left.rstrip(":"):
            raise WrongUsage(f"'{argument}'", "not SET=VALUE", "write set=text or set=@file")
        name = left.removesuffix(":")
        if name in plain or (name in items and left.endswith(":")):
            raise WrongUsage(f"sets.{name}", "give a JSON set only once, as a list")
        if left.endswith(":"):
            plain[name] = _json(name, value)
        elif value.startswith("@"):
            items.setdefault(name, []).append(_file(value[1:]))
        else:
            items.setdefault(name, []).append(value.encode("utf-8", "surrogateescape"))
    return {**plain, **{name: _named(name, given) for name, given in items.items()}}


def check_numbers(arguments: Iterable[str], inputs: Callable[[], Iterable[SetSpec]]) -> None:
    """Refuse numbers that are given as text to sets of numbers: they would be raw bytes there.

    Args:
        arguments: of `read_sets`.
        inputs: gives the input sets; called if a text looks like a number.

    Raises:
        WrongUsage: with how such a number is written.
    """
    texts = {}
    for argument in arguments:
        name, _, value = argument.partition("=")
        if not name.endswith(":") and _NUMBER.fullmatch(value):
            texts[name] = value
    for spec in inputs() if texts else ():
        value = texts.get(spec.name, "")
        if value and spec.dtype is not None and spec.dtype not in _OF_BYTES:
            message = f"it is {text_of(spec.dtype, spec.shape)}, and text would be its raw bytes"
            raise WrongUsage(f"sets.{spec.name}", message, f"write {spec.name}:={value:.60}")


def described(client: Client, arguments: Arguments) -> Callable[[], Iterable[SetSpec]]:
    """Give what asks for the input sets of what is invoked; none if that may not be asked."""

    def inputs() -> Iterable[SetSpec]:
        with contextlib.suppress(DandelionError):
            return client.describe(arguments.name, arguments.version_).inputs
        return ()

    return inputs


@contextlib.contextmanager
def explaining_json(arguments: Iterable[str]) -> Iterator[None]:
    """Say how JSON is written, where a set that looks like it was given as text and refused."""
    try:
        yield
    except InvalidInput as error:
        for argument in arguments:
            name, _, value = argument.partition("=")
            is_text = not name.endswith(":") and value[:1] not in ("", "@")
            if error.where == f"sets.{name}" and is_text and not error.hint:
                example = f"{value:.60}" if _is_json(value) else "[1, 2]"
                error.hint = f"for a number or other JSON, write {name}:={example}"
        raise


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return False
    return True


def _named(name: str, given: list[Item | bytes]) -> Item | list[Item]:
    if len(given) == 1:
        return _item(name, given[0])
    return [_item(str(number), item) for number, item in enumerate(given)]


def _item(name: str, given: Item | bytes) -> Item:
    return given if isinstance(given, Item) else Item(name, 0, given)


def _file(name: str) -> Item:
    if name == "-":
        if sys.stdin is None:
            raise WrongUsage("@-", "there is no standard input", "name a file")
        return Item("stdin", 0, sys.stdin.buffer.read())
    path = Path(name)
    return Item(path.name, 0, path.read_bytes())


def _json(name: str, text: str) -> Plain:
    try:
        return Plain(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeError) as error:
        hint = f"for text, write {name}={text}"
        raise WrongUsage(f"sets.{name}", f"not valid JSON: {error}", hint) from None


def _only_set(result: Sets, name: str) -> Sets:
    if name not in result:
        close = nearest(name, result)
        hint = f"did you mean '{close}'?" if close else f"output sets are {', '.join(result)}"
        raise InvalidInput("--set", f"no such output set '{name}'", hint)
    return Sets({name: result[name]})


def _only_item(result: Sets) -> Item:
    items = [item for items in result.values() if items is not None for item in items]
    if len(items) != 1:
        hint = "select a set of one item with --set, or use --json"
        message = f"it has {len(items)} items, and --raw and -o write exactly one"
        raise InvalidInput("result", message, hint)
    return items[0]


def _show(id_: str, result: Sets, out: Output) -> None:
    rows = []
    for name, items in result.items():
        if items is None:
            rows.append((name, "", "", "", "(empty)"))
            continue
        for item in items:
            size = size_text(item.size_bytes)
            rows.append((name, item.name, str(item.key), size, _preview(items, item)))
    out.table(("set", "item", "key", "size", "data"), rows)
    if id_:
        out.line(f"invocation {id_}")


def _preview(declared: ItemSet, item: Item) -> str:
    dtype = item.dtype or declared.dtype
    if dtype is not None:
        array = item.numpy(dtype)
        form = "d" if kind_of(array.dtype) in "biu" else "g"
        shown = ", ".join(f"{x:{form}}" for x in array[:8].tolist())
        return f"{text_of(dtype, item.shape)}: {shown}{', ...' if array.size > 8 else ''}"
    head = bytes(item.data[: PREVIEW * 4])
    try:
        text = head.decode() if item.size_bytes <= len(head) else head.decode("utf-8", "ignore")
    except UnicodeDecodeError:
        return head[:16].hex(" ") + (" ..." if item.size_bytes > 16 else "")
    shown = text[:PREVIEW].encode("unicode_escape").decode() if not text.isprintable() else text
    return shown[:PREVIEW] + ("..." if len(text) > PREVIEW else "")
