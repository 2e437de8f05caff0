"""PoCL in a confined process: what it reads, where it writes, and how it links."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from dandelion.errors import BackendUnavailable

from . import pocl, pocl_spawn
from .host_runtime import Ahead, HostRuntime
from .pocl_threads import Postponed

_DEVICES, _CACHE_FOLDER = pocl.DEVICES, "POCL_CACHE_DIR"
_WITHOUT_THREADS = "basic cpu-minimal"  # the same device, by its name before and since PoCL 4
KNOWN_VERSION = " PoCL 3."
"""Of these versions it is known how they start threads. Since version 6, opening needs answers of
the threads."""
_BOTH = "pthread basic"
_CACHE = "cache"  # in the working folder, wherever that is
_PASSED = ("POCL_", "OCL_ICD_", "OPENCL_", "LD_LIBRARY_PATH")
_FACTS = ("/proc/cpuinfo", "/sys/devices/system/cpu", "/sys/devices/system/node")
_LATE = ("pyopencl.array", "pyopencl.cache", "pyopencl.invoker", "pyopencl.tools", "tempfile")
"""What pyopencl imports when it is first needed, and that could not be read any more by then."""
_SHARE = ("share/pocl", "../share/pocl", "../../share/pocl")


class PoclRuntime(HostRuntime):
    """PoCL, from a wheel or from the system."""

    def __init__(self, threads: int = 0) -> None:
        self._threads = threads
        self._linker: pocl_spawn.Linker | None = None
        self._postponed: Postponed | None = None
        self._machine = b""

    def environment(self) -> dict[str, str]:
        return {n: v for n, v in os.environ.items() if n.startswith(_PASSED)}

    def without_threads(self) -> Mapping[str, str]:
        return {} if _DEVICES in os.environ else {_DEVICES: _WITHOUT_THREADS}

    def load(self) -> tuple[str, ...]:
        pocl.prepare_environment(self._threads)
        cl = pocl.binding()
        for name in _LATE:
            importlib.import_module(name)
        try:
            cl.get_platforms()
        except cl.Error as error:
            raise BackendUnavailable("opencl", f"no OpenCL platform ({error})") from None
        self._machine = _description_of_machine()
        found = {str(path.parent) for path in _libraries() if _is_pocl(path)}
        shared = {
            os.path.normpath(path.parent / share) for path in _libraries() for share in _SHARE
        }
        spec = importlib.util.find_spec("pyopencl")
        headers = [f"{place}/cl" for place in (spec and spec.submodule_search_locations) or ()]
        return (
            tuple(sorted(found | {path for path in shared if os.path.isdir(path)}) + headers)
            + _FACTS
        )

    def ahead(self) -> Ahead | None:
        cl = pocl.binding()
        platforms = cl.get_platforms()
        if (
            _DEVICES in os.environ
            or len(platforms) != 1
            or KNOWN_VERSION not in platforms[0].version
        ):
            return None
        postponed = Postponed()
        if not postponed.install():
            return None
        os.environ.update({_DEVICES: _BOTH, _CACHE_FOLDER: _CACHE})
        os.mkdir(_CACHE)
        names = {d.name.partition("-")[0]: name for name, d in pocl.opencl_devices(cl).items()}
        self._postponed, self._machine = postponed, b""
        return Ahead(frozenset({"", "0", "cpu"}), names["pthread"], names["basic"])

    def forked(self, threads: bool) -> None:
        if self._postponed is not None and threads:
            self._postponed.begin()

    def furnish(self, folder: Path) -> None:
        programs, cache = folder / "bin", folder / _CACHE
        programs.mkdir()
        cache.mkdir()
        (programs / "ld").touch(mode=0o700)  # looked for, and never started
        os.environ.update({"PATH": str(programs), _CACHE_FOLDER: _CACHE})
        if self._machine:
            machine = folder / "machine.xml"
            machine.write_bytes(self._machine)
            os.environ.update(HWLOC_XMLFILE=str(machine), HWLOC_THISSYSTEM="1")

    def opened(self) -> Mapping[str, str]:
        self._linker = pocl_spawn.replace_linker()
        if self._linker is None:
            raise BackendUnavailable(
                "opencl",
                "this PoCL does not start its linker in a way that can be replaced",
                f"{pocl.REMEDY} on x86-64, or set opencl.unconfined=true",
            )
        return {"programs": "none; kernels are linked in the process"}


def _description_of_machine() -> bytes:
    """Describe processors and memory for the library that PoCL asks about them.

    By itself it begins at the root of the file system, which is not to be read later.

    Returns:
        A file for that library; empty if PoCL uses none.

    Source: hwloc's documentation, "Importing and exporting topologies from/to XML files".
    """
    for path in _libraries():
        if path.name.startswith("libhwloc"):
            hwloc = ctypes.CDLL(str(path))
            topology, text, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
            hwloc.hwloc_topology_init(ctypes.byref(topology))
            hwloc.hwloc_topology_load(topology)
            failed = hwloc.hwloc_topology_export_xmlbuffer(
                topology, ctypes.byref(text), ctypes.byref(size), ctypes.c_ulong(0)
            )
            found = b"" if failed else ctypes.string_at(text, size.value).rstrip(b"\0")
            hwloc.hwloc_topology_destroy(topology)
            return found
    return b""


def _libraries() -> set[Path]:
    """List the libraries that this process has loaded."""
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if ".so" in os.path.basename(path):
            found.add(Path("/" + path))
    return found


def _is_pocl(path: Path) -> bool:
    return any(part in path.name for part in ("libpocl", "libLLVM", "libclang", "libhwloc"))
