"""The processes of one engine: the one in use, a standby, and those that end.

A process that must end is killed and reaped by a thread: a device may take tenths of a second to
release it, and the next process needs little of its memory. Until it has ended, its device may read
and write the memory of the calls that it had, so that memory is kept until then.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from dandelion.engine_process.channel import Channel, Ended
from dandelion.engine_process.descriptors import DescriptorChannel, descriptor_channels
from dandelion.engine_process.messages import Failed, Open, Ready, Reply, reply_channel
from dandelion.errors import DandelionError, EngineDied, from_record
from dandelion.executors.failures import to_dandelion_error
from dandelion.interrupts import blocked_interrupts
from dandelion.memory import ArenaMap
from dandelion.search_path import environment, small_environment

log = logging.getLogger("dandelion.node")

START_LIMIT_S = 60.0
CONFINED_LIMIT_BYTES = 64 << 20
"""Longest message of a confined process, without the data that follows it."""
CODE_LIMIT_S = 0.05
"""How long to wait for the exit code of a process that ended by itself."""
LEAVE_LIMIT_S = 2.0
"""How long a process may take to leave when its node closes."""
_REAP_LIMIT_S = 5.0
_LOOK_S = 0.005


@dataclass(slots=True, eq=False)
class Process:
    """A process and the node's end of the conversation with it.

    Attributes:
        descriptors: passes descriptors of constants; None if the process is confined.
    """

    child: subprocess.Popen[bytes]
    channel: Channel[Reply]
    descriptors: DescriptorChannel | None = None


class Processes:
    """Starts, replaces and ends the processes of one engine. Used by one thread, but for `abandon`.

    Args:
        backends: names of backends; the first that works is used.
        resource: which resource, or empty for the best.
        options: settings of the backends.
        environment: further variables of the processes.
        arena: mapped by them; None if they are confined.
        spin_us: how long a process polls for the next call at most, in microseconds.

    Attributes:
        current: the one in use.
        standby: the one that waits.
        starts: how many were in use.
    """

    def __init__(
        self,
        backends: tuple[str, ...],
        resource: str,
        options: dict[str, dict[str, str]],
        environment: Mapping[str, str],
        arena: ArenaMap | None,
        spin_us: int,
    ) -> None:
        self._arguments = (
            resource,
            str(spin_us),
            msgspec.json.encode(options).decode(),
            *backends,
        )
        self._environment = environment
        self._arena = arena
        self._ending: set[threading.Thread] = set()
        self._left = threading.Event()
        self.current: Process | None = None
        self.standby: Process | None = None
        self.starts = 0

    def start(self, device_bytes: int = 0) -> Reply | None:
        """Have the standby process take over, or else a new one, and start the next standby.

        Args:
            device_bytes: of the engine that is to be replaced.

        Returns:
            What it said first; None if it ended.
        """
        standby, self.standby = self.standby, None
        reply = None
        if standby is not None:
            reply = self._opened(standby, device_bytes)
            if not isinstance(reply, Ready):
                self.current = None
                self.end(standby)
        if not isinstance(reply, Ready):
            self.wait_for_ends(START_LIMIT_S)  # there may have been no room beside them
            if self.leaving:
                return None
            reply = self._opened(self._spawned(), device_bytes)
        if isinstance(reply, Ready) and reply.standby and not self.leaving:
            with contextlib.suppress(OSError):  # it goes without
                self.standby = self._spawned()
        return reply

    def started(self, device_bytes: int, name: str) -> Ready | DandelionError:
        """Start as `start` does; gives the first message of an engine that is up, or the reason.

        Args:
            device_bytes: of the engine that is to be replaced.
            name: of the engine, for errors.
        """
        try:
            reply = self.start(device_bytes)
        except Exception as error:
            return to_dandelion_error(error, name)
        if isinstance(reply, Ready):
            return reply
        current, self.current = self.current, None
        limit_s = LEAVE_LIMIT_S if self.leaving else CODE_LIMIT_S
        code = None if current is None else self.end(current, limit_s)
        if isinstance(reply, Failed):
            return from_record(reply.error)
        return EngineDied(name, f"{described_end(code)} before it was up")

    def _spawned(self) -> Process:
        """Start a process that prepares itself until it is told to open its engine."""
        ours, theirs = socket.socketpair()
        arena = self._arena
        with theirs:
            if arena is None:
                child = self._child(theirs.fileno(), -1, -1, 0, env=small_environment())
                return Process(child, reply_channel(ours, CONFINED_LIMIT_BYTES))
            descriptors, passed = descriptor_channels()
            with passed:
                child = self._child(
                    theirs.fileno(),
                    passed.fileno(),
                    arena.fd,
                    arena.size_bytes,
                    env=environment(self._environment),
                )
        return Process(child, reply_channel(ours), descriptors)

    def _child(
        self, peer: int, descriptors: int, arena: int, arena_bytes: int, env: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        place = map(str, (peer, descriptors, arena, arena_bytes))
        with blocked_interrupts():
            return subprocess.Popen(
                [sys.executable, "-m", "dandelion.engine_process", *place, *self._arguments],
                pass_fds=[fd for fd in (peer, descriptors, arena) if fd >= 0],
                stdin=subprocess.DEVNULL,
                env=env,
            )

    def _opened(self, process: Process, device_bytes: int) -> Reply | None:
        """Make a process the one that is used; gives its first message."""
        self.current = process
        if self.leaving:
            self.abandon()
        self.starts += 1
        try:
            process.channel.send(Open(self.starts > 1, device_bytes), START_LIMIT_S)
            return process.channel.receive(START_LIMIT_S)
        except (OSError, Ended):
            return None

    def abandon(self) -> None:
        """Have all end soon, whatever they are at; from any thread."""
        self._left.set()
        for process in (self.current, self.standby):
            if process is not None:
                with contextlib.suppress(OSError):
                    process.channel.peer.shutdown(socket.SHUT_RDWR)

    @property
    def leaving(self) -> bool:
        """Whether they were abandoned."""
        return self._left.is_set()

    def pause(self, limit_s: float) -> bool:
        """Sleep. False if they were abandoned."""
        return not self._left.wait(limit_s)

    # the end

    def end(self, process: Process, limit_s: float = 0.0, keep: object = None) -> int | None:
        """Let a process leave, kill it after a while, and reap it, if need be in the background.

        Args:
            process: it is not used any more.
            limit_s: how long it may take to leave by itself.
            keep: memory that its device may use as long as it is there.

        Returns:
            Its exit code, if it left by itself.
        """
        process.channel.close()
        if process.descriptors is not None:
            process.descriptors.close()
        try:
            return process.child.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.child.kill()
        reaper = _Reaper(process.child, keep)
        try:
            reaper.start()
        except RuntimeError:  # the program ends; there are no new threads any more
            reaper.run()
        else:
            self._ending = {thread for thread in self._ending if thread.is_alive()} | {reaper}
        return None

    @property
    def ending(self) -> bool:
        """Whether a process that was ended may still hold memory of its device."""
        return any(thread.is_alive() for thread in self._ending)

    def wait_for_ends(self, limit_s: float) -> None:
        """Wait until no process is there any more that was ended, or all are abandoned."""
        end_s = time.monotonic() + limit_s
        while self.ending and time.monotonic() < end_s and self.pause(_LOOK_S):
            pass

    def close(self) -> None:
        """End the standby, and wait a limited time for all that were ended."""
        standby, self.standby = self.standby, None
        if standby is not None:
            self.end(standby)
        end_s = time.monotonic() + _REAP_LIMIT_S
        for thread in self._ending:
            thread.join(max(0.0, end_s - time.monotonic()))


def described_end(code: int | None) -> str:
    """Say how a process ended that has this exit code; None if it is not known."""
    if code is None:
        return "its process ended"
    return (
        f"its process was killed by signal {-code}" if code < 0 else f"it exited with code {code}"
    )


class _Reaper(threading.Thread):
    """Waits for a child that was killed, and keeps something as long."""

    def __init__(self, child: subprocess.Popen[bytes], keep: object) -> None:
        super().__init__(name="dandelion-reaper", daemon=True)
        self._child = child
        self._keep = keep

    def run(self) -> None:
        code = self._child.wait()
        self._keep = None
        if code not in (0, -signal.SIGKILL):
            log.warning("an engine process that was lost ended with code %d", code)
