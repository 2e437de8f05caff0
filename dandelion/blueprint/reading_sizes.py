"""Reading the sizes of a blueprint."""

from __future__ import annotations

from dandelion.blueprint.document import DocumentReader, Json, kind_of
from dandelion.blueprint.records import (
    MAX_DEPTH,
    Absolute,
    Add,
    ByBatch,
    CeilDiv,
    Elements,
    FromInput,
    Mul,
    ScalarType,
    Size,
    Sizeof,
)
from dandelion.errors import nearest

SCALARS = tuple(t.value for t in ScalarType)
"""Names of the types of arguments by value."""

_SIZES = (
    "Absolute",
    "Sizeof",
    "FromInput",
    "Elements",
    "AbsoluteByBatch",
    "AbsoluteByBatchEven",
    "Add",
    "Mul",
    "CeilDiv",
)
_BROKEN = Absolute(1)


class SizeReader(DocumentReader):
    """Reads sizes; `problems` grows."""

    def size(self, where: str, value: Json, depth: int = 0) -> Size:
        if isinstance(value, int) and not isinstance(value, bool):
            return Absolute(value)
        if depth > MAX_DEPTH:
            self.report("depth", where, f"arithmetic is nested more than {MAX_DEPTH} deep")
            return _BROKEN
        tag, content = self.tagged(where, value, _SIZES)
        if tag in ("Add", "Mul", "CeilDiv"):
            return self.arithmetic(where, tag, content, depth)
        return self.plain_size(where, tag, content)

    def plain_size(self, where: str, tag: str, value: Json) -> Size:
        match tag:
            case "Absolute":
                return Absolute(self.integer(where, value))
            case "AbsoluteByBatch" | "AbsoluteByBatchEven":
                return ByBatch(self.integer(where, value), tag.endswith("Even"))
            case "Sizeof":
                return Sizeof(self.name(where, value))
            case "FromInput":
                fields = self.fields(where, value, ("bufname", "idx"))
                name = self.name(f"{where}.bufname", fields.get("bufname", "?"))
                return FromInput(name, self.integer(f"{where}.idx", fields.get("idx", 0)))
            case "Elements":
                fields = self.fields(where, value, ("bufname", "dtype"))
                name = self.name(f"{where}.bufname", fields.get("bufname", "?"))
                return Elements(name, self.dtype(f"{where}.dtype", fields.get("dtype", "u8")))
        return _BROKEN

    def dtype(self, where: str, value: Json) -> ScalarType:
        if isinstance(value, str) and value in SCALARS:
            return ScalarType(value)
        close = nearest(value, SCALARS) if isinstance(value, str) else None
        self.report(
            "dtype", where, "unknown element type", expected=" or ".join(SCALARS),
            found=kind_of(value), close=close,
        )  # fmt: skip
        return ScalarType.U8

    def arithmetic(self, where: str, tag: str, value: Json, depth: int) -> Size:
        parts: tuple[Size, ...] = self.items(
            f"{where}.{tag}", value, lambda w, v: self.size(w, v, depth + 1)
        )
        count = len(parts)
        if (tag == "CeilDiv" and count != 2) or not count:
            wanted = "[dividend, divisor]" if tag == "CeilDiv" else "at least one size"
            self.wrong(where, f"{tag}: {wanted}", value)
            return _BROKEN
        if tag == "CeilDiv":
            return CeilDiv(parts[0], parts[1])
        return Add(parts) if tag == "Add" else Mul(parts)
