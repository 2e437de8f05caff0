"""System call filters: each number has the effect that its policy says, after few steps."""

from __future__ import annotations

import errno
import struct

import pytest
from dandelion.backends.gpu import host_policy
from dandelion.backends.process import package_imports, policy

from dandelion.confinement import seccomp
from dandelion.confinement.seccomp import FAIL, KILL, NOTIFY, SyscallPolicy
from dandelion.confinement.syscalls import Architecture, native

from .filters import effect

ALLOW = 0x7FFF0000
ERRNO = 0x00050000
PID = 4711


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
            found = effect(code, number, architecture.audit)
            assert found == expected.get(number, denied), architecture.name(number)
    for number in (architecture.highest + 1, 1 << 30, 1 << 31, (1 << 32) - 1):
        assert effect(code, number, architecture.audit) == KILL
    assert effect(code, numbers["read"], architecture.audit ^ 1) == KILL


@pytest.mark.parametrize("listed", [policy.POLICY, package_imports._POLICY, host_policy.policy(7)])
def test_conditions_on_arguments_are_those_of_the_policy(
    architecture: Architecture, listed: SyscallPolicy
) -> None:
    code = seccomp.program(architecture, listed, PID, FAIL)
    rules = listed.conditional(PID, FAIL)
    operands = {step[3] for _, body in rules for step in body}
    values = sorted({value + more for value in operands for more in (0, 1, 1 << 32)})
    for name, body in rules:
        alone = b"".join(struct.pack("<HBBI", *step) for step in [(0x20, 0, 0, 0), *body])
        for number, value in enumerate(values):
            arguments = [values[(number * factor) % len(values)] for factor in range(1, 6)]
            for given in ((value, *arguments), (value,) * 6):
                wanted = effect(alone, 0, 0, *given)
                assert (
                    effect(code, architecture.numbers[name], architecture.audit, *given) == wanted
                )


def test_a_program_may_be_longer_than_a_condition_can_skip(architecture: Architecture) -> None:
    far = [(0x20, 0, 0, 16), (0x15, 0, 1, 1), (0x06, 0, 0, ALLOW), (0x06, 0, 0, KILL)]
    names = [name for name, number in architecture.numbers.items() if number % 2]
    long = SyscallPolicy("getpid", {errno.EIO: "read"}, lambda *_: [(n, far) for n in names])
    code = seccomp.program(architecture, long, PID, FAIL)
    assert len(code) // 8 > 512
    for name in names:
        number = architecture.numbers[name]
        if name not in ("getpid", "read"):
            assert effect(code, number, architecture.audit, 1) == ALLOW
            assert effect(code, number, architecture.audit, 2) == KILL
    for number in set(architecture.numbers.values()):
        if number % 2 == 0 and number not in map(architecture.numbers.get, ("getpid", "read")):
            assert effect(code, number, architecture.audit) == FAIL
