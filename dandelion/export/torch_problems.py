"""What torch cannot export and what a function cannot do, as problems with the lines at fault."""

from __future__ import annotations

import contextlib
import io
import linecache
import logging
import re
import sysconfig
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dandelion.errors import InvalidInput, Problem

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_ASSIGNED = re.compile(r"tensor attributes? (?P<names>.+?) (?:was|were) assigned during export")
_ON_VALUES = ("GuardOnDataDependentSymNode", "UserError", "PendingUnbackedSymbolNotFound")
_SHOWN = 500


def check_mode(module: Any) -> None:
    """Refuse a module in training mode, or with parts that are.

    Raises:
        InvalidInput: it is.
    """
    parts = [name or "it" for name, part in module.named_modules() if part.training]
    if parts:
        named = parts[0] if parts[0] == "it" else f"its part '{parts[0]}'"
        message = f"{named} is in training mode, so dropout and statistics would be part of it"
        raise InvalidInput("module", message, "call module.eval() first")


@contextlib.contextmanager
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Collect torch's warnings, and drop what it prints and logs: the error has the reason."""
    handlers = list(_handlers())
    for handler in handlers:
        handler.addFilter(_nothing)
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("always")
            yield caught
    finally:
        for handler in handlers:
            handler.removeFilter(_nothing)


def _handlers() -> Iterator[logging.Handler]:
    """All handlers of torch's loggers, some of which have their own."""
    for name, logger in tuple(logging.root.manager.loggerDict.items()):
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
            yield from logger.handlers


def _nothing(_: logging.LogRecord) -> bool:
    return False


def failure(torch: Any, module: object, error: Exception) -> Problem:
    """Describe why torch could not follow a call: the user's line, what it is, what torch says."""
    kind = type(error).__name__
    message = f"{kind}: {str(error).strip().partition(chr(10))[0][:_SHOWN]}"
    expected = "a module that torch.export can follow"
    if kind in _ON_VALUES:
        message = f"control flow or a number depends on values of tensors; {message}"
        expected = "torch.where, or other operators on whole tensors"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if _is_own(torch, f.filename)]
    if not own:
        return Problem("torch-export", message, type(module).__name__, expected=expected)
    line = linecache.getline(own[-1].filename, own[-1].lineno or 0).strip()
    shown = f"in '{line}': {message}" if line else message
    where = f"{own[-1].filename}:{own[-1].lineno}"
    return Problem("torch-export", shown, where, expected=expected)


def assigned(module: Any, caught: Sequence[warnings.WarningMessage]) -> Iterator[Problem]:
    """Find the attributes that a call of the module changes, of which torch only warns."""
    for warning in caught:
        found = _ASSIGNED.search(str(warning.message))
        names = found["names"].split(", ") if found else []
        names = [name for name in names if not _is_of_torch(module, name)]
        if names:
            message = f"it changes '{', '.join(names)}', which would be lost"
            expected = "a module that returns its results and changes nothing"
            code = type(module).forward.__code__
            where = f"{code.co_filename}:{code.co_firstlineno}"
            yield Problem("mutation", message, where, expected=expected)


def _is_of_torch(module: Any, name: str) -> bool:
    """Tell whether an attribute belongs to a module of torch itself.

    Such as the list of an LSTM's weights, which `torch.export` replaces while it runs the module.
    """
    path = name.removeprefix("self.").rpartition(".")[0]
    try:
        owner = module.get_submodule(path)
    except AttributeError:
        return False
    return type(owner).__module__.startswith("torch.nn.")


def refused(torch: Any, program: Any) -> Iterator[Problem]:
    """Find what a function without state and with fixed shapes cannot do."""
    nodes = {node.name: node for node in program.graph.nodes}
    kinds = torch.export.graph_signature
    changed = (kinds.OutputKind.BUFFER_MUTATION, kinds.OutputKind.USER_INPUT_MUTATION)
    for spec in program.graph_signature.output_specs:
        if spec.kind in changed:
            node = nodes[spec.arg.name]
            operator = f" by {node.target}" if node.op == "call_function" else ""
            expected = "a module that returns its results and changes nothing"
            what = f"it changes '{spec.target}'{operator}"
            yield Problem("mutation", what, line_of(torch, node), expected=expected)
    for node in program.graph.nodes:
        if str(node.target) == "with_effects":
            message = f"operator {node.args[1]} is not supported"
            yield Problem("unsupported-operator", message, line_of(torch, node))
            return
    for node in program.graph.nodes:
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) else ()
        if any(not isinstance(size, int) for size in sizes):
            message = f"the shape of the result of {node.target} is only known in a call"
            expected = "fixed shapes: export it once for each size"
            yield Problem("dynamic-shape", message, line_of(torch, node), expected=expected)
            return


def line_of(torch: Any, node: Any) -> str:
    """The innermost line of the user's own code that a node comes from."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    own = [f for f in frames if _is_own(torch, f["file"])]
    chosen = (own or frames)[-1:]
    return f"{chosen[0]['file']}:{chosen[0]['line']}" if chosen else f"node {node.name}"


def _is_own(torch: Any, file: str) -> bool:
    homes = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    is_standard = file.startswith(sysconfig.get_path("stdlib")) and "site-packages" not in file
    return not (is_standard or file.startswith((*homes, "<")))
