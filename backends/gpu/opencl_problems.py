"""What is wrong with a GPU function that OpenCL cannot compile or launch."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dandelion.errors import InvalidBlueprint, InvalidFunction, Problem, nearest

from .compiling import LOG_BYTES

_BEFORE_LOG = re.compile(r"\A.*?^Build on [^\n]*:\n", re.DOTALL | re.MULTILINE)
_OWN_FILE = re.compile(r"[^\s:]*/tempfile_\w+\.cl(?=:\d)")
_AFTER_LOG = re.compile(r"\n[^\n]* failed to build the program|\n\((?:options|source saved)")


def not_compiled(log: str, name: str) -> InvalidFunction:
    """Return the error of a source that does not compile, from what pyopencl says of it."""
    words = (compiler_words(log, name) or log)[:LOG_BYTES]
    return InvalidFunction((Problem("compile", "it does not compile", name, excerpt=words),))


def unfit(symbol: str, code: str, message: str) -> InvalidBlueprint:
    """Return the error of a launch that does not fit its kernel or the device."""
    return InvalidBlueprint((Problem(code, message, f"kernels.{symbol}"),))


def unknown_kernel(symbol: str, known: Iterable[str]) -> InvalidBlueprint:
    """Return the error of a launch of a kernel that its program does not have.

    PoCL's functions of OpenCL C are macros, which rename a kernel of the same name as well.
    """
    renamed = f"_cl_{symbol}" in known
    hint = "give the kernel another name: OpenCL C has a function of this one" if renamed else ""
    problem = Problem(
        "unknown-kernel",
        f"the module has no kernel '{symbol}'",
        f"kernels.{symbol}",
        nearest="" if renamed else nearest(symbol, known) or "",
        hint=hint,
    )
    return InvalidBlueprint((problem,))


def compiler_words(text: str, name: str) -> str:
    """Return what the compiler says of a source, without paths of this machine.

    It is empty if the compiler has failed and not the source, for example without memory.
    """
    inner = _OWN_FILE.sub(lambda _: name, _BEFORE_LOG.sub("", text))
    return _AFTER_LOG.split(inner, maxsplit=1)[0].strip()
