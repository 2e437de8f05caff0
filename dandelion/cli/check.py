"""``dandelion check``: check compositions and blueprints without a node or a device.

Declarations of functions in a text are assumed to be right. A Python file is loaded; what it
describes is checked, not the code of its functions. It is loaded only if it is named. A function is
checked as at registration, but for what a node sets: its limits, the names of its secrets. Sources
and binaries of a blueprint are checked if they are in the same folder. In a folder, JSON files that
are neither blueprints nor registration documents are skipped; a file that is named must be one of
them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dandelion.blueprint import GpuConfig, parse_blueprint
from dandelion.cli.loading import load_program
from dandelion.cli.output import Output, WrongUsage
from dandelion.cli.parser import Arguments
from dandelion.cli.sources import ProgramFailed
from dandelion.data import SetSpec
from dandelion.dataflow.language import parse
from dandelion.dataflow.validate import check_module
from dandelion.documents import FunctionDocument, RegistrationDocument
from dandelion.errors import (
    InvalidBlueprint,
    InvalidComposition,
    InvalidFunction,
    InvalidInput,
    Problem,
)
from dandelion.frontend.records import read_document
from dandelion.function import CodeObject, Function, FunctionSpec, digest_of
from dandelion.node.loaded_backends import Checkers
from dandelion.registration.declarations import check_declaration

_NAME_PROGRAMS = "Python files are checked if they are named"
_FORMAT = "blueprint"  # format of code objects
_FIELDS = ("blueprint", "kernels", "modules", "module_path")
_DOCUMENT = ("functions", "libraries", "compositions")


class Checked(msgspec.Struct, frozen=True):
    """A file and its problems."""

    file: str
    kind: str
    problems: tuple[Problem, ...]


def run(arguments: Arguments, out: Output) -> int:
    """Check all files; return 1 if one has a problem."""
    checked = [result for path in arguments.paths for result in check_path(path)]
    if out.as_json:
        out.document(checked)
    else:
        for result in checked:
            for problem in result.problems:
                out.line(str(problem))
        for path in arguments.paths:
            if path.is_dir() and not any(Path(r.file).is_relative_to(path) for r in checked):
                out.line(f"{path}: no *.dandelion, blueprint or document in it; {_NAME_PROGRAMS}")
        bad = sum(bool(result.problems) for result in checked)
        files = "1 file" if len(checked) == 1 else f"{len(checked)} files"
        out.line(f"{files} checked, {bad or 'none'} with problems")
    return 1 if any(result.problems for result in checked) else 0


def check_path(path: Path) -> Iterator[Checked]:
    """Check a file, or all files below a folder that can be checked.

    Raises:
        WrongUsage: the path does not exist.
    """
    if not path.is_dir():
        if not path.exists():
            raise WrongUsage(str(path), "no such file or folder")
        yield check_file(path)
        return
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if hidden or not file.is_file():
            continue
        if file.suffix == ".dandelion" or (file.suffix == ".json" and _kind(_fields(file))):
            yield check_file(file)


def check_file(path: Path) -> Checked:
    """Check one file of any kind; a device or a pipe, which may not end, is not read."""
    if not path.is_file():
        problem = Problem("unknown-kind", "it is not a regular file", str(path))
        return Checked(str(path), "unknown", (problem,))
    if path.suffix == ".dandelion":
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError as error:
            problem = Problem("encoding", f"not valid UTF-8: {error.reason}", str(path))
            return Checked(str(path), "composition", (problem,))
        return Checked(str(path), "composition", tuple(check_text(text, str(path))))
    if path.suffix == ".py":
        return Checked(str(path), "program", tuple(_program(path)))
    fields = _fields(path)
    kind = _kind(fields)
    if kind == "document":
        return Checked(str(path), kind, tuple(_placed(path, _document(path))))
    if kind == "blueprint" or path.suffix == ".json":
        return Checked(str(path), "blueprint", tuple(_placed(path, _blueprint(path))))
    problem = Problem(
        "unknown-kind", "it cannot be checked", str(path), expected="*.dandelion, *.json or *.py"
    )
    return Checked(str(path), "unknown", (problem,))


def check_text(text: str, file: str) -> list[Problem]:
    """Check a text in the composition language by itself."""
    try:
        return check_module(parse(text, file), text=text)
    except InvalidComposition as error:
        return list(error.problems)


def _document(path: Path) -> list[Problem]:
    try:
        document = read_document(path.read_bytes(), "application/json")
    except InvalidInput as error:
        return [Problem("document", error.message, error.where)]
    return _described(document)


def _program(path: Path) -> list[Problem]:
    try:
        document, _ = load_program(path)
    except (ProgramFailed, InvalidInput) as error:
        return [Problem("program", str(error))]
    return list(_placed(path, _described(document)))


def _described(document: RegistrationDocument) -> list[Problem]:
    functions = (_declaration(function) for function in document.functions)
    return [*itertools.chain.from_iterable(functions), *_compositions(document)]


def _declaration(function: FunctionDocument) -> Sequence[Problem]:
    """Check a function as registration does, for a node with its limits and its secrets."""
    secrets = tuple(function.secrets.values())
    try:
        where = f"function {function.name}"
        check_declaration(where, function, function.limits, lambda: secrets)
    except InvalidFunction as error:
        return error.problems
    return ()


def _compositions(document: RegistrationDocument) -> list[Problem]:
    return [
        msgspec.structs.replace(problem, where=f"compositions[{index}]:{problem.where}".rstrip(":"))
        for index, text in enumerate(document.compositions)
        for problem in check_text(text, "")
    ]


def _blueprint(path: Path) -> list[Problem]:
    data = path.read_bytes()
    try:
        config = parse_blueprint(data)
        files = _neighbours(path.parent, config)
        if files is not None:
            Checkers()[_FORMAT].check([_function(path.stem, data, config, files)])
    except InvalidBlueprint as error:
        return list(error.problems)
    return []


def _function(name: str, data: bytes, config: GpuConfig, files: Mapping[str, bytes]) -> Function:
    """Make the function that registration would make of a blueprint."""
    body = config.blueprint
    inputs = tuple(SetSpec(n) for n in (*body.inputs, *body.weights))
    digests = {n: digest_of(d) for n, d in files.items()}
    code = CodeObject(_FORMAT, digest_of(data), digests)
    spec = FunctionSpec(name, inputs, tuple(SetSpec(n) for n in body.outputs), code=(code,))
    return Function(spec, code, data, files)


def _neighbours(folder: Path, config: GpuConfig) -> dict[str, bytes] | None:
    """Read the files of a blueprint if all of them are in its folder."""
    paths = {code.path for module in config.modules for code in module.code}
    found = {name: folder / name for name in paths}
    if not all(p.resolve().is_relative_to(folder.resolve()) for p in found.values()):
        return None
    if not all(p.is_file() for p in found.values()):
        return None
    return {name: p.read_bytes() for name, p in found.items()}


def _placed(path: Path, problems: Iterable[Problem]) -> Iterator[Problem]:
    for problem in problems:
        where = f"{path}: {problem.where}" if problem.where else str(path)
        yield msgspec.structs.replace(problem, where=where)


def _fields(path: Path) -> frozenset[str]:
    try:
        value: Any = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return frozenset()
    return frozenset(value) if isinstance(value, dict) else frozenset()


def _kind(fields: frozenset[str]) -> str:
    if fields.intersection(_FIELDS):
        return "blueprint"
    return "document" if fields and fields <= frozenset(_DOCUMENT) else ""
