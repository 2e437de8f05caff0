"""Becoming a zygote: a fresh Python process gives up its rights, then is replaced by the launcher.

Every sandbox inherits these restrictions: no new privileges, no files, a network and IPC namespace
of its own, the user nobody, no capabilities. Standard input is the control socket. Standard output
is a pipe whose other end the node holds; the kernel kills this process when that end closes, see
`dandelion.backends.process.lifetime`.
"""

from __future__ import annotations

import errno
import os
import socket

import msgspec

from dandelion.confinement import libc, lockdown

from ..process import lifetime
from . import launcher

_CONTROL, _LIFE = 0, 1
_MFD_EXEC = 0x10


class NativeZygoteSettings(msgspec.Struct, frozen=True):
    """The start settings of a zygote: the core for its sandboxes, -1 for any."""

    core: int


class ZygoteFacts(msgspec.Struct, frozen=True):
    """A zygote's message before it runs the launcher: what is enforced, or why that failed."""

    facts: dict[str, str] = {}
    failure: str = ""


def run(text: str) -> None:
    """Start with the settings of a command line; returns only if it fails."""
    control = socket.socket(fileno=_CONTROL)
    try:
        lifetime.bind_own_lifetime(_LIFE)
        program = _program()
        facts = _prepare(msgspec.json.decode(text, type=NativeZygoteSettings))
    except Exception as error:
        control.send(msgspec.json.encode(ZygoteFacts(failure=f"{type(error).__name__}: {error}")))
        return
    control.send(msgspec.json.encode(ZygoteFacts(facts)))
    os.closerange(2, program)
    os.closerange(program + 1, 4096)
    try:
        os.execve(program, ["dandelion-native"], {})
    except OSError as error:
        control.send(msgspec.json.encode(ZygoteFacts(failure=f"no program from memory: {error}")))


def _prepare(settings: NativeZygoteSettings) -> dict[str, str]:
    if settings.core >= 0:
        os.sched_setaffinity(0, {settings.core})
    lockdown.allow_descriptors()
    facts = {"namespaces": lockdown.leave_namespaces(), "user": lockdown.drop_identity()}
    abi = lockdown.restrict_files()
    facts["landlock"] = f"ABI {abi}, no files at all" if abi else "none"
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    lockdown.limit_resources()
    return facts


def _program() -> int:
    content = launcher.executable()
    try:
        file = os.memfd_create("dandelion-native", os.MFD_CLOEXEC | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        file = os.memfd_create("dandelion-native", os.MFD_CLOEXEC)  # before Linux 6.3
    os.write(file, content)
    return file
