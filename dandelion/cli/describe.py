"""``dandelion describe``: all about one name."""

from __future__ import annotations

from typing import Any

from dandelion.cli.output import Output, size_text
from dandelion.cli.parser import Arguments
from dandelion.data import SetSpec
from dandelion.frontend.client import Client
from dandelion.frontend.records import Description


def run(arguments: Arguments, out: Output) -> int:
    """Describe a function, composition or library."""
    with Client(arguments.url) as client:
        description = client.describe(arguments.name, arguments.version_)
    if out.as_json:
        out.document(description)
        return 0
    versions = ", ".join(map(str, description.versions)) or "of the platform"
    out.line(f"{description.kind} {description.name}, version {description.version} ({versions})")
    _sets(description, out)
    if description.kind == "composition":
        out.line(f"\n{description.record['text'].rstrip()}")
    elif description.kind == "function":
        _code(description.record, out)
    else:
        size = size_text(description.record.get("size_bytes", 0))
        out.line(f"{size}, sha256 {description.record['digest']}")
    return 0


def _sets(description: Description, out: Output) -> None:
    rows = [("input", *_spec(spec)) for spec in description.inputs]
    rows += [("fixed", name, "", "") for name in description.static]
    rows += [("output", *_spec(spec)) for spec in description.outputs]
    out.table(("set", "name", "dtype", "shape"), rows)


def _spec(spec: SetSpec) -> tuple[str, str, str]:
    shape = "x".join("?" if n < 0 else str(n) for n in spec.shape or ())
    return spec.name, spec.dtype or "bytes", shape


def _code(record: dict[str, Any], out: Output) -> None:
    rows = [
        (
            code["format"],
            code.get("main", "")[:12],
            ", ".join(sorted(code.get("files", {}))),
            ", ".join(f"{k}={v}" for k, v in sorted(code.get("options", {}).items())),
        )
        for code in record.get("code", ())
    ]
    out.table(("format", "main", "files", "options"), rows)
