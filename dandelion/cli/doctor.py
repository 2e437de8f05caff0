"""``dandelion doctor``: what works on this machine, what does not, and how to get it.

Backends and stores are loaded by name, and each is probed. No engine is started. If the module of a
backend has a function ``enforcement() -> dict``, it reports how functions are confined; it may make
a sandbox for that.
"""

from __future__ import annotations

import importlib
import itertools
import os
import pkgutil
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from dandelion import __version__, extension_modules
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments
from dandelion.driver import Driver, backend_names, load_driver
from dandelion.errors import BackendUnavailable, DandelionError
from dandelion.memory import SharedDomain
from dandelion.sizes import size_text


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one check.

    Attributes:
        area: machine, memory, backend, sandbox or registry.
        name: what was checked.
        works: whether it can be used on this machine.
        detail: what was found, or what is missing.
        remedy: how to install it.
    """

    area: str
    name: str
    works: bool
    detail: str
    remedy: str = ""


def run(arguments: Arguments, out: Output) -> int:
    """Run all checks; return 1 if a node cannot run functions on this machine."""
    findings = [*machine(), arena(), *backends(), *stores()]
    verdict = judge(findings)
    if out.as_json:
        out.document({"version": __version__, "verdict": verdict, "findings": findings})
    else:
        rows = [(f.area, f.name, "ok" if f.works else "--", f.detail) for f in merged(findings)]
        out.table(("area", "name", "", "found"), rows)
        for line in lines_of(verdict, findings):
            out.line(line)
    return 0 if verdict.runs_functions else 1


_NO_COMPUTE = ("null", "http", "s3", "kv", "files")


class Verdict(msgspec.Struct, frozen=True):
    """The summary of all findings.

    Attributes:
        runs_functions: whether a node can run users' functions on this machine.
        works, does_not_work: names of backends.
    """

    runs_functions: bool
    works: tuple[str, ...]
    does_not_work: tuple[str, ...]


def judge(findings: Sequence[Finding]) -> Verdict:
    """Summarize the findings."""
    backends = {f.name.partition(":")[0]: f.works for f in findings if f.area == "backend"}
    backends |= {f.name: False for f in findings if f.area == "sandbox" and not f.works}
    works = tuple(name for name, good in backends.items() if good)
    missing = tuple(name for name, good in backends.items() if not good)
    memory = all(f.works for f in findings if f.area == "memory")
    return Verdict(memory and bool({*works} - {*_NO_COMPUTE}), works, missing)


def lines_of(verdict: Verdict, findings: Sequence[Finding]) -> Iterator[str]:
    """Write the verdict, and a line for each command that installs a missing part."""
    yield ""
    yield f"works: {', '.join(verdict.works) or 'nothing'}"
    yield f"does not work: {', '.join(verdict.does_not_work) or 'nothing'}"
    for finding in findings:
        if finding.works or not finding.remedy:
            continue
        command, _, rest = finding.remedy.partition(", ")
        besides = f" (it also needs {rest.removeprefix('and ')})" if rest else ""
        yield f"\nto use {finding.name}{besides}:"
        yield f"    {command}"
    yield ""
    if verdict.runs_functions:
        yield "verdict: a node can run functions on this machine; to start one:"
        yield "    dandelion serve"
    else:
        yield "verdict: a node cannot run functions on this machine"


def merged(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Merge neighbouring findings that differ only in numbers, such as cores."""

    def pattern(finding: Finding) -> tuple[object, ...]:
        text = re.sub(r"\d+", "#", f"{finding.name} {finding.detail}")
        return finding.area, text, finding.works, ":" in finding.name or finding.name

    for _, group in itertools.groupby(findings, pattern):
        first, *others = group
        if others:
            count = f"{first.detail}; {len(others) + 1} alike"
            span = f"{first.name} to {others[-1].name.rpartition(':')[2]}"
            first = msgspec.structs.replace(first, name=span, detail=count)
        yield first


def machine() -> list[Finding]:
    """Report Python, kernel and cores."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    cores = len(os.sched_getaffinity(0))
    return [
        Finding("machine", "python", True, python),
        Finding("machine", "system", platform.system() == "Linux", system),
        Finding("machine", "cores", True, str(cores)),
        _form(),
    ]


def _form() -> Finding:
    """Report whether calls run in extension modules."""
    name = "extension modules"
    outdated = extension_modules.outdated()
    if outdated:
        about = f"{len(outdated)} are older than their sources, such as {outdated[0].name}"
        return Finding("machine", name, False, about, extension_modules.REMEDY)
    if extension_modules.in_use():
        return Finding("machine", name, True, "in use")
    about = "not compiled; calls are up to twice as fast with them (in a checkout: make extensions)"
    return Finding("machine", name, True, about)


def arena() -> Finding:
    """Make a small arena and write to it."""
    try:
        domain = SharedDomain(1 << 20)
        context = domain.acquire(4096)
        context.view[0] = 1
        domain.close()
    except (OSError, DandelionError) as error:
        return Finding("memory", "arena", False, str(error), "needs Linux with memfd_create")
    return Finding("memory", "arena", True, "memfd, sealed and mapped")


def backends() -> list[Finding]:
    """Probe every installed backend."""
    return [finding for name in backend_names() for finding in _backend(name)]


def _backend(name: str) -> list[Finding]:
    try:
        driver = load_driver(name)
        resources = driver.factory().probe()
    except BackendUnavailable as error:
        return [Finding("backend", name, False, error.missing, error.remedy)]
    except Exception as error:  # a backend of a third party may raise any exception
        return [Finding("backend", name, False, f"{type(error).__name__}: {error}")]
    if not resources:
        return [Finding("backend", name, False, "no device found")]
    runs = ", ".join(sorted(driver.formats))
    found = []
    for resource in resources:
        memory = f", {size_text(resource.memory_bytes)}" if resource.memory_bytes else ""
        detail = f"{resource.description}{memory} (runs {runs}; {driver.hosting.value})"
        found.append(Finding("backend", f"{name}:{resource.name}", True, detail))
    return found + _sandbox(name, driver)


def _sandbox(name: str, driver: Driver) -> list[Finding]:
    """Report how a backend confines untrusted code on the CPU."""
    enforcement: Callable[[], Mapping[str, str]] | None
    enforcement = getattr(importlib.import_module(type(driver).__module__), "enforcement", None)
    if enforcement is None:
        return []
    try:
        facts = enforcement()
    except DandelionError as error:
        return [Finding("sandbox", name, False, str(error))]
    return [Finding("sandbox", f"{name}: {what}", True, words) for what, words in facts.items()]


def stores() -> list[Finding]:
    """Import every store of the catalogue."""
    found = [Finding("registry", "memory", True, "in this process, lost when it exits")]
    package = importlib.import_module("dandelion.registry")
    for module in pkgutil.iter_modules(package.__path__):
        name = f"{package.__name__}.{module.name}"
        try:
            opens = hasattr(importlib.import_module(name), "open_catalog")
        except ImportError as error:
            found.append(Finding("registry", module.name, False, str(error)))
            continue
        if opens:
            found.append(Finding("registry", module.name, True, f"{module.name}:PATH"))
    return found
