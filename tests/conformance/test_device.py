"""One suite for every device; missing devices are skipped with the reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dandelion.backends.gpu.conformance import CHECKS, POOL_BYTES, opened
from dandelion.backends.gpu.conformance_kernels import HOST_KERNELS, Check
from dandelion.backends.gpu.conformance_language import LANGUAGE_CHECKS
from dandelion.backends.gpu.device import Device
from dandelion.backends.gpu.driver import GpuDriver
from dandelion.backends.gpu.host import HostDevice
from dandelion.backends.gpu.opencl_device import OpenClDevice

from dandelion.driver import load_driver
from dandelion.errors import BackendUnavailable

Make = Callable[[], Device]


def of_driver(name: str) -> Make:
    def make() -> Device:
        driver = load_driver(name)
        assert isinstance(driver, GpuDriver)
        return driver.factory().device(driver.factory().probe()[0].name)

    return make


DEVICES: dict[str, Make] = {
    "host": lambda: HostDevice(HOST_KERNELS, POOL_BYTES),
    "host-lazy": lambda: HostDevice(
        HOST_KERNELS, POOL_BYTES, lazy=True, graphs=True, protects=True, lanes=2
    ),
    "opencl": OpenClDevice,
    "opencl-buffers": lambda: OpenClDevice(shared=False),
    "cuda": of_driver("cuda"),
    "hip": of_driver("hip"),
}


def run(name: str, check: Check) -> None:
    try:
        device = DEVICES[name]()
        device.open()
        device.close()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    with opened(device):
        check(device)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", DEVICES)
def test_device(name: str, check: Check) -> None:
    run(name, check)


@pytest.mark.parametrize("check", LANGUAGE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", [n for n in DEVICES if not n.startswith("host")])
def test_language(name: str, check: Check) -> None:
    run(name, check)


def test_the_suite_finds_a_device_that_zeroes_too_little() -> None:
    class Careless(HostDevice):
        def _zero(self, offset_bytes: int, size_bytes: int) -> None:
            super()._zero(offset_bytes, size_bytes // 256 * 256)

    zero = next(check for check in CHECKS if check.__name__ == "check_zero")
    with opened(Careless(HOST_KERNELS, POOL_BYTES)) as device, pytest.raises(AssertionError):
        zero(device)
