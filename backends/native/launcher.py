"""The program of zygotes and sandboxes, made from `launcher.S`: its data, its filter, its ELF file.

The filter is installed once, by the zygote, and inherited by every sandbox, so that a call does not
wait for it. That works because it looks at *where* a system call is made:

first page     what a zygote and a sandbox need before the function runs; the page is then unmapped,
               and since no memory can be mapped any more, no code can run there again
second page    `exit_group`, and the `munmap` of the first page with exactly these arguments
anywhere else  ``arch_prctl(ARCH_SET_FS)``; every other call is a trap

A trap (SECCOMP_RET_TRAP) is a signal with the number of the call. Like all faults, it is handled by
the second page, which writes a report and ends the process. So the function's ``exit`` is a trap
too, and its report proves that the function ended by itself. Tried and dropped:
SECCOMP_RET_KILL_PROCESS does not report which call it was; SECCOMP_RET_USER_NOTIF does, but costs a
listener for every sandbox and a second descriptor to wait for, and does not report faults; ptrace
stops the process at every call and twice more.

Source: ``seccomp(2)``, ``sigaltstack(2)``, ``linux/filter.h``, ``elf(5)``.
"""

from __future__ import annotations

import signal
import struct
from pathlib import Path

BASE = 0x1000_0000_0000
"""Address of the launcher: above every context."""

CODE = BASE + 0x2000
RESIDENT = BASE + 0x3000
REPORT = BASE + 0x4000
REPORT_BYTES = 0x4000
MAGIC = 0x216E6F6974636E75
ROW = struct.Struct("<q6Q")

_BINARY = Path(__file__).with_name("launcher.bin")
_HANDLER = RESIDENT + 0x80
_PAGES_THAT_GO = 0x3000

_REQUEST, _CALL, _SET_UP, _ROWS = 0x010, 0x080, 0x200, 0x1000  # as in launcher.S
_REQUEST_VECTOR, _REQUEST_TEXT, _REQUEST_RIGHTS = 0x048, 0x058, 0x060
_CALL_VECTOR, _CALL_RIGHTS = 0x0C0, 0x0D0
_STACK, _ACTION, _PROGRAM, _FILTER = 0x600, 0x620, 0x640, 0x680

_SYSTEM_CALLS = {
    "write": 1, "close": 3, "mmap": 9, "munmap": 11, "rt_sigaction": 13, "recvmsg": 47,
    "clone": 56, "exit": 60, "wait4": 61, "getppid": 110, "sigaltstack": 131, "prctl": 157,
    "arch_prctl": 158, "exit_group": 231, "seccomp": 317,
}  # fmt: skip
_BEFORE = ("recvmsg", "wait4", "mmap", "close", "clone", "write", "prctl", "getppid", "exit_group")
_SIGNALS = (
    signal.SIGILL, signal.SIGTRAP, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGSYS,
)  # fmt: skip
_SET_FS = 0x1002
_PR_SET_DUMPABLE = 4
_SS_AUTODISARM = 1 << 31
_SA_SIGINFO, _SA_RESTORER, _SA_ONSTACK = 0x4, 0x04000000, 0x08000000
_SET_MODE_FILTER = 1

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_TRAP, _ALLOW = 0x00030000, 0x7FFF0000
_X86_64 = 0xC000003E
_NUMBER, _ARCHITECTURE, _WHERE, _ARGUMENTS = 0, 4, 8, 16

_READ_WRITE, _READ_EXECUTE = 6, 5
_HEADER_BYTES = 0x1000

Instruction = tuple[int, int, str, str]
"""Code, operand, and the jump targets if true and if false (a label; empty: the next)."""


def _filter() -> bytes:
    program: list[Instruction | str] = [
        (_LOAD, _ARCHITECTURE, "", ""),
        (_EQUAL, _X86_64, "", "trap"),
        (_LOAD, _WHERE + 4, "", ""),
        (_EQUAL, BASE >> 32, "", "function"),
        (_LOAD, _WHERE, "", ""),
        (_AT_LEAST, REPORT & 0xFFFFFFFF, "trap", ""),
        (_AT_LEAST, RESIDENT & 0xFFFFFFFF, "resident", ""),
        (_AT_LEAST, CODE & 0xFFFFFFFF, "", "trap"),
        (_LOAD, _NUMBER, "", ""),
        *((_EQUAL, _SYSTEM_CALLS[name], "allow", "") for name in _BEFORE),
        (_RETURN, _TRAP, "", ""),
        "resident",
        (_LOAD, _NUMBER, "", ""),
        (_EQUAL, _SYSTEM_CALLS["exit_group"], "allow", ""),
        (_EQUAL, _SYSTEM_CALLS["munmap"], "", "trap"),
        *_only(0, BASE),
        *_only(1, _PAGES_THAT_GO),
        (_RETURN, _ALLOW, "", ""),
        "function",
        (_LOAD, _NUMBER, "", ""),
        (_EQUAL, _SYSTEM_CALLS["arch_prctl"], "", "trap"),
        (_LOAD, _ARGUMENTS, "", ""),
        (_EQUAL, _SET_FS, "allow", ""),
        "trap",
        (_RETURN, _TRAP, "", ""),
        "allow",
        (_RETURN, _ALLOW, "", ""),
    ]
    return _assembled(program)


def _only(argument: int, value: int) -> list[Instruction]:
    low = _ARGUMENTS + 8 * argument
    return [
        (_LOAD, low, "", ""),
        (_EQUAL, value & 0xFFFFFFFF, "", "trap"),
        (_LOAD, low + 4, "", ""),
        (_EQUAL, value >> 32, "", "trap"),
    ]


def _assembled(program: list[Instruction | str]) -> bytes:
    labels: dict[str, int] = {}
    instructions: list[Instruction] = []
    for line in program:
        if isinstance(line, str):
            labels[line] = len(instructions)
        else:
            instructions.append(line)

    def distance(at: int, label: str) -> int:
        return labels[label] - at - 1 if label else 0

    return b"".join(
        struct.pack("<HBBI", code, distance(at, true), distance(at, false), operand)
        for at, (code, operand, true, false) in enumerate(instructions)
    )


def rows(*calls: tuple[int, ...], then: tuple[int, int] = (0, 0)) -> bytes:
    """Encode rows and the two values after the last one: for a sandbox entry and stack pointer."""
    written = [ROW.pack(*call, *[0] * (7 - len(call))) for call in calls]
    return b"".join(written) + struct.pack("<q2Q", -1, *then)


def mmap_row(
    address: int, size_bytes: int, protection: int, flags: int, file: int, offset: int
) -> tuple[int, ...]:
    """Encode a mapping as a row."""
    return (_SYSTEM_CALLS["mmap"], address, size_bytes, protection, flags, file, offset)


def _data() -> bytearray:
    """Fill the two pages of data: the kernel's records, and the zygote's rows."""
    data = bytearray(0x2000)

    def put(offset: int, layout: str, *values: int) -> None:
        struct.pack_into(layout, data, offset, *values)

    def message(offset: int, vector: int, text: int, size: int, rights: int, room: int) -> None:
        put(vector, "<2Q", BASE + text, size)
        put(offset, "<QQQQQQi", 0, 0, BASE + vector, 1, BASE + rights, room, 0)

    message(_REQUEST, _REQUEST_VECTOR, _REQUEST_TEXT, 8, _REQUEST_RIGHTS, 24)
    message(_CALL, _CALL_VECTOR, _ROWS, 4096, _CALL_RIGHTS, 24)
    filter_ = _filter()
    flags = _SA_SIGINFO | _SA_ONSTACK | _SA_RESTORER
    put(_STACK, "<QiiQ", REPORT + 256, _SS_AUTODISARM - (1 << 32), 0, REPORT_BYTES - 256)
    put(_ACTION, "<4Q", _HANDLER, flags, _HANDLER, 2**64 - 1)
    put(_PROGRAM, "<QQ", len(filter_) // 8, BASE + _FILTER)
    data[_FILTER : _FILTER + len(filter_)] = filter_
    calls = _SYSTEM_CALLS
    set_up = rows(
        (calls["prctl"], _PR_SET_DUMPABLE, 0),
        (calls["sigaltstack"], BASE + _STACK, 0),
        *((calls["rt_sigaction"], number, BASE + _ACTION, 0, 8) for number in _SIGNALS),
        (calls["seccomp"], _SET_MODE_FILTER, 0, BASE + _PROGRAM),
    )
    data[_SET_UP : _SET_UP + len(set_up)] = set_up
    return data


def executable() -> bytes:
    """Make the ELF file of the launcher."""
    code = _BINARY.read_bytes()
    data = _data()
    header = struct.pack(
        "<4sBBBB8xHHIQQQIHHHHHH",
        b"\x7fELF",
        2,
        1,
        1,
        0,
        2,
        62,
        1,
        CODE,
        64,
        0,
        0,
        64,
        56,
        3,
        0,
        0,
        0,
    )
    segments = (
        (1, _READ_WRITE, _HEADER_BYTES, BASE, len(data)),
        (1, _READ_EXECUTE, _HEADER_BYTES + len(data), CODE, len(code)),
        (0x6474E551, _READ_WRITE, 0, 0, 0),  # PT_GNU_STACK: not executable
    )
    for kind, flags, offset, address, size in segments:
        header += struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, 4096)
    return header.ljust(_HEADER_BYTES, b"\0") + bytes(data) + code
