"""Reads files and folders into one registration document.

=================== ==========================================================================
``*.dandelion``     a text in the composition language
``*.json``          a registration document
``*.msgpack``       the same in MessagePack, which is smaller if it has binary data
``*.py``            a module with ``document()``, or with decorated functions and compositions
folder              with a ``bundle.py``: its ``document()``; else all texts and documents in it
=================== ==========================================================================
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from dandelion.cli.output import WrongUsage
from dandelion.cli.uncached import executed, importable
from dandelion.dataflow.dsl import CompositionHandle
from dandelion.decorators import PythonFunction
from dandelion.documents import FunctionDocument, RegistrationDocument, collect
from dandelion.errors import Blame, DandelionError, InvalidInput
from dandelion.errors.misfits import named_type
from dandelion.frontend.records import read_document

_MEDIA_TYPES = {".json": "application/json", ".msgpack": "application/msgpack"}
_DECORATED = PythonFunction | CompositionHandle | FunctionDocument
_DOCUMENTS = (".dandelion", *_MEDIA_TYPES)
_OWN = str(Path(__file__).resolve().parent.parent)


@dataclass(eq=False)
class ProgramFailed(DandelionError):
    """A user's file cannot be loaded.

    Attributes:
        files: that it consists of, as far as they were loaded.
    """

    path: str
    message: str
    files: tuple[str, ...] = ()
    status = 400
    blame = Blame.CALLER

    def __str__(self) -> str:
        separator = "\n" if self.message.startswith(" ") else " "
        return f"{self.path} cannot be loaded:{separator}{self.message}"


def read_sources(paths: Iterable[Path]) -> RegistrationDocument:
    """Read all paths.

    Python files are executed in this process, with the rights of the user, since they describe
    functions. Commands use `dandelion.cli.loading`, which gives them a process of their own.

    Raises:
        WrongUsage: a path does not exist.
        InvalidInput: a path or its content cannot be registered.
    """
    return collect(document for path in paths for document in _read(path))


def is_program(path: Path) -> bool:
    """Tell whether `read_sources` executes a Python file of the user for a path."""
    if path.is_dir():
        return (path / "bundle.py").is_file()
    return path.suffix == ".py" and path.exists()


def files_of_texts(paths: Iterable[Path]) -> dict[str, str]:
    """Give the files of all texts in the composition language that `read_sources` reads."""
    files: list[Path] = []
    for path in paths:
        files += sorted(path.iterdir()) if path.is_dir() else [path]
    return {text_of(file): str(file) for file in files if file.suffix == ".dandelion"}


def _read(path: Path) -> list[RegistrationDocument]:
    if not path.exists():
        raise WrongUsage(str(path), "no such file or folder")
    if path.is_dir():
        if is_program(path):
            return [_document_of(_package_module(path), path)]
        files = [p for p in sorted(path.iterdir()) if p.suffix in _DOCUMENTS]
        if not files:
            hint = "expected bundle.py, or files *.dandelion, *.json or *.msgpack"
            raise InvalidInput(str(path), "the folder has nothing to register", hint)
        return [document for file in files for document in _read(file)]
    if path.suffix == ".dandelion":
        return [RegistrationDocument(compositions=(text_of(path),))]
    if path.suffix in _MEDIA_TYPES:
        try:
            return [read_document(path.read_bytes(), _MEDIA_TYPES[path.suffix])]
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error.where}", error.message, error.hint) from None
    if path.suffix == ".py":
        with importable(path.resolve().parent):
            return [_document_of(load_module(path.stem, path), path)]
    raise InvalidInput(
        str(path), "it cannot be registered", "give *.dandelion, *.json, *.msgpack, *.py"
    )


def text_of(path: Path) -> str:
    """Read a text in the composition language.

    Raises:
        InvalidInput: it is not valid UTF-8.
    """
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(str(path), f"not valid UTF-8: {error.reason}") from None


def _document_of(module: ModuleType, path: Path) -> RegistrationDocument:
    make = getattr(module, "document", None)
    if not callable(make):
        decorated = [v for v in vars(module).values() if isinstance(v, _DECORATED)]
        if decorated:
            return collect(decorated)
        hint = "put @dandelion.function above its functions, or define document()"
        raise InvalidInput(str(path), "the file has nothing to register", hint)
    document = make()
    if not isinstance(document, RegistrationDocument):
        message = f"document() returned {named_type(document)}, not a RegistrationDocument"
        raise InvalidInput(str(path), message)
    return document


def _package_module(folder: Path) -> ModuleType:
    """Load ``bundle.py`` as a module of a package, so that its relative imports work."""
    package = f"dandelion_bundle_{folder.resolve().name}"
    module = ModuleType(package)
    module.__path__ = [str(folder.resolve())]
    sys.modules[package] = module
    return load_module(f"{package}.bundle", folder / "bundle.py")


def load_module(name: str, path: Path) -> ModuleType:
    """Execute a Python file.

    Raises:
        DandelionError: what it describes is not valid.
        ProgramFailed: it does not load.
    """
    try:
        return executed(name, path)
    except (DandelionError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever the program of the user raises
        raise ProgramFailed(str(path), users_traceback(error)) from error


def users_traceback(error: BaseException) -> str:
    """Write where the user's program raised: without lines of this project and of imports."""
    lines = traceback.format_exception(error)
    outside = (line for line in lines if _OWN not in line and "importlib" not in line)
    return "".join(line for line in outside if not line.startswith("Traceback ")).rstrip()
