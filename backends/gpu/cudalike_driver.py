"""The driver that CUDA and HIP share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from dandelion.driver import Resource
from dandelion.errors import BackendUnavailable, InvalidInput
from dandelion.function import Function

from .calls import Calls, Compiler
from .compile_process import LIMIT_S, compile_apart
from .compiling import SOURCES, CodeCache, default_folder, key_of
from .cudalike import CudaLikeDevice
from .driver import GpuDriver
from .program import make_program
from .source import LoadedCode, choose
from .source_check import checked_source
from .weights import WeightsLimit


class CudaLikeDriver(GpuDriver):
    """Devices behind a `Calls` table.

    Further settings: ``cache``, the folder that keeps compiled sources, ``off`` for none, by
    default a folder of the user's cache; ``weights`` (``8G`` or ``25%``), how much of an engine's
    device memory constants may take.
    """

    settings: ClassVar[tuple[str, ...]] = (*GpuDriver.settings, "cache", "weights")
    device_class: ClassVar[type[CudaLikeDevice]]
    default_weights: ClassVar[str]
    default_spare: ClassVar[bool] = True
    compile_limit_s: ClassVar[float] = LIMIT_S

    def configure(self, options: Mapping[str, str]) -> None:
        super().configure(options)
        self.weights()

    def weights(self) -> WeightsLimit:
        text = self._options.get("weights", self.default_weights).strip()
        if not text.endswith("%"):
            return WeightsLimit(self._size("weights", text))
        try:
            percent = float(text[:-1])
        except ValueError:
            percent = -1.0
        if not 0 <= percent <= 80:
            where = f"{self.name}.weights"
            raise InvalidInput(where, f"'{text}' is no share", "write 0% to 80%, or a size")
        return WeightsLimit(share=percent / 100)

    def probe(self) -> list[Resource]:
        try:
            calls = self.device_class.calls()
            found = self._found(calls)
        except BackendUnavailable:
            raise
        except Exception as error:  # whatever a binding raises where its library is missing
            raise BackendUnavailable(self.name, str(error), self.device_class.remedy) from None
        if not found:
            raise BackendUnavailable(self.name, "no device", self.device_class.remedy)
        return found

    def _found(self, calls: Calls) -> list[Resource]:
        def do(answer: tuple[Any, ...]) -> Any:
            if answer[0]:
                text = calls.describe(answer[0])
                raise BackendUnavailable(self.name, text, self.device_class.remedy)
            return answer[1] if len(answer) > 1 else None

        do(calls.initialize(0))
        found = []
        for ordinal in range(int(do(calls.count()))):
            archs = do(calls.archs(ordinal))
            details = {"architecture": archs[0] if archs else "unknown"}
            total = int(do(calls.total_memory(ordinal)))
            found.append(Resource(str(ordinal), do(calls.device_name(ordinal)), total, details))
        return found

    def prepare(self, function: Function, archs: tuple[str, ...]) -> None:
        """Compile what the cache does not have; see `Driver.prepare`."""
        chosen = self._chosen(function, archs)
        cache = self.cache()
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
            binaries = compile_apart(self.name, archs[0], missing.values(), self.compile_limit_s)
            for key, binary in zip(missing, binaries, strict=False):
                cache.put(key, binary)

    def _chosen(self, function: Function, archs: tuple[str, ...]) -> list[LoadedCode]:
        """Choose the code of all modules that a function's kernels come from."""
        config = make_program(function).config
        used = {kernel.module for kernel in config.kernels}
        backend, formats = self.device_class.backend, self.device_class.formats
        modules = [m for m in config.modules if m.name in used]
        return [choose(m, function.files, backend, formats, archs) for m in modules]

    def compiler(self) -> Compiler:
        return self.device_class.compiler()

    def ordinal(self, resource: str) -> int:
        """Read the name of a resource; the empty one is the first."""
        if not (resource or "0").isdecimal():
            raise BackendUnavailable(self.name, f"no device '{resource}'", "write its number: 0")
        return int(resource or "0")

    def cache(self) -> CodeCache | None:
        """Give the cache of compiled code, if there is to be one."""
        setting = self._options.get("cache", "")
        if setting == "off":
            return None
        folder = Path(setting) if setting else default_folder()
        return None if folder is None else CodeCache(folder)
