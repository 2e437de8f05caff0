"""Checking GPU functions at registration, and compiling their sources ahead."""

from __future__ import annotations

from pathlib import Path

from dandelion.blueprint.uses import optional_kernels
from dandelion.errors import InvalidBlueprint
from dandelion.function import Function

from .checker import GpuChecker
from .compile_process import LIMIT_S, compile_apart
from .compiling import CodeCache, default_folder
from .device import Device
from .options import GpuOptions
from .program import make_program
from .source import LoadedCode, choose
from .source_check import checked_source
from .source_compiler import SourceCompiler


class CompilingChecker(GpuChecker):
    """Also compiles sources, into the cache of compiled code.

    Args:
        options: of the backend.
        device_class: of its devices.
        compiler: of its sources.
    """

    def __init__(
        self, options: GpuOptions, device_class: type[Device], compiler: SourceCompiler
    ) -> None:
        self._options = options
        self._device_class = device_class
        self._compiler = compiler

    def prepare(self, function: Function, archs: tuple[str, ...]) -> None:
        """Compile what the cache does not have; see `Checker.prepare`."""
        chosen = self._chosen(function, archs)
        cache = code_cache(self._options)
        if cache is None:
            return
        missing: dict[str, LoadedCode] = {}
        for code in chosen:
            if code.format in self._compiler.formats:
                checked_source(code)
                key = self._compiler.key(code, archs[0])
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

    def compiler(self) -> SourceCompiler:
        return self._compiler


def code_cache(options: GpuOptions) -> CodeCache | None:
    """Give the cache of compiled code, if there is to be one."""
    setting = options.text("cache")
    if setting == "off":
        return None
    folder = Path(setting) if setting else default_folder()
    return None if folder is None else CodeCache(folder)
