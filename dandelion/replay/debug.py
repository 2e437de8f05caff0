"""Runs one recorded call of a Python function in this process, under a debugger.

There is no sandbox: the function has the rights of the user who debugs it.
"""

from __future__ import annotations
import __future__

import linecache
import pdb
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, GeneratorType, ModuleType
from typing import Any

from dandelion.attached_files import attached
from dandelion.call_values import (
    FILES,
    CallValues,
    OutputMismatch,
    arguments,
    read_call_values,
    results,
)
from dandelion.data import ItemSet
from dandelion.documents import CodeDocument, FunctionDocument, content, item_content, set_spec
from dandelion.errors import (
    BadOutput,
    DandelionError,
    ErrorRecord,
    Exited,
    InvalidInput,
    Raised,
    Unknown,
    nearest,
)
from dandelion.own_modules import OwnModule, OwnModules
from dandelion.recording.records import RecordedCall, RecordedSets, Recording, recorded_set
from dandelion.set_values import InvalidReturnValue, returned_sets

_FORMAT = "python"
_SOURCE = "<function "
"""How names of a function's files begin."""
_TEXT_LIMIT = 4000
"""Characters of an error's text that a sandbox sends."""


@dataclass(frozen=True, slots=True)
class DebuggedCall:
    """How a call ended.

    Attributes:
        same: its outputs, or its error, are the recorded ones.
        traceback: of what it raised, from its own first line on; empty if it returned.
    """

    same: bool
    traceback: str = ""


class _Left(BaseException):
    """The user has left the debugger."""


class _Debugger(pdb.Pdb):
    """Notes that the user leaves it, which `runcall` does not tell.

    Attributes:
        was_left: whether the user has left it.
    """

    was_left = False

    def set_quit(self) -> None:
        self.was_left = True
        super().set_quit()


def _in_debugger(function: Callable[..., Any], **arguments: Any) -> Any:
    debugger = _Debugger()
    returned = debugger.runcall(function, **arguments)
    if debugger.was_left:
        raise _Left
    return returned


def find_call(recording: Recording, label: str) -> RecordedCall:
    """Find a call by its label, such as ``resize[3]``; ``resize`` is its first one.

    Raises:
        Unknown: with the nearest label.
    """
    wanted = label if label.endswith("]") else f"{label}[0]"
    for call in recording.calls:
        if call.label == wanted:
            return call
    close = nearest(wanted, {call.label for call in recording.calls})
    raise Unknown("recorded call", label, None, close)


def debug(
    recording: Recording, call: RecordedCall, runner: Callable[..., Any] | None = None
) -> DebuggedCall:
    """Run a call; the debugger stops at the first line of the function.

    Args:
        recording: that has the call.
        call: of a Python function.
        runner: calls a function with its keyword arguments; by default in `pdb`.

    Raises:
        InvalidInput: it is not a Python function, has secrets, the recording is damaged, or the
            debugger was left.
    """
    document = next((f for f in recording.document.functions if f.name == call.function), None)
    code = (
        None if document is None else next((c for c in document.code if c.format == _FORMAT), None)
    )
    if document is None or code is None:
        hint = "other functions can be run again by a replay of the whole recording"
        raise InvalidInput("--debug-call", f"'{call.function}' is not a Python function", hint)
    if document.secrets:
        hint = "replay the whole recording, with the setting 'secrets' (DANDELION_SECRETS)"
        message = f"'{call.function}' has secrets, which no recording has"
        raise InvalidInput("--debug-call", message, hint)
    values = read_call_values(code.options.get("values", "{}"))
    inputs = _arguments(recording, document, call)
    finders = sys.meta_path.copy()
    try:
        returned = _outputs(document, code, values, inputs, runner or _in_debugger)
        outputs = _recorded(document, returned, call)
    except _Left:
        message = "the debugger was left before the call ended"
        raise InvalidInput("--debug-call", message, "let it go on with 'c'") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's code may raise anything
        same = call.error is not None and _answer(_failure(document.name, error)) == _answer(
            call.error
        )
        return DebuggedCall(same, _traceback(error))
    finally:
        sys.meta_path[:] = finders
    return DebuggedCall(call.outputs is not None and outputs == call.outputs)


def _failure(function: str, error: BaseException) -> ErrorRecord:
    """Make the error that a sandbox reports for what a function raised."""
    made: DandelionError
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        made = Exited(function, code & 0xFF)
    elif isinstance(error, OutputMismatch | InvalidReturnValue):
        made = BadOutput(function, str(error)[:_TEXT_LIMIT])
    else:
        kind = type(error).__name__
        try:
            text = str(error)
        except BaseException:  # the user's code may raise anything
            text = "(no text: str() of the exception failed)"
        made = Raised(function, (f"{kind}: {text}" if text else kind)[:_TEXT_LIMIT])
    return made.record()


def _answer(error: ErrorRecord) -> tuple[str, Mapping[str, Any]]:
    """Give what two runs of a call have in common: not the lines, nor what it printed."""
    fields = {k: v for k, v in error.fields.items() if k not in ("traceback", "stderr")}
    return error.type, fields


def _traceback(error: BaseException) -> str:
    """Write what was raised as Python does, without the frames of the debugger."""
    shown = error.__traceback__
    while shown is not None and not shown.tb_frame.f_code.co_filename.startswith(_SOURCE):
        shown = shown.tb_next
    return "".join(traceback.format_exception(type(error), error, shown))


def _outputs(
    document: FunctionDocument,
    code: CodeDocument,
    values: CallValues,
    inputs: dict[str, ItemSet | None],
    runner: Callable[..., Any],
) -> Any:
    """Call the function as a sandbox does, with the values that its annotations say."""
    files = inputs.pop(FILES, None)
    with attached({item.name: item.data for item in files or ()}):
        module = _loaded(document, code)
        function: Callable[..., Any] = getattr(module, code.options["entry"])
        outputs = runner(function, **arguments(values.inputs, inputs, module))
        if values.outputs:
            outputs = results(values.outputs, [set_spec(s).name for s in document.outputs], outputs)
        return list(outputs) if isinstance(outputs, GeneratorType) else outputs


def _loaded(document: FunctionDocument, code: CodeDocument) -> ModuleType:
    """Execute the sources of a function; the debugger shows their lines."""
    name = f"function {document.name}"  # that of no other module
    module = sys.modules[name] = ModuleType(name)
    own: dict[str, OwnModule] = {}
    for file, source in sorted(code.files.items()):
        kind, _, label = file.partition(":")
        compiled = _compiled(f"{_SOURCE}{document.name}: {label}>", content(source).bytes(), code)
        if kind == "part":
            exec(compiled, module.__dict__)
        else:
            own[label] = OwnModule(compiled, compiled.co_filename, kind == "package")
    if own:
        sys.meta_path.insert(0, OwnModules(own))
    shown = f"{_SOURCE}{document.name}>"
    exec(_compiled(shown, content(code.main).bytes(), code), module.__dict__)
    return module


def _compiled(name: str, source: bytes, code: CodeDocument) -> CodeType:
    text = source.decode("utf-8", "replace")
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    flags = __future__.annotations.compiler_flag if "values" in code.options else 0
    compiled: CodeType = compile(source, name, "exec", flags, dont_inherit=True)
    return compiled


def _arguments(
    recording: Recording, document: FunctionDocument, call: RecordedCall
) -> dict[str, ItemSet | None]:
    found = {}
    for declared, given in zip(document.inputs, call.inputs, strict=True):
        name = set_spec(declared).name
        fixed = document.static.get(name)
        if fixed is None:
            found[name] = recording.restored(given)
        else:
            items = tuple(item_content(value).item(item) for item, value in fixed.items())
            found[name] = ItemSet(name, items)
    return found


def _recorded(document: FunctionDocument, outputs: Any, call: RecordedCall) -> RecordedSets:
    """Write the outputs of a function down as the sandbox gives them."""
    specs = [set_spec(output) for output in document.outputs]
    return tuple([recorded_set(one) for one in returned_sets(specs, outputs, call.origin)])
