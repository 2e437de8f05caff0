"""Read the text of a PTX module: its kernels, the sizes of their parameters, its variables.

Nothing here takes longer than the text is: statements are taken apart once, at their ends.

Source: NVIDIA's "Parallel Thread Execution ISA", kernel function parameters and state spaces.
"""

from __future__ import annotations

import math
import re

_COMMENT = re.compile(rb"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_POINTER = re.compile(rb"\.ptr\s+\.global\b")  # says of a parameter where it points to
_VARIABLE = re.compile(rb"(?<![\w.])\.global\b")
_FUNCTION = re.compile(rb"\.func\b")
_MALLOC = re.compile(rb"\bmalloc\b")
_ENTRY = re.compile(rb"\.entry\s+([A-Za-z_$%][\w$]*)\s*(\(?)")
_PARAMETER = re.compile(
    rb"\s*\.param\s+(?:\.align\s+\d{1,9}\s+)?\.[bsuf](8|16|32|64|128)\s"
    rb"(?:\s*\.(?:ptr|global|const|local|shared)\b|\s*\.align\s+\d{1,9})*"
    rb"\s*[A-Za-z_$%][\w$]*((?:\s*\[\s*\d{1,9}\s*\]){0,3})\s*"
)
_DIGITS = re.compile(rb"\d+")


def is_ptx(text: bytes) -> bool:
    """Tell whether bytes may be PTX."""
    return b".version" in text


def has_variables(text: bytes) -> bool:
    """Tell whether a module has, or may have, variables that outlive a launch."""
    return _VARIABLE.search(_POINTER.sub(b"", text)) is not None


def allocates(text: bytes) -> bool:
    """Tell whether a module declares the function that allocates."""
    for statement in re.split(rb"[;{]", text):
        declared = _FUNCTION.search(statement)
        if declared is not None and _MALLOC.search(statement, declared.end()):
            return True
    return False


def kernels(text: bytes) -> dict[str, tuple[int, ...] | None]:
    """Give the sizes of each kernel's parameters in bytes; None where they cannot be read.

    Raises:
        ValueError: a list of parameters has no end.
    """
    plain = _COMMENT.sub(b" ", text)
    found: dict[str, tuple[int, ...] | None] = {}
    at = 0
    while (match := _ENTRY.search(plain, at)) is not None:
        at = plain.index(b")", match.end()) if match[2] else match.end()
        found[match[1].decode()] = _sizes(plain[match.end() : at])
    return found


def _sizes(declared: bytes) -> tuple[int, ...] | None:
    sizes = []
    for parameter in declared.split(b",") if declared.strip() else ():
        match = _PARAMETER.fullmatch(parameter)
        if match is None:
            return None
        sizes.append(int(match[1]) // 8 * math.prod(map(int, _DIGITS.findall(match[2]))))
    return tuple(sizes)
