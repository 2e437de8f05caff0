"""Attacks of hostile machine code in its address space; none of them works.

Each attempt ends in the one error that says what it was; the engine runs an honest call after it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from dandelion.backends.native import launcher
from dandelion.backends.native.structures import NATIVE

from dandelion.confinement.syscalls import native
from dandelion.driver import Engine
from dandelion.errors import (
    BadOutput,
    DandelionError,
    Exited,
    Faulted,
    FunctionError,
    OutOfMemory,
    TimedOut,
    Unauthorized,
)

from .native_functions import MIB, built, engine_of, first, function, run


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    built("attempt.c")
    with engine_of("native") as engine:
        yield engine


@pytest.fixture(autouse=True)
def _honest_afterwards(engine: Engine) -> Iterator[None]:
    yield
    fn = function(built("attempt.c"))
    assert first(run(engine, fn, b"honest")).bytes() == b"honest"


def _code(error: DandelionError) -> int | None:
    return error.code if isinstance(error, Exited) else None


def attempt(engine: Engine, words: str, *values: Any, **limits: Any) -> DandelionError:
    """Run an attempt and give the error that it ends with."""
    with pytest.raises(FunctionError) as caught:
        run(engine, function(built("attempt.c"), **limits), words.encode(), *values)
    return caught.value


# --- system calls -----------------------------------------------------------------------------

CALLS = """
    read write open openat close stat mmap mprotect munmap brk mremap rt_sigaction rt_sigprocmask
    rt_sigreturn sigaltstack ioctl socket socketpair connect sendmsg recvmsg clone clone3 fork vfork
    execve execveat wait4 kill tgkill ptrace process_vm_readv process_vm_writev pidfd_open
    pidfd_getfd io_uring_setup io_uring_enter memfd_create memfd_secret userfaultfd prctl seccomp
    personality unshare setns bpf perf_event_open modify_ldt set_thread_area iopl ioperm
    getpid getppid gettid getuid clock_gettime getrandom futex nanosleep sched_yield rseq
    pkey_mprotect shmat remap_file_pages restart_syscall exit_group
"""


@pytest.mark.parametrize("name", CALLS.split()[:-1])
def test_system_calls_are_denied_by_name(engine: Engine, name: str) -> None:
    error = attempt(engine, f"call {native().numbers[name]} 3 4096 7 50 3 0")
    assert isinstance(error, Unauthorized), error
    assert error.what.endswith(f"({name})")


@pytest.mark.parametrize("code", [0x1001, 0x1003, 0x1004, 0x1011, 0x1012, 0x2001, 0x1023])
def test_only_fs_can_be_set(engine: Engine, code: int) -> None:
    error = attempt(engine, f"call 158 {code} {0x20000}")
    assert isinstance(error, Unauthorized)
    assert "arch_prctl" in error.what


def test_calls_newer_than_the_table_are_denied(engine: Engine) -> None:
    error = attempt(engine, "call 1000")
    assert isinstance(error, Unauthorized)
    assert "1000" in error.what


def test_high_bits_of_a_number_do_not_hide_it(engine: Engine) -> None:
    assert isinstance(attempt(engine, f"call {0x1_0000_0000 + 39}"), Unauthorized)


@pytest.mark.parametrize("number", [1, 5, 11, 20, 37, 158, 231])
def test_the_32_bit_interface_is_denied(engine: Engine, number: int) -> None:
    error = attempt(engine, f"int80 {number} {0x1002}")  # 158 is arch_prctl in the other interface
    assert isinstance(error, Unauthorized)
    assert f"32-bit system calls (number {number})" in error.what


@pytest.mark.parametrize("number", [0, 1, 39, 59, 512, 520])
def test_the_x32_interface_is_denied(engine: Engine, number: int) -> None:
    error = attempt(engine, f"call {0x40000000 + number}")
    assert isinstance(error, Unauthorized)
    assert "x32" in error.what


def test_the_vsyscall_page_is_denied(engine: Engine) -> None:
    for entry in (0, 0x400, 0x800):
        error = attempt(engine, f"jump {0xFFFFFFFFFF600000 + entry}")
        assert isinstance(
            error, Unauthorized | Faulted
        )  # a fault where the kernel has no such page


def test_wild_registers_do_not_hide_a_denied_call(engine: Engine) -> None:
    assert isinstance(attempt(engine, "clobber"), Unauthorized)


# --- instructions -----------------------------------------------------------------------------

INSTRUCTIONS = {
    "int3": "breakpoint",
    "int32": "general protection",
    "ud2": "illegal instruction",
    "hlt": "general protection",
    "rdpmc": "general protection",
    "wrmsr": "general protection",
    "cr3": "general protection",
    "outb": "general protection",
    "cli": "general protection",
    "divide": "division by zero",
    "noncanonical": "general protection",
    "execute": "not permitted",
    "patch": "not permitted",
}


@pytest.mark.parametrize("word", INSTRUCTIONS)
def test_instructions_that_fault(engine: Engine, word: str) -> None:
    error = attempt(engine, word)
    assert isinstance(error, Faulted), error
    assert INSTRUCTIONS[word] in error.fault
    assert " at 0x4" in error.fault  # where in its code


def test_sysenter_is_no_way_out(engine: Engine) -> None:
    assert isinstance(attempt(engine, "sysenter 20"), Faulted | Unauthorized)


# --- addresses --------------------------------------------------------------------------------

GONE = {
    "null": 0,
    "below the context": 0xF000,
    "data of the launcher": launcher.BASE,
    "first page of its code": launcher.CODE,
    "behind its report": launcher.REPORT + launcher.REPORT_BYTES,
    "where libraries lie": 0x7F0000000000,
    "where stacks lie": 0x7FFFFFFFE000,
    "another program": 0x555555554000,
}


@pytest.mark.parametrize("name", GONE)
@pytest.mark.parametrize("how", ["read", "write", "jump"])
def test_nothing_else_is_mapped(engine: Engine, how: str, name: str) -> None:
    error = attempt(engine, f"{how} {GONE[name]}")
    assert isinstance(error, Faulted)
    assert f"segmentation fault at address {GONE[name]:#x}, not mapped" in error.fault


def test_neither_stack_of_exec_nor_vdso_is_left(engine: Engine) -> None:
    error = attempt(engine, "vdso")
    assert isinstance(error, Faulted)
    assert "not mapped" in error.fault


def test_the_page_that_stays_cannot_be_written(engine: Engine) -> None:
    error = attempt(engine, f"write {launcher.RESIDENT}")
    assert isinstance(error, Faulted)
    assert "not permitted" in error.fault


@pytest.mark.parametrize("offset", range(0, 0x100, 7))
def test_jumping_into_the_page_that_stays_leads_nowhere(engine: Engine, offset: int) -> None:
    error = attempt(engine, f"jump {launcher.RESIDENT + offset}")
    # It may fault, return (77), or reach `exit_group`: an end, but not by an exit of its own.
    assert isinstance(error, Faulted | Unauthorized) or _code(error) == 77, error


def test_its_munmap_is_of_no_use(engine: Engine) -> None:
    error = attempt(engine, f"jump {launcher.RESIDENT}")
    assert isinstance(error, Unauthorized)
    assert "munmap" in error.what


def test_leaving_by_the_exit_of_the_launcher_is_the_functions_fault(engine: Engine) -> None:
    code = launcher.executable()[-0x1000:]
    leave = code.index(bytes.fromhex("31ffb8e7000000"), 0x80)  # xor edi, edi; mov eax, 231
    error = attempt(engine, f"jump {launcher.RESIDENT + leave}")
    assert isinstance(error, Faulted)
    assert "without calling exit" in error.fault


@pytest.mark.parametrize(
    "stack", [8, launcher.REPORT, launcher.REPORT + 0x900, launcher.REPORT + 0x3FF8, 1 << 46]
)
def test_a_stack_pointer_anywhere_does_not_hide_a_fault(engine: Engine, stack: int) -> None:
    error = attempt(engine, f"stack {stack}")
    assert isinstance(error, Faulted)
    assert "illegal instruction" in error.fault


def test_a_forged_report_is_overwritten_by_the_real_one(engine: Engine) -> None:
    error = attempt(engine, f"forge {launcher.REPORT} 8")
    assert isinstance(error, Faulted)
    assert "illegal instruction" in error.fault


def test_calling_the_handler_reports_what_then_happens(engine: Engine) -> None:
    assert isinstance(attempt(engine, f"handler {launcher.RESIDENT + 0x80}"), Faulted)


# --- limits -----------------------------------------------------------------------------------


def test_a_stack_that_grows_too_far(engine: Engine) -> None:
    error = attempt(engine, "deep")
    assert isinstance(error, Faulted)
    assert "stack overflow" in error.fault


@pytest.mark.parametrize("word", ["heap", "alloc"])
def test_a_heap_that_grows_too_far(engine: Engine, word: str) -> None:
    error = attempt(engine, word, memory_bytes=8 * MIB)
    assert isinstance(error, OutOfMemory)
    assert error.limit_bytes == 8 * MIB


def test_an_endless_loop_ends_at_the_wall_clock(engine: Engine) -> None:
    error = attempt(engine, "loop", wall_s=0.05)
    assert isinstance(error, TimedOut)
    assert (error.what, error.limit_s) == ("wall", 0.05)


def test_an_endless_loop_ends_at_the_cpu_limit(engine: Engine) -> None:
    error = attempt(engine, "loop", cpu_s=0.05)
    assert isinstance(error, TimedOut)
    assert (error.what, error.limit_s) == ("cpu", 0.05)


def test_too_many_items(engine: Engine) -> None:
    fn = function(built("attempt.c"), output_items=10)
    assert len(first(run(engine, fn, b"items 10 1"))) == 10
    for count in (11, 10_000):
        error = attempt(engine, f"items {count} 0", output_items=10)
        assert isinstance(error, BadOutput)
        assert "items" in error.message


def test_too_many_bytes(engine: Engine) -> None:
    fn = function(built("attempt.c"), output_bytes=10_000)
    assert first(run(engine, fn, b"items 10 1000")).size_bytes == 10_000
    error = attempt(engine, "items 10 1001", output_bytes=10_000)
    assert isinstance(error, BadOutput)
    assert "bytes" in error.message


def test_exiting_without_a_code(engine: Engine) -> None:
    error = attempt(engine, "silent")
    assert isinstance(error, Exited)
    assert error.code == -1


# --- outputs ----------------------------------------------------------------------------------

HUGE = 2**64 - 1
FORGED = {
    "counts": (0, 0, 0, 0, 0, HUGE, 0x20000, 0, 0x20000),
    "one set too many": (0, 0, 0, 0, 0, 2, 0x20000, 0, 0x20000),
    "null": (0, 0, 0, 0, 0, 1, 0, 0, 0),
    "below the context": (0, 0, 0, 0, 0, 1, 0x8000, 0, 0x20000),
    "beyond the end": (0, 0, 0, 0, 0, 1, 1 << 40, 0, 0x20000),
    "across the end": (0, 0, 0, 0, 0, 1, 32 * MIB + 4096 - 8, 0, 0x20000),
    "near 2^64": (0, 0, 0, 0, 0, 1, HUGE - 7, 0, HUGE - 7),
    "misaligned": (0, 0, 0, 0, 0, 1, 0x20001, 0, 0x20000),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_system_data(engine: Engine, name: str) -> None:
    data = NATIVE.system.pack(*FORGED[name])
    error = attempt(engine, "outputs", data)
    assert isinstance(error, BadOutput), error


def test_random_system_data(engine: Engine) -> None:
    """A few hundred through a real sandbox; `test_native` has many more for the reader alone."""
    import random

    rng = random.Random(5)
    interesting = [0, 1, 2, 8, 0x10000, 0x20000, 0x403000, 32 * MIB, 2**31, 2**32, 2**63, HUGE]
    fn = function(built("attempt.c"))
    for _ in range(200):
        fields = [0] + [rng.choice(interesting) for _ in range(8)]
        try:
            run(engine, fn, b"outputs", struct.pack("<i4x8Q", *fields))
        except BadOutput:
            continue
