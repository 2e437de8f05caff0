"""Description of this machine and this checkout.

Another process looks for devices, since a driver that was loaded once stays loaded: it would take
memory of the device from what is measured, and disturb processes that are forked. As a program,
this module prints the devices of the first backend that works here, as JSON.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from dandelion import extension_modules
from dandelion.driver import load_driver
from dandelion.errors import BackendUnavailable, DandelionError
from dandelion.search_path import environment

from .processes import module

BACKENDS = ("cuda", "hip", "opencl")
"""Backends of GPU functions, best first."""

_LIBRARIES = ("msgspec", "networkx", "numpy", "uvicorn", "uvloop")
_PROBE_S = 60.0
_VENDORS = {"nvidia", "amd", "advanced", "micro", "devices", "intel", "geforce", "tesla", "quadro"}
_VENDORS |= {"radeon", "instinct", "graphics", "arc"}
_PROCESSORS = ("epyc", "xeon", "ryzen", "threadripper", "graviton", "neoverse", "ampere", "core")


class BenchDevices(msgspec.Struct, frozen=True):
    """The devices of a backend.

    Attributes:
        backend: "cuda", "hip", "opencl", or "" if none works here.
        names: of its devices, best first.
        memory_bytes: of the first; 0 if it uses the host's.
        details: of the first, from its driver.
        missing: why a backend does not work, by its name.
    """

    backend: str = ""
    names: tuple[str, ...] = ()
    memory_bytes: int = 0
    details: dict[str, str] = {}
    missing: dict[str, str] = {}


def devices(backends: Sequence[str] = BACKENDS) -> BenchDevices:
    """Find the first backend that works here, without loading any in this process."""
    try:
        done = subprocess.run(
            module("dandelion.bench.machine", *backends), capture_output=True, timeout=_PROBE_S,
            env=environment(), check=True,
        )  # fmt: skip
        return msgspec.json.decode(done.stdout, type=BenchDevices)
    except subprocess.TimeoutExpired:
        why = f"its driver did not answer within {_PROBE_S:.0f} s"
    except subprocess.CalledProcessError as error:
        why = f"looking for it ended with {error.returncode}"
    except msgspec.DecodeError:
        why = "looking for it printed nothing"
    return BenchDevices(missing=dict.fromkeys(backends, why))


def probe(backends: Sequence[str]) -> BenchDevices:
    """Find the first backend that works here, in this process."""
    missing = {}
    for backend in backends:
        try:
            resources = load_driver(backend).factory().probe()
        except BackendUnavailable as error:
            missing[backend] = f"{error.missing} ({error.remedy})"
            continue
        except DandelionError as error:
            missing[backend] = str(error)
            continue
        if resources:
            first = resources[0]
            names = tuple(r.description for r in resources)
            details = dict(first.details)
            return BenchDevices(backend, names, first.memory_bytes, details, missing)
        missing[backend] = "there is no device"
    return BenchDevices(missing=missing)


def machine(found: BenchDevices | None = None) -> dict[str, str]:
    """Describe the machine: processor, cores, memory, device, system, versions.

    Args:
        found: what `devices` has given; None leaves devices out.
    """
    return {
        "cpu": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        **_device_facts(found or BenchDevices()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "extension modules": "yes" if extension_modules.in_use() else "no",
        **{name: metadata.version(name) for name in _LIBRARIES},
    }


def _device_facts(found: BenchDevices) -> dict[str, str]:
    if not found.backend:
        return {}
    count = f"{len(found.names)} x " if len(found.names) > 1 else ""
    facts = {"device": count + found.names[0], "backend": found.backend}
    if found.memory_bytes:
        facts["device memory"] = f"{found.memory_bytes / 2**30:.0f} GiB"
    facts |= {f"device {what}": words for what, words in found.details.items()}
    if found.backend == "cuda" and (version := _nvidia_driver()):
        facts["device driver"] = version
    return facts


def _nvidia_driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip().partition("\n")[0]
    return ""


def machine_name(found: BenchDevices | None = None) -> str:
    """Name the machine for files: "h200", "h200-x2", "epyc-2-cores"."""
    if found is not None and found.backend in ("cuda", "hip"):
        count = f"-x{len(found.names)}" if len(found.names) > 1 else ""
        return device_name(found.names[0]) + count
    return f"{processor_name(_processor())}-{len(os.sched_getaffinity(0))}-cores"


def device_name(description: str) -> str:
    """Shorten the name of a device: "NVIDIA GeForce RTX 4090" is "rtx-4090"."""
    words = [w for w in re.findall(r"[a-z0-9]+", description.lower()) if w not in _VENDORS]
    for place, word in enumerate(words):
        if any(letter.isdigit() for letter in word):
            return "-".join(words[: place + 1])
    return "-".join(words[:2]) or "device"


def processor_name(description: str) -> str:
    """Shorten the name of a processor: "AMD EPYC 9654 96-Core Processor" is "epyc"."""
    words = re.findall(r"[a-z0-9]+", description.lower())
    known = [name for name in _PROCESSORS if name in words]
    return known[0] if known else platform.machine().replace("_", "-")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists() and (found := re.search(r"model name\s*:\s*(.+)", info.read_text())):
        return found.group(1)
    return platform.processor() or "unknown"


def commit() -> str:
    """Name the commit of this checkout, with a + if it was changed; empty outside of one.

    Results of benchmarks do not count as a change.
    """
    root = Path(__file__).resolve().parent
    if not (root.parent / "pyproject.toml").exists():
        return ""
    changed = ["status", "--porcelain", "--untracked-files=no", "--", "..", ":!results"]
    name, changes = _git(root, "rev-parse", "--short", "HEAD"), _git(root, *changed)
    return f"{name}+" if name and changes else name


def _git(folder: Path, *arguments: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=20
        )
        return done.stdout.strip()
    return ""


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(probe(sys.argv[1:])))
