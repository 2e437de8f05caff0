"""Reading a report: the function ended by itself, or with an error.

A function ends itself by ``exit``, or, if it was built for the original's KVM backend, by
``int 0x20`` or ``hlt``. A process may execute neither, so the kernel reports a general protection
fault at that instruction, and the bytes there identify it.

The launcher's handler writes the report to memory that the function can write too. So the function
can forge it, which can only change the description of its own failure.
"""

from __future__ import annotations

import signal
import struct
from dataclasses import dataclass

from dandelion.confinement import seccomp
from dandelion.confinement.syscalls import Architecture
from dandelion.errors import DandelionError, Faulted, OutOfMemory, Unauthorized
from dandelion.function import FunctionSpec

from .context import ContextLayout
from .launcher import MAGIC

_REPORT = struct.Struct("<QQiiQiIQQ")
SIZE_BYTES = _REPORT.size

_EXIT, _EXIT_GROUP = 60, 231
_X86_64, _I386 = 0xC000003E, 0x40000003
_X32_BIT = 0x40000000
_NOT_MAPPED, _NOT_PERMITTED, _FROM_KERNEL = 1, 2, 128
_STACK_SLACK_BYTES = 256
_HALTS = (b"\xf4", b"\xcd\x20")  # hlt, int 0x20
HALT_BYTES = 2
_FAULTS = {
    signal.SIGILL: "illegal instruction",
    signal.SIGTRAP: "breakpoint",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic error",
}
_ARITHMETIC = {1: "integer division by zero", 2: "integer overflow"}


@dataclass(frozen=True, slots=True)
class ExitReport:
    """One report.

    Attributes:
        signal, code: the signal and its `si_code`.
        address: of a fault.
        number, architecture: of a system call.
        instruction: address of the instruction.
        stack: the stack pointer there.
    """

    signal: int
    code: int
    address: int
    number: int
    architecture: int
    instruction: int
    stack: int

    @property
    def exited(self) -> bool:
        """Whether the function called ``exit`` or ``exit_group``."""
        return (
            self.signal == signal.SIGSYS
            and self.architecture == _X86_64
            and self.number in (_EXIT, _EXIT_GROUP)
        )

    def halted(self, code: bytes) -> bool:
        """Whether it executed an instruction that ends a virtual machine.

        Args:
            code: the function's bytes at `instruction`, at most `HALT_BYTES`.
        """
        return (
            self.signal == signal.SIGSEGV and self.code == _FROM_KERNEL and code.startswith(_HALTS)
        )


def read(data: bytes) -> ExitReport | None:
    """Read a report; None if there is none because the process was killed."""
    magic, number, code, _, address, call, architecture, instruction, stack = _REPORT.unpack(data)
    if magic != MAGIC:
        return None
    return ExitReport(number & 0x7F, code, address, call, architecture, instruction, stack)


def error_of(
    report: ExitReport, spec: FunctionSpec, layout: ContextLayout, architecture: Architecture
) -> DandelionError:
    """Turn a report of anything but an exit into an error of the user's function."""
    at = f"at {report.instruction:#x}"
    if report.signal == signal.SIGSYS:
        return Unauthorized(spec.name, _describe(report, architecture))
    if report.signal == signal.SIGSEGV:
        return _segmentation_fault(report, spec, layout, at)
    if report.signal == signal.SIGFPE:
        return Faulted(spec.name, f"{_ARITHMETIC.get(report.code, 'arithmetic error')} {at}")
    fault = next((text for number, text in _FAULTS.items() if number == report.signal), None)
    return Faulted(spec.name, f"{fault or f'signal {report.signal}'} {at}")


def _describe(report: ExitReport, architecture: Architecture) -> str:
    number = report.number & 0xFFFFFFFF
    if report.architecture == _I386:
        return f"make 32-bit system calls (number {number})"
    if number & _X32_BIT:
        return f"make x32 system calls (number {number & ~_X32_BIT})"
    return seccomp.describe(architecture, number)


def _segmentation_fault(
    report: ExitReport, spec: FunctionSpec, layout: ContextLayout, at: str
) -> DandelionError:
    address = report.address
    if report.code == _FROM_KERNEL:
        return Faulted(
            spec.name, f"general protection fault {at}: a privileged instruction or a bad address"
        )
    if layout.guard <= address < layout.stack:
        if layout.guard <= report.stack < layout.stack + _STACK_SLACK_BYTES:
            return Faulted(spec.name, f"stack overflow: segmentation fault at {address:#x}, {at}")
        return OutOfMemory(spec.name, layout.limit_bytes)
    reason = {_NOT_MAPPED: ", not mapped", _NOT_PERMITTED: ", not permitted"}.get(report.code, "")
    return Faulted(spec.name, f"segmentation fault at address {address:#x}{reason}, {at}")
