"""``dandelion export``: a model of PyTorch or ONNX as a function, as a file for ``register``."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from dandelion.arrays import Array
from dandelion.cli.output import Output, WrongUsage
from dandelion.cli.parser import Arguments
from dandelion.cli.sources import ProgramFailed, load_module, users_traceback
from dandelion.data import SetSpec
from dandelion.documents import RegistrationDocument, content, set_spec
from dandelion.errors import BackendUnavailable, InvalidInput, nearest
from dandelion.export.onnx_binding import onnx_module
from dandelion.export.report import ExportReport
from dandelion.export.rows import with_rows
from dandelion.export.torch_binding import (
    example_arrays,
    example_tensors,
    is_module,
    reference_outputs,
)
from dandelion.export.torch_document import ExportedModule, export_module
from dandelion.export.torch_graph import ITEM_BYTES
from dandelion.node import Node
from dandelion.progress import progress
from dandelion.set_values import item_set
from dandelion.settings import Settings

_BACKENDS = "cuda|hip|opencl"
_MIB = 1 << 20
_ENCODERS: Mapping[str, Callable[[RegistrationDocument], bytes]] = {
    ".json": msgspec.json.encode,
    ".msgpack": msgspec.msgpack.encode,
}


class Exported(msgspec.Struct, frozen=True):
    """What was written."""

    name: str
    files: tuple[str, ...]
    report: ExportReport
    not_checked: str = ""


def run(arguments: Arguments, out: Output) -> int:
    """Export one module."""
    with contextlib.redirect_stdout(sys.stderr):  # what the user's file prints
        module, examples, inputs, labels = _model(arguments.source, arguments.inputs)
    if inputs is not None and arguments.batch:
        message = "a model in ONNX is exported for the shapes of its inputs"
        raise InvalidInput("--batch", message, "leave it out, or export the model from PyTorch")
    name = arguments.name or _name(arguments.source)
    if arguments.outputs:
        labels = arguments.outputs.split(",")
    absent_if_zero = [label for label in arguments.absent_if_zero.split(",") if label]
    with contextlib.redirect_stdout(sys.stderr), progress(f"exporting {name}") as show:
        made = export_module(
            name,
            module,
            examples,
            inputs=inputs,
            outputs=labels,
            absent_if_zero=absent_if_zero,
            device=arguments.device,
            precision=arguments.precision,
            batch=arguments.batch,
            batch_wait_s=arguments.batch_wait,
            route=arguments.route,
            target=arguments.target,
            show=show,
        )
        report, reason = made.report, "not asked for"
        if not arguments.no_check:
            show(0, 0, "comparing it with the module")
            targets = arguments.target.split(",") if arguments.route == "peak" else ()
            backend = "|".join(one.partition(":")[0] for one in targets) or _BACKENDS
            report, reason = _checked(made, module, examples, absent_if_zero, backend)
    path = arguments.output or Path(name)
    files = _write(path, made, report)
    if out.as_json:
        out.document(Exported(name, tuple(map(str, files)), report, reason))
        return 0
    for line in report.lines():
        out.line(line)
    if reason:
        out.line(f"errors were not measured: {reason}")
    out.line(f"written: {', '.join(map(str, files))}")
    return 0


Names: TypeAlias = Sequence[str] | None


def _model(source: str, inputs: Sequence[str]) -> tuple[object, Sequence[object], Names, Names]:
    """Find the module, its example inputs, and names of inputs and outputs that a file gives.

    Args:
        source: ``FILE.onnx``, or ``FILE:NAME``; the name is that of a module, or of a function that
            makes a module, or a module and its inputs.
        inputs: types of the inputs, ``float32[1, 3, 224, 224]``, if the source gives none.
    """
    if source.endswith(".onnx"):
        if not Path(source).is_file():
            raise WrongUsage(source, "no such file")
        return onnx_module(Path(source), [_input(text) for text in inputs])
    return (*_python_model(source, inputs), None, None)


def _name(source: str) -> str:
    """Name a function after its source."""
    if not source.endswith(".onnx"):
        return source.rpartition(":")[2]
    return re.sub(r"\W", "_", Path(source).stem)


def _python_model(source: str, inputs: Sequence[str]) -> tuple[object, Sequence[object]]:
    """Find the module in a Python file, and its example inputs; see `_model`."""
    file, colon, name = source.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise WrongUsage(
            source, "it is not FILE:NAME", "write it like models.py:resnet50, or model.onnx"
        )
    path = Path(file)
    if not path.is_file():
        raise WrongUsage(file, "no such file")
    names = vars(load_module(path.stem, path))
    if name not in names:
        close = nearest(name, names)
        hint = f"did you mean '{close}'?" if close else ""
        raise InvalidInput(source, f"the file has no '{name}'", hint)
    found = names[name]
    given: Sequence[object] | None = None
    if callable(found) and not is_module(found):
        found = _called_function(path, found)
    if isinstance(found, tuple) and len(found) == 2:
        found, given = found
    if inputs:
        given = _examples(inputs)
    if given is None:
        hint = "give --inputs TYPE ..., or return (module, inputs)"
        raise InvalidInput(source, "its inputs are not known", hint)
    return found, tuple(given)


def _called_function(path: Path, function: Callable[[], object]) -> object:
    """Call the user's function that makes the module."""
    try:
        return function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the program of the user raises
        raise ProgramFailed(str(path), users_traceback(error)) from error


def _examples(inputs: Sequence[str]) -> Sequence[object]:
    specs = [_input(text) for text in inputs]
    try:
        return example_tensors(specs)
    except RuntimeError as error:  # torch has no class for memory that is missing
        reason = str(error).partition("\n")[0]
        raise InvalidInput("--inputs", f"they cannot be made: {reason}") from None


def _input(text: str) -> SetSpec:
    spec = set_spec(f"input: {text}")
    if spec.dtype is not None and spec.dtype not in ITEM_BYTES:
        close = nearest(spec.dtype, ITEM_BYTES)
        types = f"element types are {', '.join(ITEM_BYTES)}"
        hint = f"did you mean '{close}'?" if close else types
        raise InvalidInput("--inputs", f"'{text}': no element type '{spec.dtype}'", hint)
    if spec.shape is None or any(size < 1 for size in spec.shape):
        raise InvalidInput("--inputs", f"'{text}' has no fixed shape", "write float32[1, 3, 8, 8]")
    return spec


def _checked(
    made: ExportedModule,
    module: object,
    examples: Sequence[object],
    absent_if_zero: Sequence[str],
    backend: str,
) -> tuple[ExportReport, str]:
    """Run the function here and compare; returns why not if there is no device."""
    if made.report.rows:  # fewer than the kernels are made for, so that some are padded
        examples = with_rows(examples, max(made.report.rows[-1] - 1, 1))
    arrays = example_arrays(examples, made.inputs)
    try:
        found = _called(made, arrays, backend)
    except BackendUnavailable as error:
        return made.report, str(error)
    expected = reference_outputs(module, examples, made.outputs)
    for name in absent_if_zero:
        if name not in found:  # of an absent set only the first element is known
            found[name] = np.zeros(1)
            expected[name] = expected[name].reshape(-1)[:1]
    return made.report.with_errors(found, expected), ""


def _called(made: ExportedModule, arrays: Mapping[str, Array], backend: str) -> dict[str, Array]:
    report = made.report
    arena = 4 * (report.static_bytes + report.buffer_bytes) + 256 * _MIB
    settings = Settings(backends=(backend,), arena_bytes=arena, default_deadline_s=600)
    with Node(settings) as node:
        node.register(made.function)
        sets = {name: item_set(name, array) for name, array in arrays.items()}
        results = node.invoke_sets(made.function.name, sets).sets
        found = {name: results[name] for name in made.outputs}
        return {name: items.numpy().copy() for name, items in found.items() if items}


def _write(path: Path, made: ExportedModule, report: ExportReport) -> list[Path]:
    """Write the document; in a folder also its parts, to be read."""
    document = RegistrationDocument(functions=(made.function,))
    encode = _ENCODERS.get(path.suffix)
    if encode is not None:
        return [_replace(path, encode(document))]
    if path.suffix:
        raise InvalidInput(str(path), "an unknown suffix", "use .msgpack or .json, or a folder")
    name = made.function.name
    (code,) = made.function.code
    parts = {
        f"{name}.msgpack": msgspec.msgpack.encode(document),
        "report.txt": "\n".join([*report.lines(), ""]).encode(),
        "sources/blueprint.json": content(code.main).bytes(),
        **{f"sources/{file}": content(text).bytes() for file, text in code.files.items()},
    }
    return [_replace(path / file, data) for file, data in parts.items()]


def _replace(path: Path, data: bytes) -> Path:
    """Write a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path
