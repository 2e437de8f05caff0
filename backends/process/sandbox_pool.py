"""The node's side of a zygote: a pool of ready sandboxes.

A `SandboxPool` has one content: declared imports, and packages of functions of a tenant. Its zygote
keeps `ahead` sandboxes ready, queued in the control socket. Any engine's thread may take one
without a lock, and then requests the next. If the zygote is gone, the next `take` starts another.

One pool serves a group of engines (see `dandelion.backends.process.cores`). A zygote for each
engine would cost an interpreter per core and import set. One zygote for all cores would make all
forks, and a fork takes about half a millisecond.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import msgspec

from dandelion.errors import EngineDied, SandboxLost

from . import wire
from .connected import start_connected
from .handle import NoSandbox, Sandbox, wait_readable
from .import_limits import ImportWatch
from .zygote import QUERY, REPLACE, REQUEST, URGENT
from .zygote_messages import EXIT_S, ForgedMessage, has_ended, read_message
from .zygote_start import start_message, start_process

_MESSAGE_BYTES = 64 * 1024
_ATTEMPTS = 3
_ANSWER_S = 1.0  # a zygote answers at once
_READY_SOON_NS = 2_000_000
_NOW = int(socket.MSG_DONTWAIT)
_ended = msgspec.msgpack.Decoder(wire.SandboxExit)


class SandboxContent(NamedTuple):
    """What sandboxes have besides the modules of all.

    Attributes:
        imports: modules that are loaded before a sandbox is locked.
        environment: folder with packages that functions brought along; empty for none.
        tenant: whose functions these are; empty without packages.
    """

    imports: tuple[str, ...] = ()
    environment: str = ""
    tenant: str = ""


PLAIN = SandboxContent()


class ImportFailed(Exception):
    """A declared import failed in a sandbox. The text says why."""


class SandboxPool:
    """Sandboxes with one content. Safe to use from any thread.

    Args:
        name: for errors.
        content: what is loaded before a sandbox is locked.
        ahead: how many sandboxes are kept ready.
        niceness: of the sandboxes, see ``nice(2)``.
    """

    def __init__(
        self,
        name: str,
        content: SandboxContent = PLAIN,
        ahead: int = 4,
        niceness: int = 0,
    ) -> None:
        self.name = name
        self._niceness = niceness
        self.content = content
        self.ahead = ahead
        self._lock = threading.Lock()
        self._zygote: _Zygote | None = None
        self._closed = False

    def start(self) -> None:
        """Start the zygote, if there is none, without waiting for it."""
        self._running()

    def facts(self, timeout_s: float = 30.0) -> dict[str, str]:
        """Report what is enforced in a sandbox that is taken for this.

        Raises:
            EngineDied: no sandbox started.
        """
        try:
            sandbox = self.take(time.monotonic_ns() + int(timeout_s * 1e9))
        except (NoSandbox, ImportFailed) as error:
            raise EngineDied(self.name, f"no sandbox: {error}") from None
        facts = dict(self._running().facts)
        denied = "denied calls are reported by name" if sandbox.listener else "denied calls kill"
        facts["seccomp"] = f"allow-list, {denied}"
        sandbox.close()
        self.replace(sandbox.pid)
        return facts

    def pid(self) -> int:
        """Process id of the zygote, for tests and traces."""
        return self._running().process.pid

    def take(self, deadline_ns: int) -> Sandbox:
        """Take a ready sandbox. Call `replace` soon after.

        Raises:
            NoSandbox: none was ready before `deadline_ns`.
            ImportFailed: a declared import cannot be loaded.
            SandboxLost: zygotes or sandboxes die repeatedly.
            EngineDied: it was closed.
        """
        lost = dead = 0
        while lost < _ATTEMPTS and dead < _ATTEMPTS + self.ahead:
            zygote = self._running()
            try:
                sandbox = zygote.take(deadline_ns)
            except ForgedMessage as error:
                self._lost(zygote)
                raise ImportFailed(
                    f"its packages take part in the engine's messages: {error}"
                ) from None
            except ImportFailed:
                self._lost(zygote)  # it ends after this message
                raise
            except (EOFError, OSError):
                lost += 1
                zygote.note_end()
                self._lost(zygote)
                if zygote.ended_in_imports and (lost == _ATTEMPTS or not zygote.was_killed):
                    raise ImportFailed(zygote.ended_in_imports) from None
                continue
            if sandbox is not None:
                return sandbox
            dead += 1
        raise SandboxLost(self.name, "its sandboxes die before they have a call")

    def take_if_ready(self) -> Sandbox | None:
        """Take a sandbox if one is ready within 2 ms. Call `replace` once it is used."""
        try:
            return self.take(time.monotonic_ns() + _READY_SOON_NS)
        except (NoSandbox, ImportFailed, EngineDied):
            return None

    def replace(self, pid: int = 0) -> None:
        """Have a used sandbox killed and another one made; 0 stands for one that is gone."""
        zygote = self._zygote
        if zygote is not None:
            zygote.ask(REQUEST.pack(REPLACE, pid))

    def ended(self, sandbox: Sandbox) -> wire.SandboxExit | None:
        """Return how a sandbox ended, once its pidfd is readable; None if that is unknown."""
        zygote = self._zygote
        if zygote is None:
            return None
        ended = zygote.ended(sandbox.pid)
        if ended is None:
            self._lost(zygote)  # its ready sandboxes are killed with it
        return ended

    def close(self) -> None:
        """Kill the zygote and with it all its sandboxes. May be called twice."""
        with self._lock:
            self._closed = True
            zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.close()

    def _running(self) -> _Zygote:
        with self._lock:
            if self._closed:
                raise EngineDied(self.name, "it was closed")
            if self._zygote is None:
                try:
                    self._zygote = _Zygote(self.content, self.ahead, self._niceness)
                except (OSError, RuntimeError) as error:  # RuntimeError: there is no thread left
                    raise SandboxLost(self.name, f"its zygote cannot start: {error}") from None
            return self._zygote

    def _lost(self, zygote: _Zygote) -> None:
        with self._lock:
            if self._zygote is zygote:
                self._zygote = None
        zygote.close()


class _Zygote:
    """One zygote process and the connection to it.

    Several threads use the connection at once. So it is shut down first, and closed by the last of
    them: the number of a closed descriptor may be reused while another thread still uses it.
    """

    def __init__(self, content: SandboxContent, ahead: int, niceness: int = 0) -> None:
        self.facts: dict[str, str] = {}
        self.ended_in_imports = ""  # how, if packages of functions may be at fault
        self.was_killed = False  # in its imports: by these, or from outside
        self._is_ready = False
        self._content = content
        self._lock = threading.Lock()
        self._users = 0
        self._closing = False
        self._watch: ImportWatch | None = None

        def start(control: socket.socket, theirs: int, life: int) -> subprocess.Popen[bytes]:
            imports, environment = content.imports, content.environment
            settings = wire.ZygoteSettings(life, imports, ahead, niceness, environment)
            control.send(start_message(settings))
            return start_process(theirs, life)

        self.process, self._control, self._life = start_connected(start)
        if content.environment:
            try:
                self._watch = ImportWatch(self.process.pid, self._has_message, self._end_imports)
            except BaseException:
                self.close()
                raise

    def _has_message(self) -> bool:
        poll = select.poll()
        with suppress(EOFError), self._connection() as control:
            poll.register(control, select.POLLIN)
            return bool(poll.poll(0))
        return True

    def _end_imports(self, reason: str) -> None:
        """Kill it while it loads packages."""
        self.ended_in_imports = reason
        self._kill_group()

    def note_end(self) -> None:
        """Note how it ended, if it did while it loaded packages."""
        if not self._content.environment or self.facts or self.ended_in_imports:
            return
        if has_ended(self.process.pid, EXIT_S):
            self._kill_group()
            code = self._reap()
            self.ended_in_imports = f"its imports ended the process with code {code}"
            self.was_killed = code == -signal.SIGKILL

    def take(self, deadline_ns: int) -> Sandbox | None:
        """Take a sandbox; None if the next one is dead, then another one is requested.

        Raises:
            NoSandbox, ImportFailed: see `SandboxPool.take`.
            EOFError, OSError: the zygote is gone.
            ForgedMessage: it is not what it was.
        """
        with self._connection() as control:
            while True:
                data, files = _next(control, deadline_ns)
                parent = self.process.pid if self._content.environment else None
                message = read_message(data, files, parent)
                if isinstance(message, wire.ZygoteReady):
                    if self._is_ready:
                        raise ForgedMessage("it was ready before")
                    self._is_ready = True
                    if self._watch is not None:
                        self._watch.finish()
                    self.facts.update(message.facts)
                elif isinstance(message, wire.Forked | wire.ForkFailed):
                    sandbox = _sandbox(message.pid, files) if files else None
                    if sandbox is None:
                        self.ask(REQUEST.pack(REPLACE, message.pid))
                    return sandbox
                elif message.user:
                    raise ImportFailed(message.message)
                else:
                    self.ask(REQUEST.pack(REPLACE, 0))
                    raise SandboxLost(f"zygote {self.process.pid}", message.message)

    @contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        with self._lock:
            if self._closing:
                raise EOFError
            self._users += 1
        try:
            yield self._control
        finally:
            with self._lock:
                self._users -= 1
                last = self._closing and not self._users
            if last:
                self._control.close()

    def ask(self, message: bytes) -> None:
        """Send a request; if the zygote is gone, the next `take` detects it."""
        with suppress(EOFError, OSError), self._connection() as control:
            control.send(message)

    def ended(self, pid: int) -> wire.SandboxExit | None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            ours.settimeout(_ANSWER_S)
            try:
                with theirs, self._connection() as control:
                    wire.send(control, [REQUEST.pack(QUERY, pid)], [theirs.fileno()])
                message, _ = wire.receive(ours, 256, 0)
                return _ended.decode(message) if message else None
            except (EOFError, OSError, msgspec.DecodeError):
                return None

    def close(self) -> None:
        """Kill and reap it. May be called twice, and by several threads."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            os.close(self._life)
            self._control.shutdown(socket.SHUT_RDWR)
            unused = not self._users
        if unused:
            self._control.close()
        self._end()

    def _end(self) -> None:
        self._kill_group()
        self._end_watch()  # `kill` reaps it if it has ended
        self.process.kill()
        self._reap()

    def _reap(self) -> int:
        """Wait for its end; return its code. Afterwards its number may be another process's."""
        self._end_watch()
        return self.process.wait()

    def _end_watch(self) -> None:
        """Stop watching its session, which the watch knows by the number of this process."""
        if self._watch is not None:
            self._watch.close()

    def _kill_group(self) -> None:
        """Kill it with all processes that its imports left; none can leave its group."""
        if self.process.returncode is None:  # else the number may be another process's
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def _sandbox(pid: int, files: list[int]) -> Sandbox | None:
    """Make the handle of a sandbox; None if it has died meanwhile."""
    channel_fd, pidfd, output, log, *listener = files
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=channel_fd)
    sandbox = Sandbox(pid, channel, pidfd, output, log, listener[0] if listener else None)
    if sandbox.ended(0):
        sandbox.close()
        return None
    return sandbox


def _next(control: socket.socket, deadline_ns: int) -> tuple[bytes, list[int]]:
    """Wait for the next message of a zygote. Its last messages can be read after it has ended."""
    while True:
        try:
            message, files = wire.receive(control, _MESSAGE_BYTES, 5, _NOW)
        except BlockingIOError:
            with suppress(OSError):  # it reads no requests until its imports have succeeded
                control.send(REQUEST.pack(URGENT, 0), _NOW)
            wait_readable(control, deadline_ns)
            continue
        except ConnectionResetError:  # comes once, before its messages, if it left requests unread
            continue
        if not message:
            raise EOFError
        return message, files
