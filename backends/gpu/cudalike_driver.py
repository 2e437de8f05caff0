"""The driver that CUDA and HIP share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from dandelion.driver import Resource
from dandelion.errors import BackendUnavailable

from .calls import Calls
from .compiling import RuntimeCompiler
from .compiling_checker import CompilingChecker, code_cache
from .cudalike import CudaLikeDevice
from .driver import GpuDriver
from .factory import GpuFactory
from .options import GpuOptions

_BYTES = re.compile(r"b'([^']*)'")


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
            text = _BYTES.sub(r"\1", str(error))  # of a library's name and the loader's words
            raise BackendUnavailable(backend, text, device_class.remedy) from None
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
        self._checker = CompilingChecker(
            self.options, self.device_class, RuntimeCompiler(self.device_class.compiler())
        )
        self._factory = CudaLikeFactory(self.options, self.device_class, self.trusts_protection)

    def factory(self) -> CudaLikeFactory:
        return self._factory
