"""Collecting everything that is registered together into one document."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import cast

from dandelion.contents import Content, ContentLike, content, read_if_path
from dandelion.documents.records import (
    FunctionDocument,
    FunctionLike,
    HasDocument,
    HasText,
    Registrable,
    RegistrationDocument,
)
from dandelion.errors import InvalidInput
from dandelion.errors.misfits import named_type
from dandelion.function import FunctionSpec


def collect(
    things: Iterable[Registrable],
    functions: Iterable[FunctionLike] = (),
    libraries: Mapping[str, ContentLike | bytes | Path] | None = None,
) -> RegistrationDocument:
    """Collect everything to register into one document.

    A composition includes the functions that it applies as objects. A function of the same name
    that is given explicitly is taken instead.

    Args:
        things: compositions of the DSL, texts in the composition language, functions, documents.
        functions: further functions.
        libraries: code objects by name: text, bytes, or the path of a file.

    Raises:
        InvalidInput: a value is none of these, or two documents have a library of the same name
            and different content.
        InvalidFunction: the source of a decorated function cannot be captured.
    """
    found = _Collected()
    for name, library in (libraries or {}).items():
        _add(found.code, name, read_if_path(f"libraries.{name}", library))
    for function in functions:
        found.add_function(function)
    for thing in things:
        found.add(thing)
    return found.document()


@dataclass(slots=True)
class _Collected:
    """What is to be registered."""

    functions: list[FunctionDocument] = field(default_factory=list)
    compositions: list[str] = field(default_factory=list)
    code: dict[str, Content] = field(default_factory=dict)
    applied: list[object] = field(default_factory=list)
    seen: list[object] = field(default_factory=list)

    def add(self, thing: object) -> None:
        if isinstance(thing, RegistrationDocument):
            self.functions += thing.functions
            self.compositions += thing.compositions
            for name, library in thing.libraries.items():
                _add(self.code, name, library)
        elif isinstance(thing, str):
            self.compositions.append(thing)
        elif isinstance(thing, HasText):
            self.compositions.append(thing.text())
            self.applied += getattr(thing, "sources", ())
        else:
            self.add_function(thing)

    def add_function(self, thing: object) -> None:
        if any(thing is one for one in self.seen):
            return
        self.seen.append(thing)
        if isinstance(thing, FunctionDocument):
            self.functions.append(thing)
        elif hasattr(type(thing), "document"):
            self.functions.append(cast(HasDocument, thing).document)
        elif sources := getattr(thing, "sources", ()):  # a handle that was made of a document
            for source in sources:
                self.add_function(source)
        else:
            raise _cannot_register(thing)

    def document(self) -> RegistrationDocument:
        names = {function.name for function in self.functions}
        applied: dict[str, object] = {}
        for thing in self.applied:
            name = getattr(thing, "name", "")
            if name in names or isinstance(thing, FunctionSpec):
                continue
            if applied.setdefault(name, thing) is not thing:
                message = f"two functions that are applied have the name '{name}'"
                raise InvalidInput("register", message, "give one of them another name=")
            self.add_function(thing)
        return RegistrationDocument(
            tuple(self.functions), dict(self.code), tuple(self.compositions)
        )


def _cannot_register(thing: object) -> InvalidInput:
    """Make the error with the line of the program that registers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("dandelion."):
        frame = frame.f_back
    where = "register" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
    hint = "give decorated functions, compositions, documents, or texts of the language"
    if inspect.isfunction(thing):
        hint = f"put @dandelion.function above '{thing.__name__}'"
    elif isinstance(thing, list | tuple | set):
        hint = "give its members one by one: register(*things)"
    elif hasattr(thing, "declaration"):
        hint = "it is only declared; register the function itself"
    elif type(thing).__name__ == "Blueprint":
        hint = "make a function of it: dandelion.gpu_function(name, blueprint, ...)"
    return InvalidInput(where, f"{named_type(thing)} cannot be registered", hint)


def _add(code: dict[str, Content], name: str, value: ContentLike | bytes) -> None:
    made = content(value)
    if name in code and code[name].bytes() != made.bytes():
        message = "it is given twice, with different content"
        raise InvalidInput(f"libraries.{name}", message, "give one of them another name")
    code[name] = made
