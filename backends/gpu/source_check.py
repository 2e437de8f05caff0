"""What a source may not say: ways to read files of the machine, and machine code.

This looks at the text alone, as a compiler's first phases see it, and refuses early and clearly.
It is not the wall: what a compiler or a kernel can reach is limited by the process that it runs in,
for whatever gets past here. Compilers differ in what they take for a trigraph or a continued line,
so a text must pass in every reading.

Refused in every source: includes by path, by a macro or in an unusual spelling; other directives
that name a file; assembler directives that read one. Refused in OpenCL C and portable sources:
inline assembly, which is code of the host there. CUDA and HIP sources may have it: it is code of
the device.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from dandelion.errors import InvalidFunction, Problem

from .source import CodeFormat, LoadedCode, header

_TRIGRAPHS = {"??=": "#", "??/": "\\", "??'": "^", "??(": "[", "??)": "]"}
# Texts may be large and are read by the node: each of these takes time in proportion to the text,
# and memory in proportion to the escapes of a literal, which are limited.
# A literal without an end goes on to the end of its line, so no comment begins there.
# Possessive quantifiers would say it more shortly, but miss matches before Python 3.11.5.
_TOKEN = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))"
    r'|"(?P<text>[^"\\\n]*(?:\\.[^"\\\n]*){0,262143})(?:"|(?P<long_text>(?=\\.))|(?P<open_text>))'
    r"|'[^'\\\n]*(?:\\.[^'\\\n]*){0,262143}(?:'|(?P<long_character>(?=\\.))|(?P<open_character>))",
    re.S,
)
_DIRECTIVE = re.compile(
    r"(?:#|%:)[ \t]*(?:include|include_next|import|embed)\b|__has_(?:include|embed)"
)
_HARMLESS = re.compile(r'#[ \t]*include[ \t]*(?:<(?:\w[\w.+-]*/)*\w[\w.+-]*>|"dandelion\.h")')
_PRAGMA = re.compile(r"""(?:\#|%:)[ \t]*pragma\b|\b_{1,2}[Pp]ragma\b""", re.X)
_FILE_PRAGMA = re.compile(
    r"dependency|include_alias|push_macro|pop_macro|\bmodule\b|__debug|\bcomment\b"
)
_LINE = re.compile(r'(?:#|%:)[ \t]*(?:line[ \t]+)?\d+[ \t]*"(?![\w.+ -]+")')
_ASSEMBLY = re.compile(r"\b(?:asm|__asm|__asm__)\b")
_PASTED = re.compile(r"(?<![ \t])(?:[ \t]*(?:##|%:%:))+[ \t]*")
_READS = re.compile(r"\.\s*(?:incbin|include)\b")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]+)|([0-7]{1,3})|u([0-9A-Fa-f]{4})|(.))", re.S)

_STRICT = frozenset({CodeFormat.OPENCL, CodeFormat.PORTABLE, CodeFormat.UNKNOWN})


def checked_source(code: LoadedCode) -> None:
    """Refuse a source that reads files of the machine or has machine code of the host.

    Raises:
        InvalidFunction: with the line at fault.
    """
    text = code.text
    if code.format == CodeFormat.PORTABLE:
        text = text.replace(header(), "")
    for reading in set(_readings(text)):
        _check(reading, code)


def _readings(text: str) -> Iterator[str]:
    """Give the text as different compilers read it: trigraphs or none, lines continued or not."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", " ")
    for trigraphs, spaces in itertools.product((False, True), repeat=2):
        reading = plain
        if trigraphs:
            reading = re.sub(r"\?\?[=/'()]", lambda found: _TRIGRAPHS[found[0]], reading)
        yield re.sub(r"\\[ \t\v\f]*\n" if spaces else r"\\\n", "", reading)


def _check(text: str, code: LoadedCode) -> None:
    for token in _TOKEN.finditer(text):
        if token.lastgroup in ("long_text", "long_character"):
            message = "a literal has more than 262143 escapes"
            _refuse(code, "literal", message, text, token.start())
    bare = _TOKEN.sub(_without_comment, text)
    match: re.Match[str] | None
    for match in _DIRECTIVE.finditer(bare):
        if not _HARMLESS.match(bare, match.start()):
            message = "only headers of the compiler can be included, as #include <name.h>"
            _refuse(code, "include", message, bare, match.start())
    end = 0
    for match in _PRAGMA.finditer(bare):
        if match.start() < end:
            continue  # the line was looked at from an earlier one on
        end = bare.find("\n", match.start()) + 1 or len(bare)
        line = bare[match.start() : end]
        if _FILE_PRAGMA.search(_unescaped(line)):
            message = "this pragma reads files or changes what words mean"
            _refuse(code, "pragma", message, bare, match.start())
    match = _LINE.search(bare)
    if match:
        _refuse(code, "line", "a #line names a file by its plain name only", bare, match.start())
    strings = "".join(found["text"] or "" for found in _TOKEN.finditer(text))
    if _READS.search(_unescaped(strings)):
        _refuse(code, "assembly", "assembler directives that read files are refused", "", 0)
    if code.format in _STRICT:
        words = _TOKEN.sub(_without_literal, text)
        match = _ASSEMBLY.search(words) or _ASSEMBLY.search(_PASTED.sub("", words))
        if match:
            message = "inline assembly is refused: it would be code of the host"
            _refuse(code, "assembly", message, words, match.start())


def _without_comment(found: re.Match[str]) -> str:
    return " " if found["comment"] else found[0]


def _without_literal(found: re.Match[str]) -> str:
    return found[0] if found.lastgroup in ("open_text", "open_character") else " "


def _unescaped(text: str) -> str:
    """Resolve escapes, so that a word cannot hide behind them."""

    def character(found: re.Match[str]) -> str:
        hexadecimal, octal, unicode, plain = found.groups()
        if plain:
            return " " if plain in "ntvfr" else plain
        return chr(int(hexadecimal or unicode or octal, 8 if octal else 16) & 0xFFFF)

    return _ESCAPE.sub(character, text)


def _refuse(code: LoadedCode, kind: str, message: str, text: str, at: int) -> None:
    line = text[at:].partition("\n")[0]
    raise InvalidFunction((Problem(kind, message, code.name, found=line[:80]),))
