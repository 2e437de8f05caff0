"""Write the pages errors.md and settings.md from the code: ``python -m docs.reference_pages``."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dandelion.cli.settings import setting_default
from dandelion.errors import Blame, DandelionError
from dandelion.failures import KINDS
from dandelion.function import Limits
from dandelion.settings import Settings, TenantSettings

from .error_advice import ADVICE

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
_WRITTEN = "<!-- Written by docs/reference_pages.py from the code; do not edit. -->\n"
_PACKAGES = (
    (ROOT / "dandelion", "dandelion"),
    (ROOT / "backends", "dandelion.backends"),
    (ROOT / "registry", "dandelion.registry"),
)

# --- errors -------------------------------------------------------------------------------------

_BLAMED = {
    Blame.CALLER: "the request",
    Blame.FUNCTION: "the function",
    Blame.CAPACITY: "nothing: the same may succeed later",
    Blame.PLATFORM: "the platform or the machine",
}
_ERRORS_HEAD = """# Errors

Every error has a kind, an HTTP status, a side at fault, and a message: what happened, where, and what to do. A program
gets it as an exception of that class, in-process and from a client; `dandelion.DandelionError` is the base of all. Over
HTTP it is a [problem document](http.md#problems) whose `type` ends with the kind.

Where to look first:

| what you see | look at |
|---|---|
| the node does not start | [InvalidInput](#invalidinput), [Conflict](#conflict), [CatalogUnavailable](#catalogunavailable), [BackendUnavailable](#backendunavailable) |
| a client cannot connect | [Unreachable](#unreachable), [ForeignHost](#foreignhost), [Unauthenticated](#unauthenticated) |
| a registration is refused | [InvalidFunction](#invalidfunction), [InvalidComposition](#invalidcomposition), [InvalidBlueprint](#invalidblueprint) |
| a call fails each time | [Raised](#raised), [BadOutput](#badoutput), [Unauthorized](#unauthorized); then [debugging.md](debugging.md) |
| a call fails under load | [Overloaded](#overloaded), [ContextFull](#contextfull), [DeadlineExceeded](#deadlineexceeded); then [tuning.md](tuning.md) |
| a call fails now and then | [EngineDied](#enginedied), [RequestInterrupted](#requestinterrupted); then [attempts](dsl.md#failures) |
| a name is unknown after a restart | [Unknown](#unknown) |
"""  # noqa: E501 - rows of a table


@functools.cache
def error_classes() -> dict[str, type[DandelionError]]:
    """Find all classes of errors in the sources, in their order."""
    bases: dict[str, tuple[str, tuple[str, ...]]] = {}
    for folder, package in _PACKAGES:
        for file in sorted(folder.rglob("*.py")):
            if "testing" in file.parts:
                continue
            module = ".".join([package, *file.relative_to(folder).with_suffix("").parts])
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    names = tuple(b.id for b in node.bases if isinstance(b, ast.Name))
                    bases[node.name] = (module, names)

    def is_error(name: str) -> bool:
        _, above = bases.get(name, ("", ()))
        return name == "DandelionError" or any(is_error(one) for one in above)

    return {
        name: getattr(importlib.import_module(module), name)
        for name, (module, _) in bases.items()
        if name != "DandelionError" and is_error(name)
    }


def errors_page() -> str:
    """Write errors.md.

    Raises:
        KeyError: an error has no advice.
    """
    classes = error_classes()
    parts = [_WRITTEN, _ERRORS_HEAD]
    families: dict[str, list[type[DandelionError]]] = {}
    for name in ADVICE:
        families.setdefault(_family(classes[name]), []).append(classes[name])
    missing = classes.keys() - ADVICE.keys()
    if missing:
        raise KeyError(f"docs/error_advice.py has nothing about {', '.join(sorted(missing))}")
    for family, members in families.items():
        parts.append(f"## {family}\n")
        parts += [_error(cls) for cls in members]
    return "\n".join(parts)


def _family(cls: type[DandelionError]) -> str:
    module = cls.__module__
    if module.endswith(("problem", "kserve.errors")):
        return "HTTP and clients"
    names = {base.__name__ for base in cls.__mro__}
    if names & {"CatalogError", "CatalogCorrupt", "CatalogUnavailable"}:
        return "Names and the catalogue"
    if "CapacityError" in names or cls.__name__ == "QuotaExceeded":
        return "Capacity"
    if "FunctionError" in names or cls.__name__ == "SecretMissing":
        return "Functions"
    if module.startswith("dandelion.asynchronous") or cls.__name__ in {
        "ApplicationFailed",
        "DeadlineExceeded",
        "Cancelled",
    }:
        return "Invocations"
    return "Input" if cls.blame is Blame.CALLER else "The platform"


def _error(cls: type[DandelionError]) -> str:
    cause, action = ADVICE[cls.__name__]
    facts = [f"Status {cls.status}", f"at fault: {_BLAMED[cls.blame]}"]
    if cls.__name__ == "ApplicationFailed":
        facts = ["Status and side at fault: those of its cause"]
    if cls.__name__ in KINDS:
        facts.append("[can be caught](dsl.md#failures)")
    meaning = inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return (
        f"### {cls.__name__}\n\n{'; '.join(facts)}.\n\n{meaning}\n\n"
        f"- **Cause:** {cause}\n- **What to do:** {action}\n"
    )


# --- settings -----------------------------------------------------------------------------------

_SETTINGS_HEAD = """# Settings

Settings of `dandelion serve` come from a TOML file, the environment and flags;
[cli.md](cli.md#serve) has the rules. The setting `max_waiting` is `max_waiting = 100` in the file,
`DANDELION_MAX_WAITING=100` in the environment, and `--max-waiting 100` as a flag. A program gives
`dd.Node(dd.Settings(max_waiting=100))`. Sizes are in bytes and take units: `512MiB`. Times are in
seconds.
"""
_SECTIONS = {
    "Address and callers": (
        r"host|port|hosts|cors_origins|tokens|allow_anonymous|secrets|tls_.*|protocols|http2"
        r"|shared_memory_prefix|grpc_.*"
    ),
    "Connections": r"frontends|max_connections.*|(head|idle|body)_(timeout|rate)_.*",
    "Requests": r"body_limit_bytes|items_limit|default_deadline_s|max_waiting",
    "What the node has": r"catalog|backends|options|engines|arena_bytes|functions_bytes|cache_bytes"
    r"|.*spin_us",
    "Packages of functions": r"packages_.*",
    "Cluster": r"peers|cluster.*",
    "Running": r"partitioning|policy|fuse|tenants",
    "Largest limits of functions": r"max_.*",
    "Observation": r"keep_.*|log_bytes|otlp_.*|access_log",
    "Asynchronous invocations": r"async_.*|callback_.*",
    "Others": r".*",
}


def settings_page() -> str:
    """Write settings.md."""
    documented = _attributes(Settings)
    rows: dict[str, list[str]] = {section: [] for section in _SECTIONS}
    for field in msgspec.structs.fields(Settings):
        section = next(s for s, names in _SECTIONS.items() if re.fullmatch(names, field.name))
        cells = (f"`{field.name}`", _code(setting_default(field.name)), documented[field.name])
        rows[section].append(_row(cells))
    parts = [_WRITTEN, _SETTINGS_HEAD]
    for section, lines in rows.items():
        if lines:
            parts.append(f"## {section}\n\n{_row(('setting', 'default', 'meaning'))}")
            parts[-1] += "\n|---|---|---|\n" + "\n".join(lines) + "\n"
    parts.append(_table_of(TenantSettings, "Quotas of a tenant", "In `[tenants.NAME]`."))
    parts.append(
        _table_of(
            Limits,
            "Limits of a function",
            "In `limits=` of a function. The settings `max_...` are the largest values.",
        )
    )
    return "\n".join(parts)


def _table_of(kind: type[msgspec.Struct], title: str, intro: str) -> str:
    documented = _attributes(kind)
    lines = [f"## {title}", "", intro, "", _row(("name", "default", "meaning")), "|---|---|---|"]
    for field in msgspec.structs.fields(kind):
        default = "no limit" if field.default is None else _code(_plain(field.name, field.default))
        lines.append(_row((f"`{field.name}`", default, documented[field.name])))
    return "\n".join(lines) + "\n"


def _plain(name: str, value: Any) -> str:
    if name.endswith("_bytes") and value % (1 << 20) == 0:
        return f"{value >> 20}MiB"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _attributes(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Read the section ``Attributes:`` of a docstring, where names may share a text."""
    text = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
    found = {}
    for names, words in re.findall(r"^    (\w[\w, ]*): (.*(?:\n(?!    \w).*)*)", text, re.M):
        for name in names.split(", "):
            plain = " ".join(words.split()).replace("``", "`")
            found[name] = re.sub(r"`docs/([\w-]+\.md)`", r"[\1](\1)", plain)
    return found


def _code(text: str) -> str:
    if text == "none" or " " in text:
        return text
    return f"`{text}`".replace(",", "`, `")


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def pages() -> Iterator[tuple[str, str]]:
    """Give the generated pages, by file name."""
    yield "errors.md", errors_page()
    yield "settings.md", settings_page()


if __name__ == "__main__":
    for file, page in pages():
        (HERE / file).write_text(page, "utf-8")
