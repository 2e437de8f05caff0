"""``dandelion describe``: the details of one name."""

from __future__ import annotations

from typing import Any

import msgspec

from dandelion.cli.connection import connect
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments
from dandelion.data import SetSpec
from dandelion.frontend.records import Description
from dandelion.function import Limits
from dandelion.sizes import size_text


def run(arguments: Arguments, out: Output) -> int:
    """Describe a function, composition or library."""
    with connect(arguments) as client:
        description = client.describe(arguments.name, arguments.version_)
    if out.as_json:
        out.document(description)
        return 0
    out.line(f"{description.kind} {description.name}, {_version(description)}")
    _sets(description, out)
    if description.kind == "composition":
        out.line(description.record["text"].rstrip())
    elif description.kind == "function":
        _code(description.record, out)
        out.line(f"\nlimits: {_limits(description.record)}")
    else:
        size = size_text(description.record.get("size_bytes", 0))
        out.line(f"{size}, sha256 {description.record['digest']}")
    return 0


def _version(description: Description) -> str:
    if not description.versions:
        return "provided by the platform"
    others = [str(n) for n in description.versions if n != description.version]
    besides = f" (also registered: {', '.join(others)})" if others else ""
    return f"version {description.version}{besides}"


def _sets(description: Description, out: Output) -> None:
    rows = [("input", *_spec(spec)) for spec in description.inputs]
    rows += [("fixed", name, "") for name in description.static]
    rows += [("output", *_spec(spec)) for spec in description.outputs]
    out.table(("set", "name", "type"), rows)
    if rows:
        out.line("")


def _spec(spec: SetSpec) -> tuple[str, str]:
    return spec.name, f"{spec.type_text}, optional" if spec.optional else spec.type_text


def _limits(record: dict[str, Any]) -> str:
    """Write limits; those on the number of calls only where the function declares them."""
    limits, default = msgspec.convert(record.get("limits", {}), Limits), Limits()
    parts = [
        f"{size_text(limits.memory_bytes)} of memory, {limits.wall_s:g} s",
        f"{limits.cpu_s:g} s of CPU time",
        f"outputs of {size_text(limits.output_bytes)} in {limits.output_items} items",
    ]
    if limits.concurrency != default.concurrency:
        parts.append(f"{limits.concurrency} calls at once")
    if limits.queue_length != default.queue_length:
        parts.append(f"{limits.queue_length} more that wait")
    return ", ".join(parts)


def _code(record: dict[str, Any], out: Output) -> None:
    rows = [
        (
            code["format"],
            code.get("main", "")[:12],
            ", ".join(sorted(code.get("files", {}))),
            _options(code.get("options", {})),
            ", ".join([*code.get("packages", ()), *sorted(code.get("wheels", {}))]),
        )
        for code in record.get("code", ())
    ]
    out.table(("format", "main", "files", "options", "packages"), rows)


def _options(options: dict[str, str]) -> str:
    """Write options; `values` are the annotations, which the types of the sets show."""
    return ", ".join(f"{name}={text}" for name, text in sorted(options.items()) if name != "values")
