"""Names that the original allows and this project does not, translated without a table.

**Functions.** A name that is not an identifier becomes one by `identifier_of`, which gives
different identifiers for different names. So nothing has to be kept, and every frontend of a node
translates alike.

**Sets of functions.** Their names may be empty, repeated, or anything else. A set is registered
under its name if that is possible, else under ``input_0`` or ``output_0`` with its position. The
names that the client gave are options of the code object (``input_names``, ``output_names``), so
they are in the catalogue with the function, the executable sees them, and replies have them.

**Declarations.** In the original's older versions a composition may declare other names for the
sets of a function; only their order and number count. `with_registered_names` replaces them with
the registered ones, so the registered text is an ordinary one.

**HTTP.** These versions declare it as ``HTTP (request) => (response, body)``, where the response
includes the body. This is the platform function ``HTTP_RESPONSE``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from dandelion.catalog import CompositionRecord
from dandelion.dataflow.graph import (
    Application,
    Binding,
    CompositionModule,
    Declaration,
    Join,
    RepeatClause,
    Sharding,
)
from dandelion.dataflow.language import check_length, parse
from dandelion.dataflow.printer import print_module
from dandelion.errors import InvalidInput, Unknown
from dandelion.frontend.asgi import clipped
from dandelion.function import FunctionSpec

INPUT_NAMES, OUTPUT_NAMES = "input_names", "output_names"
"""Options of a code object, see ``docs/native-functions.md``."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IDENTIFIER_LIMIT = 128
_RENAMED = "renamed_"
_OLD_HTTP_OUTPUTS = ("response", "body")
_NEW_HTTP = {"HTTP": "HTTP_RESPONSE"}

Found = FunctionSpec | CompositionRecord
Find = Callable[[str], Found]
"""Finds a function or composition by its identifier, or raises `Unknown`."""


def identifier_of(name: str) -> str:
    """Return the identifier under which a function or composition is registered.

    An identifier stands for itself. In other names ``_`` becomes ``__``, and any other character
    that identifiers do not have becomes its code point between two ``_``.

    Raises:
        InvalidInput: the name is empty, or its identifier is too long.
    """
    found = name
    if not _IDENTIFIER.fullmatch(name) or name.startswith(_RENAMED):
        found = _RENAMED + "".join(map(_escaped, name))
    if not name or len(found) > _IDENTIFIER_LIMIT:
        message = f"'{clipped(name)}' is empty or too long"
        raise InvalidInput("name", message, f"use 1 to {_IDENTIFIER_LIMIT} letters and digits")
    return found


def _escaped(character: str) -> str:
    if character == "_":
        return "__"
    plain = character.isascii() and character.isalnum()
    return character if plain else f"_{ord(character):x}_"


def set_names(given: Sequence[str], other: str) -> tuple[str, ...]:
    """Return the names under which the sets of a function are registered.

    Args:
        given: the client's names.
        other: begins the names of sets whose own name cannot be used.
    """
    counts = Counter(given)
    taken = {name for name, count in counts.items() if count == 1 and _is_set_name(name)}
    names = []
    for position, name in enumerate(given):
        if name not in taken:
            name = f"{other}_{position}"
            while name in taken:
                name += "_"
        names.append(name)
    return tuple(names)


def _is_set_name(name: str) -> bool:
    return len(name) <= _IDENTIFIER_LIMIT and _IDENTIFIER.fullmatch(name) is not None


def output_labels(spec: FunctionSpec) -> tuple[str, ...]:
    """Return the names that the executable knows the output sets of a function by."""
    for code in spec.code:
        option = code.options.get(OUTPUT_NAMES)
        if option is not None:
            return tuple(msgspec.json.decode(option, type=list[str]))
    return spec.output_names


# --- compositions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Renaming:
    """How the applications of a declared function are rewritten.

    Attributes:
        function: its identifier.
        inputs, outputs: registered names by declared ones.
        fixed: declared names of inputs that are fixed at registration.
    """

    function: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    fixed: frozenset[str]


def with_registered_names(text: str, find: Find) -> str:
    """Rewrite a text to the registered names; return it unchanged if it has these already.

    A declaration whose number of sets differs from the registration, or whose function does not
    exist, stays as it is, so that the usual check reports it.

    Raises:
        InvalidComposition: the text does not fit the grammar.
        TooLarge: it is too long.
    """
    check_length("composition", text)
    module = parse(text, "composition")
    own = {c.name for c in module.compositions}
    renamings: dict[str, _Renaming] = {}
    declarations = []
    for declaration in module.declarations:
        renaming = None if declaration.name in own else _renaming(declaration, find)
        if renaming is not None:
            renamings.setdefault(declaration.name, renaming)
            declaration = _declared(declaration, renaming)
        declarations.append(declaration)
    compositions = tuple(
        msgspec.structs.replace(
            composition,
            name=identifier_of(composition.name),
            applications=tuple(
                _applied(a, renamings.get(a.function), own) for a in composition.applications
            ),
        )
        for composition in module.compositions
    )
    rewritten = CompositionModule(tuple(dict.fromkeys(declarations)), compositions)
    return text if rewritten == module else print_module(rewritten)


def _renaming(declaration: Declaration, find: Find) -> _Renaming | None:
    name = identifier_of(declaration.name)
    if declaration.outputs == _OLD_HTTP_OUTPUTS:
        name = _NEW_HTTP.get(name, name)
    try:
        found = find(name)
    except Unknown:
        return None
    real = _sets(found)
    said = declaration.inputs, declaration.outputs
    for registered, declared in zip(real, said, strict=True):
        if len(registered) != len(declared) or len({*declared}) != len(declared):
            return None
    inputs, outputs = (dict(zip(s, r, strict=True)) for s, r in zip(said, real, strict=True))
    given = found.fixed if isinstance(found, FunctionSpec) else ()
    fixed = frozenset(declared for declared, name in inputs.items() if name in given)
    return _Renaming(name, inputs, outputs, fixed)


def _sets(found: Found) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(found, FunctionSpec):
        return found.input_names, found.output_names
    return found.inputs, found.outputs


def _declared(declaration: Declaration, renaming: _Renaming) -> Declaration:
    inputs, outputs = tuple(renaming.inputs.values()), tuple(renaming.outputs.values())
    return Declaration(renaming.function, inputs, outputs, declaration.place)


def _applied(application: Application, renaming: _Renaming | None, own: set[str]) -> Application:
    if renaming is None:
        if application.function not in own:
            return application
        return msgspec.structs.replace(application, function=identifier_of(application.function))
    inputs, outputs = renaming.inputs, renaming.outputs
    bindings = tuple(
        msgspec.structs.replace(b, parameter=inputs.get(b.parameter, b.parameter))
        for b in application.bindings
        if not _is_ignored(b, renaming, application.join)
    )
    returns = tuple(
        msgspec.structs.replace(r, output=outputs.get(r.output, r.output))
        for r in application.returns
    )
    return msgspec.structs.replace(
        application,
        function=renaming.function,
        bindings=bindings,
        returns=returns,
        join=_joined(application.join, inputs),
        repeat=_repeated(application.repeat, inputs, outputs),
    )


def _is_ignored(binding: Binding, renaming: _Renaming, join: Join | None) -> bool:
    """Return whether a binding has no effect: the set is fixed, and nothing is distributed."""
    joined = join is not None and binding.parameter in join.order
    is_whole = binding.sharding is Sharding.ALL and not joined
    return is_whole and binding.parameter in renaming.fixed


def _joined(join: Join | None, inputs: Mapping[str, str]) -> Join | None:
    if join is None:
        return None
    return msgspec.structs.replace(join, order=_all(join.order, inputs))


def _repeated(
    repeat: RepeatClause | None, inputs: Mapping[str, str], outputs: Mapping[str, str]
) -> RepeatClause | None:
    if repeat is None:
        return None
    feedback = tuple(
        msgspec.structs.replace(
            f,
            parameter=inputs.get(f.parameter, f.parameter),
            output=outputs.get(f.output, f.output),
        )
        for f in repeat.feedback
    )
    until = None if repeat.until is None else outputs.get(repeat.until, repeat.until)
    return msgspec.structs.replace(repeat, until=until, feedback=feedback)


def _all(names: Iterable[str], renamed: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(renamed.get(name, name) for name in names)
