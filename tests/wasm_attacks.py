"""A process that runs WebAssembly, as if a module had escaped: it makes the system calls of a test.

The program prepares an engine as an engine process does, with or without confinement. Then it takes
attacks, each a list of system calls, and reports what they returned. Without confinement each
attack runs in a fork, since it may end the process.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from dandelion.backends.wasm.driver import WasmDriver

from dandelion.confinement.syscalls import native
from dandelion.search_path import small_environment

Word = int | str
"""An argument: a number, a text in memory, or ``$0``: what call 0 of the attack returned."""
SystemCall = tuple[str, tuple[Word, ...]]
LIMIT_S = 30.0
_FORKS = ("fork", "vfork", "clone")
_BUFFER_BYTES = 4096


class Attack(msgspec.Struct, frozen=True):
    """System calls, in order."""

    calls: tuple[SystemCall, ...]


class AttackResult(msgspec.Struct, frozen=True):
    """What each call returned, errors as negative numbers; without end if another program runs."""

    returned: tuple[int, ...]


class Attacker:
    """The test's side of the process."""

    def __init__(self, peer: socket.socket, child: subprocess.Popen[bytes]) -> None:
        self._peer = peer
        self.child = child

    def run(self, *calls: SystemCall) -> tuple[int, ...]:
        """Have the process make system calls."""
        self._peer.send(msgspec.json.encode(Attack(calls)))
        return msgspec.json.decode(self._peer.recv(1 << 16), type=AttackResult).returned


@contextmanager
def attacker(confined: bool) -> Iterator[Attacker]:
    """Start the process, and end it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(LIMIT_S)
    program = f"from tests.wasm_attacks import main; main({theirs.fileno()}, {confined})"
    environment = small_environment()
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parents[1])
    with ours:
        with theirs:
            child = subprocess.Popen(
                [sys.executable, "-c", program], env=environment, pass_fds=(theirs.fileno(),)
            )
        try:
            assert ours.recv(16) == b"ready", "it is confined"
            yield Attacker(ours, child)
        finally:
            ours.close()
            child.wait(LIMIT_S)


def main(channel: int, confined: bool) -> None:
    """Be the process."""
    peer = socket.socket(fileno=channel)
    factory = WasmDriver().factory()
    engine = factory.engine("0")
    library = ctypes.CDLL(None, use_errno=True)
    numbers = native().numbers
    calls = Calls(library, numbers)
    calls.run(Attack((("getpid", ("warm", 0)),)))
    msgspec.json.decode(msgspec.json.encode(Attack(())), type=Attack)
    msgspec.json.encode(AttackResult((1,)))
    if confined:
        factory.confine(engine, channel, lambda: None)
    else:
        engine.close()
        assert threading.active_count() == 1
    peer.send(b"ready")
    while order := peer.recv(1 << 16):
        attack = msgspec.json.decode(order, type=Attack)
        if confined:
            peer.send(msgspec.json.encode(calls.run(attack)))
        else:
            _run_apart(peer, calls, attack)
    os._exit(0)


def _run_apart(peer: socket.socket, calls: Calls, attack: Attack) -> None:
    child = os.fork()
    if child == 0:
        try:
            peer.send(msgspec.json.encode(calls.run(attack)))
        finally:
            os._exit(3)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 3:  # another program ran
        peer.send(msgspec.json.encode(AttackResult((0,))))


class Calls:
    """Makes system calls."""

    def __init__(self, library: ctypes.CDLL, numbers: dict[str, int]) -> None:
        self._call = library.syscall
        self._call.restype = ctypes.c_long
        self._numbers = numbers

    def run(self, attack: Attack) -> AttackResult:
        """Make the calls of an attack."""
        returned: list[int] = []
        for name, words in attack.calls:
            texts = [ctypes.create_string_buffer(str(w).encode(), _BUFFER_BYTES) for w in words]
            arguments = [
                ctypes.c_long(_value(word, ctypes.addressof(text), returned))
                for word, text in zip(words, texts, strict=True)
            ]
            ctypes.set_errno(0)
            result = self._call(ctypes.c_long(self._numbers[name]), *arguments)
            if name in _FORKS and result == 0:
                os._exit(0)
            returned.append(-ctypes.get_errno() if result == -1 else result)
        return AttackResult(tuple(returned))


def _value(word: Word, address: int, returned: list[int]) -> int:
    if isinstance(word, int):
        return word
    return returned[int(word[1:])] if word.startswith("$") else address
