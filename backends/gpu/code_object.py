"""The metadata of an AMD code object: its architecture, its kernels, the sizes of their parameters.

They lie in a note, in MessagePack. Parameters that the runtime fills in itself are hidden.

Source: LLVM's "User Guide for AMDGPU Backend", code object V3 metadata and later.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from .elf_sections import NOTE, Section

_METADATA = 32
_OWNER = b"AMDGPU\0"
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**32)]


class _Argument(msgspec.Struct):
    value_kind: str = msgspec.field(name=".value_kind")
    size: _Bytes = msgspec.field(name=".size")


class _Kernel(msgspec.Struct):
    name: str = msgspec.field(name=".name")
    args: list[_Argument] | None = msgspec.field(name=".args", default=None)
    arguments_size: _Bytes = msgspec.field(name=".kernarg_segment_size", default=0)

    def sizes(self) -> tuple[int, ...] | None:
        if self.args is None:
            return None if self.arguments_size else ()
        return tuple(a.size for a in self.args if not a.value_kind.startswith("hidden_"))


class Metadata(msgspec.Struct):
    """What the note says, as far as it is used here."""

    all: list[_Kernel] = msgspec.field(name="amdhsa.kernels", default_factory=list)
    target: str = msgspec.field(name="amdhsa.target", default="")

    @property
    def arch(self) -> str:
        """Architecture, without its features; empty if it is not told."""
        return self.target.rpartition("--")[2].partition(":")[0]

    def kernels(self) -> dict[str, tuple[int, ...] | None]:
        """Give the sizes of each kernel's parameters in bytes; None where they are not told."""
        return {kernel.name: kernel.sizes() for kernel in self.all}


def metadata(sections: Sequence[Section]) -> Metadata | None:
    """Read the metadata of a file; None if it has none.

    Raises:
        struct.error, ValueError, LookupError, msgspec.MsgspecError, RecursionError: it is broken.
    """
    for section in sections:
        if section.kind == NOTE:
            for content in _notes(section.data):
                return msgspec.msgpack.decode(content, type=Metadata)
    return None


def _notes(data: memoryview) -> Iterator[memoryview]:
    at = 0
    while at + 12 <= len(data):
        name_size, size, kind = struct.unpack_from("<III", data, at)
        start = at + 12 + -(-name_size // 4) * 4
        if kind == _METADATA and data[at + 12 : at + 12 + len(_OWNER)] == _OWNER:
            yield data[start : start + size]
        at = start + -(-size // 4) * 4
