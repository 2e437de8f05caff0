"""Runs system call filters as the kernel does."""

from __future__ import annotations

import struct

STEPS = 40
"""Instructions for a system call at most; comparing one number after the other takes hundreds."""


def effect(code: bytes, number: int, audit: int, *arguments: int) -> int:
    """Run a program as the kernel does, for one system call."""
    data = struct.pack("<IIQ6Q", number, audit, 0, *arguments, *(0,) * (6 - len(arguments)))
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
