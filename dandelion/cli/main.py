"""The entry point of the command line: parse, run one verb, report errors, set the exit code.

==== ======================================================================
0    done
1    the command failed, or its input is invalid
2    the command line is wrong
3    the node cannot be reached
130  interrupted
==== ======================================================================

Only the module of the verb is imported, so ``dandelion check`` does not load the server.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType

from dandelion.cli.output import Output, WrongUsage
from dandelion.cli.parser import Arguments, make_parser
from dandelion.errors import DandelionError
from dandelion.frontend.problem import Unauthenticated, Unreachable
from dandelion.interrupts import ended_by_interrupts
from dandelion.search_path import loaded_without_threads

DONE, FAILED, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130
_COMPUTING = frozenset({"bench", "dev", "export", "replay", "run", "serve"})
"""Verbs whose process may compute with numpy: backends of others in a node, or a model."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: without the program's name; by default those of the process.

    Returns:
        The exit code; see above.
    """
    _open_standard_files()
    _make_streams_writable()
    words = sys.argv[1:] if arguments is None else arguments
    out = Output("--json" in words)
    parsed = Arguments(debug=False)
    try:
        make_parser().parse_args(words, namespace=parsed)
        verb: Callable[[Arguments, Output], int] = _loaded(parsed.verb).run
        return verb(parsed, out)
    except SystemExit as leaving:  # argparse printed help or the version
        return leaving.code if isinstance(leaving.code, int) else USAGE
    except DandelionError as error:
        if parsed.debug:
            traceback.print_exc()
        if isinstance(error, Unauthenticated):
            error.add_note("a command sends DANDELION_TOKEN, or that of --token @FILE")
        out.error(error)
        return _code_of(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output exited, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        if parsed.debug:
            traceback.print_exc()
        reason = error.strerror or str(error)
        out.failure(f"{error.filename}: {reason}" if error.filename else reason)
        return FAILED


def _loaded(verb: str) -> ModuleType:
    """Load the module of a verb, with numpy and what else it needs."""
    name = f"dandelion.cli.{verb}"
    with ended_by_interrupts():
        if verb in _COMPUTING:
            return importlib.import_module(name)
        with loaded_without_threads():
            return importlib.import_module(name)


def _open_standard_files() -> None:
    """Open the null device for standard files that are closed.

    Else what is opened next has their numbers: a socket that libuv refuses to close, or memory that
    a child process gets the null device in place of.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # this is the lowest free number
            os.set_inheritable(opened, True)


def _make_streams_writable() -> None:
    """Accept every text: a stream may be closed, or have an encoding without some characters."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _code_of(error: DandelionError) -> int:
    if isinstance(error, WrongUsage):
        return USAGE
    return UNREACHABLE if isinstance(error, Unreachable) else FAILED
