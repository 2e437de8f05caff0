"""The driver that CUDA and HIP share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from dandelion.blueprint.uses import optional_kernels
from dandelion.driver import Resource
from dandelion.errors import BackendUnavailable, InvalidBlueprint
from dandelion.function import Function

from .calls import Calls, Compiler
from .checker import GpuChecker
from .compile_process import LIMIT_S, compile_apart
from .compiling import SOURCES, CodeCache, default_folder, key_of
from .cudalike import CudaLikeDevice
from .driver import GpuDriver
from .factory import GpuFactory
from .options import GpuOptions
from .program import make_program
from .source import LoadedCode, choose
from .source_check import checked_source


class CudaLikeChecker(GpuChecker):
    """Also compiles sources ahead, into the cache of compiled code."""

    def __init__(self, options: GpuOptions, device_class: type[CudaLikeDevice]) -> None:
        self._options = options
        self._device_class = device_class

    def prepare(self, function: Function, archs: tuple[str, ...]) -> None:
        """Compile what the cache does not have; see `Checker.prepare`."""
        chosen = self._chosen(function, archs)
        cache = code_cache(self._options)
        if cache is None:
            return
        missing: dict[str, LoadedCode] = {}
        for code in chosen:
            if code.format in SOURCES:
                checked_source(code)
                key = key_of(self.compiler(), code, archs[0])
                if cache.get(key) is None:
                    missing[key] = code
        if missing:
            backend = self._options.backend
            binaries = compile_apart(backend, archs[0], missing.values(), LIMIT_S)
            for key, binary in zip(missing, binaries, strict=False):
                cache.put(key, binary)

    def _chosen(self, function: Function, archs: tuple[str, ...]) -> list[LoadedCode]:
        """Choose the code of all modules that a function's kernels come from.

        A module whose kernels only alternatives of candidates launch may have none for the device.
        """
        config = make_program(function).config
        used = {kernel.module for kernel in config.kernels}
        optional = optional_kernels(config)
        needed = {kernel.module for kernel in config.kernels if kernel.name not in optional}
        backend, formats = self._device_class.backend, self._device_class.formats
        found = []
        for module in config.modules:
            if module.name not in used:
                continue
            try:
                found.append(choose(module, function.files, backend, formats, archs))
            except InvalidBlueprint:
                if module.name in needed:
                    raise
        return found

    def compiler(self) -> Compiler:
        return self._device_class.compiler()


class CudaLikeFactory(GpuFactory):
    """Starts engines on devices behind a `Calls` table.

    Args:
        options: of the backend.
        device_class: of its devices.
        trusts_protection: use the protection of mapped memory also where ``weights`` is not set.
    """

    def __init__(
        self, options: GpuOptions, device_class: type[CudaLikeDevice], trusts_protection: bool
    ) -> None:
        super().__init__(options)
        self._device_class = device_class
        self._trusts_protection = trusts_protection

    def probe(self) -> list[Resource]:
        device_class, backend = self._device_class, self._options.backend
        try:
            found = self._found(device_class.calls())
        except BackendUnavailable:
            raise
        except Exception as error:  # whatever a binding raises where its library is missing
            raise BackendUnavailable(backend, str(error), device_class.remedy) from None
        if not found:
            raise BackendUnavailable(backend, "no device", device_class.remedy)
        return found

    def _found(self, calls: Calls) -> list[Resource]:
        def do(answer: tuple[Any, ...]) -> Any:
            if answer[0]:
                text, remedy = calls.describe(answer[0]), self._device_class.remedy
                raise BackendUnavailable(self._options.backend, text, remedy)
            return answer[1] if len(answer) > 1 else None

        do(calls.initialize(0))
        found = []
        for ordinal in range(int(do(calls.count()))):
            archs = do(calls.archs(ordinal))
            details = {"architecture": archs[0] if archs else "unknown"}
            total = int(do(calls.total_memory(ordinal)))
            found.append(Resource(str(ordinal), do(calls.device_name(ordinal)), total, details))
        return found

    def device(self, resource: str) -> CudaLikeDevice:
        if not (resource or "0").isdecimal():
            backend = self._options.backend
            raise BackendUnavailable(backend, f"no device '{resource}'", "write its number: 0")
        trusts = self._trusts_protection or "weights" in self._options.given
        return self._device_class(int(resource or "0"), code_cache(self._options), trusts)


class CudaLikeDriver(GpuDriver):
    """Devices behind a `Calls` table.

    Further settings: ``cache``, the folder that keeps compiled sources, ``off`` for none, by
    default a folder of the user's cache; ``weights`` (``8G`` or ``25%``), how much of an engine's
    device memory constants may take.
    """

    settings: ClassVar[Mapping[str, str]] = {
        **GpuDriver.settings,
        "standby": "true",
        "cache": "",
        "weights": "0",
    }
    device_class: ClassVar[type[CudaLikeDevice]]
    trusts_protection: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._checker = CudaLikeChecker(self.options, self.device_class)
        self._factory = CudaLikeFactory(self.options, self.device_class, self.trusts_protection)

    def factory(self) -> CudaLikeFactory:
        return self._factory


def code_cache(options: GpuOptions) -> CodeCache | None:
    """Give the cache of compiled code, if there is to be one."""
    setting = options.text("cache")
    if setting == "off":
        return None
    folder = Path(setting) if setting else default_folder()
    return None if folder is None else CodeCache(folder)
