"""``dandelion doctor``: what works on this machine, what does not, and how to get it.

Backends and stores are loaded by name, one after the other, and each is asked for what is there. No
engine is started. A backend whose module has a function ``enforcement() -> dict`` is asked as well
what confines a function; it may make one sandbox to find out.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import platform
from collections.abc import Callable, Mapping

import msgspec

from dandelion import __version__
from dandelion.cli.output import Output, size_text
from dandelion.cli.parser import Arguments
from dandelion.driver import Driver, backend_names, load_driver
from dandelion.errors import BackendUnavailable, DandelionError
from dandelion.memory import SharedDomain


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that was looked at.

    Attributes:
        area: machine, memory, backend, sandbox or registry.
        name: of the thing.
        works: whether it can be used here.
        detail: what is there, or what is missing.
        remedy: how to get it.
    """

    area: str
    name: str
    works: bool
    detail: str
    remedy: str = ""


def run(arguments: Arguments, out: Output) -> int:
    """Look at everything; 1 if a node could not run functions here."""
    findings = [*machine(), arena(), *backends(), *stores()]
    if out.as_json:
        out.document({"version": __version__, "findings": findings})
    else:
        rows = [(f.area, f.name, "ok" if f.works else "--", f.detail, f.remedy) for f in findings]
        out.table(("area", "name", "", "what is there", "how to get it"), rows)
    memory = all(f.works for f in findings if f.area == "memory")
    compute = any(f.works for f in findings if f.area == "backend" and f.name not in _NO_COMPUTE)
    return 0 if memory and compute else 1


_NO_COMPUTE = ("null", "http")


def machine() -> list[Finding]:
    """Tell Python, kernel and cores."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    cores = len(os.sched_getaffinity(0))
    return [
        Finding("machine", "python", True, python),
        Finding("machine", "system", platform.system() == "Linux", system),
        Finding("machine", "cores", True, str(cores)),
    ]


def arena() -> Finding:
    """Make a small arena and touch it."""
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
        resources = driver.probe()
    except BackendUnavailable as error:
        return [Finding("backend", name, False, error.missing, error.remedy)]
    except Exception as error:  # a third party's backend may raise anything, and is to be named
        return [Finding("backend", name, False, f"{type(error).__name__}: {error}")]
    if not resources:
        return [Finding("backend", name, False, "there is no device")]
    runs = ", ".join(sorted(driver.formats))
    found = []
    for resource in resources:
        memory = f", {size_text(resource.memory_bytes)}" if resource.memory_bytes else ""
        detail = f"{resource.description}{memory} (runs {runs}; {driver.hosting.value})"
        found.append(Finding("backend", f"{name}:{resource.name}", True, detail))
    return found + _sandbox(name, driver)


def _sandbox(name: str, driver: Driver) -> list[Finding]:
    """Ask a backend that runs untrusted code on the CPU what confines it here."""
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
    found = [Finding("registry", "memory", True, "in this process, gone with it")]
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
