"""System call filters, run by an interpreter of their programs: each number has its effect."""

from __future__ import annotations

import errno
import struct

import pytest
from dandelion.backends.process import package_imports, policy

from dandelion.confinement import seccomp
from dandelion.confinement.seccomp import FAIL, KILL, NOTIFY, SyscallPolicy
from dandelion.confinement.syscalls import Architecture, native

ALLOW = 0x7FFF0000
ERRNO = 0x00050000
PID = 4711
STEPS = 40
"""Instructions for a system call at most; comparing one number after the other takes hundreds."""


def effect(code: bytes, number: int, arguments: tuple[int, ...] = (), arch: int = 0) -> int:
    """Run a program as the kernel does, for one system call."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *(0,) * (6 - len(arguments)))
    program = list(struct.iter_unpack("<HBBI", code))
    at = loaded = 0
    for _ in range(STEPS):
        kind, jump, otherwise, operand = program[at]
        at += 1
        if kind == 0x20:
            (loaded,) = struct.unpack_from("<I", data, operand)
        elif kind == 0x06:
            return int(operand)
        elif kind == 0x05:
            at += operand
        else:
            holds = {
                0x15: loaded == operand,
                0x25: loaded > operand,
                0x35: loaded >= operand,
                0x45: bool(loaded & operand),
            }[kind]
            at += jump if holds else otherwise
    raise AssertionError(f"system call {number} takes more than {STEPS} instructions")


@pytest.fixture(scope="module")
def architecture() -> Architecture:
    return native()


@pytest.mark.parametrize("listed", [policy.POLICY, package_imports._POLICY])
@pytest.mark.parametrize("denied", [NOTIFY, FAIL, KILL])
def test_every_number_has_the_effect_that_its_policy_says(
    architecture: Architecture, listed: SyscallPolicy, denied: int
) -> None:
    code = seccomp.program(architecture, listed, PID, denied)
    numbers = architecture.numbers
    expected = {numbers[n]: ALLOW for n in listed.allowed.split() if n in numbers}
    for error, names in listed.quiet.items():
        expected |= {numbers[n]: ERRNO | error for n in names.split() if n in numbers}
    conditional = {numbers[n] for n, _ in listed.conditional(PID, denied) if n in numbers}
    for number in (*range(max(numbers.values()) + 20), architecture.highest):
        if number not in conditional:
            found = effect(code, number, arch=architecture.audit)
            assert found == expected.get(number, denied), architecture.name(number)
    for number in (architecture.highest + 1, 1 << 30, 1 << 31, (1 << 32) - 1):
        assert effect(code, number, arch=architecture.audit) == KILL
    assert effect(code, numbers["read"], arch=architecture.audit ^ 1) == KILL


def test_conditions_on_arguments_hold_behind_the_search(architecture: Architecture) -> None:
    code = seccomp.program(architecture, policy.POLICY, PID)

    def of(name: str, *arguments: int) -> int:
        return effect(code, architecture.numbers[name], arguments, architecture.audit)

    assert of("mmap", 0, 4096, 3) == of("mprotect", 0, 4096, 1) == ALLOW
    assert of("mmap", 0, 4096, 7) == of("mprotect", 0, 4096, 4) == NOTIFY
    assert of("sendmsg", policy.CHANNEL_FD) == of("prlimit64", 0) == ALLOW
    assert of("sendmsg", policy.CHANNEL_FD + 1) == of("prlimit64", PID) == NOTIFY
    assert of("tgkill", PID, 1, 6) == ALLOW
    assert of("tgkill", PID, 1, 9) == of("tgkill", PID + 1, 1, 6) == NOTIFY


def test_a_program_may_be_longer_than_a_condition_can_skip(architecture: Architecture) -> None:
    far = [(0x20, 0, 0, 16), (0x15, 0, 1, 1), (0x06, 0, 0, ALLOW), (0x06, 0, 0, KILL)]
    names = [name for name, number in architecture.numbers.items() if number % 2]
    long = SyscallPolicy("getpid", {errno.EIO: "read"}, lambda *_: [(n, far) for n in names])
    code = seccomp.program(architecture, long, PID, FAIL)
    assert len(code) // 8 > 512
    for name in names:
        number = architecture.numbers[name]
        if name not in ("getpid", "read"):
            assert effect(code, number, (1,), architecture.audit) == ALLOW
            assert effect(code, number, (2,), architecture.audit) == KILL
    for number in set(architecture.numbers.values()):
        if number % 2 == 0 and number not in map(architecture.numbers.get, ("getpid", "read")):
            assert effect(code, number, arch=architecture.audit) == FAIL
