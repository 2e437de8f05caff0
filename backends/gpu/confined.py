"""The engine of a device whose kernels run on the host: a broker that runs none of them itself.

Kernels of users are native code there, so whatever such a process has is theirs. The broker keeps a
number of processes, **kernel hosts** (`.kernel_host`), each for one function alone, and carries the
calls of that function there and back: inputs are copied into a file of memory that the two share,
outputs from there to where the call needs them. So code and data of two functions never meet in a
process, and the arena is mapped in none of them.

A host is believed nothing. What a call needs and gives is planned here, so of an answer only one is
right, up to outputs that may be absent as the blueprint says, and is compared; errors are taken if
they are of a kind that a function can cause. A host that lies, dies or overruns costs its own call
an error and is replaced. The host of a call that is not wanted any more is killed.

When all places are taken, the host goes whose function was not called for longest. One more host,
with the device open and the compiler warm, waits for the next function. All are forked from one
process that has loaded the libraries (`.host_template`). A function that is called often may have a
second host for a while, to find out whether it is faster without threads (`.host_trials`).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from dandelion.confinement import lockdown
from dandelion.data import Item, ItemSet
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.engine_process.messages import WireSets
from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    EngineDied,
    Faulted,
    TimedOut,
)
from dandelion.function import Function

from .host_folder import HostFolders
from .host_memory import POOL_BYTES, HostMemory, Place
from .host_process import LOOK_S, START_LIMIT_S, HostEnded, HostProcess
from .host_template import HostTemplate
from .host_trials import START_NS, HostTrials
from .hosts_ahead import HostsAhead
from .known_answers import KnownAnswer, KnownAnswers
from .lowering import Lowering
from .plan_cache import PlanCache
from .system_limits import explained, limit_of

if TYPE_CHECKING:
    from .host_runtime import HostRuntime
    from .options import GpuOptions

DEFAULT_PROCESSES = 8
MAX_PROCESSES = 256
_END_LIMIT_S = 30.0


class ConfinedEngine(Engine):
    """Runs each function's kernels in a confined process of its own.

    Args:
        options: of the backend.
        runtime: what the processes load.
        resource: which device.
        template: of its processes; the engine closes it. By default one is started.
        trial_ns: what starting a host costs, see `.host_trials`.

    Raises:
        BackendUnavailable: the device cannot be used, or this machine cannot confine a process.
    """

    def __init__(
        self,
        options: GpuOptions,
        runtime: HostRuntime,
        resource: str,
        template: HostTemplate | None = None,
        trial_ns: int = START_NS,
    ) -> None:
        if not lockdown.landlock_abi():
            raise BackendUnavailable(
                options.backend,
                "Landlock, to confine kernels that run on the host",
                f"use Linux 5.19 or newer with Landlock, or set {options.backend}.unconfined=true",
            )
        self.name = f"{options.backend}:{resource or '0'}"
        self._options = options
        self._resource = resource
        self._hosts: OrderedDict[str, HostProcess] = OrderedDict()
        self._ending: list[HostProcess] = []
        self._used: HostProcess | None = None
        self._closed = False
        try:
            self._folders = HostFolders()
        except OSError as error:
            if template is not None:
                template.close()
            raise self._no_process(error) from None
        try:
            self._template = template or HostTemplate(options.backend, options.given, runtime)
        except OSError as error:
            self._folders.close()
            raise self._no_process(error) from None
        self._is_proven = False  # a host was confined, and has run a kernel then
        start = self._start_rival if runtime.without_threads() else None
        self._trials = HostTrials(start, self._end, self._adopt, self._drop, trial_ns)
        try:
            self._ahead = HostsAhead(self._started, self._end)
        except BaseException as error:
            self._template.close()
            self._folders.close()
            if isinstance(error, OSError):
                raise self._no_process(error) from None
            raise
        try:
            first = self._ahead.peek()
            assert first is not None, "it was started just now"
            self.capacity = first.wait_ready(START_LIMIT_S)
        except BaseException:
            self.close()
            raise
        processor = Lowering(on_processor=True)
        limit_bytes = self.capacity.device_bytes
        plans = PlanCache(limit_bytes=limit_bytes, lowering=processor)
        self._answers = KnownAnswers(self.name, plans, limit_bytes)

    # a call

    def _run(self, call: Call) -> InstanceSets:
        if self._closed:
            raise EngineDied(self.name, "it was closed")
        known = self._answers.find(call)
        try:
            return self._attempt(known, call)
        except HostEnded as ended:
            if not ended.killed:
                raise self._error(ended, call) from None
        try:  # the system killed it, perhaps for memory that others took
            return self._attempt(known, call)
        except HostEnded as ended:
            if ended.killed and self._template.is_gone():  # its hosts are killed with it
                raise EngineDied(self.name, "the template of kernel hosts ended") from None
            raise self._error(ended, call) from None

    def _attempt(self, known: KnownAnswer, call: Call) -> InstanceSets:
        identity = call.function.identity
        host = self._trials.choose(call, known, self._host(call))
        try:
            return self._exchange(host, known, call)
        except Cancelled:
            if host is not self._hosts.get(identity):
                self._trials.put_off()  # nothing was found out
            raise
        finally:
            if host.well or host in self._ending:
                pass
            elif self._hosts.get(identity) is host:
                self._drop(identity)
            else:
                self._trials.give_up()

    def _exchange(self, host: HostProcess, known: KnownAnswer, call: Call) -> InstanceSets:
        clock = time.perf_counter_ns
        started = clock()
        host.load(call)
        self._used = host
        place = host.memory.place_call(call, known.context_bytes)
        placed = clock()
        answer, stages = host.run(call, place, known)
        answered = clock()
        outputs = self._outputs(answer, place, call, host.memory)
        stages["copy_in"] = stages.get("copy_in", 0) + placed - started
        stages["copy_out"] = stages.get("copy_out", 0) + clock() - answered
        call.stages.update(stages)
        self._trials.ran(call.function.identity, known, host, answered - placed)
        return outputs

    def _outputs(
        self, answer: WireSets, place: Place, call: Call, memory: HostMemory
    ) -> InstanceSets:
        """Copy the outputs to a context of the call."""
        if not any(answer):
            return (None,) * len(answer)
        context = call.domain.acquire(place.result_bytes)
        sets: list[ItemSet | None] = []
        for wire in answer:
            if wire is None:
                sets.append(None)
                continue
            (item,) = wire.items
            part = context.view[:0]
            if item.size:
                start = item.offset - place.result_offset
                part = context.view[start : start + item.size]
                memory.copy_out(item.offset, part)
            sets.append(ItemSet(wire.name, (Item(item.name, item.key, part.toreadonly()),)))
        return tuple(sets)

    def _error(self, ended: HostEnded, call: Call) -> TimedOut | Faulted:
        name = call.function.spec.name
        if ended.late:
            return TimedOut(name, "wall", call.limit_s)
        return Faulted(name, ended.words)

    # hosts

    def _host(self, call: Call) -> HostProcess:
        """Give the host of a call's function, or make one of it.

        Raises:
            BackendUnavailable, EngineDied, InternalError: no host can be had.
        """
        identity = call.function.identity
        host = self._hosts.get(identity)
        if host is not None and host.is_quiet():
            self._hosts.move_to_end(identity)
            return host
        self._drop(identity)
        if not self._has_room():
            self._trials.put_off()
        while len(self._hosts) >= self._options.processes():
            self._drop(next(iter(self._hosts)))
        host = self._new_host()
        try:
            self._wait(host, call)
        except BaseException:
            self._end(host)
            raise
        self._hosts[identity] = host
        return host

    def _new_host(self) -> HostProcess:
        """Give the host that waits, or a new one.

        Others end for it where the system has a limit: a host takes descriptors, memory, processes.

        Raises:
            EngineDied: there can be no process although there is no other host any more.
        """
        while True:
            try:
                return self._ahead.take()
            except OSError as error:
                self._trials.put_off()
                if self._hosts:
                    self._drop(next(iter(self._hosts)))
                before = len(self._ending)
                self._reap(_END_LIMIT_S)
                if len(self._ending) == before:
                    raise EngineDied(self.name, f"no further process: {explained(error)}") from None

    def _wait(self, host: HostProcess, call: Call) -> None:
        """Wait until a host is confined. The call's time limit begins after it.

        Raises:
            TimedOut, Cancelled: the call's invocation has ended.
            BackendUnavailable, EngineDied, InternalError: the host cannot be used.
        """
        end_s = time.monotonic() + START_LIMIT_S
        while not host.wait_confined(LOOK_S):
            call.start_deadline(time.monotonic_ns())
            if call.is_stopped():
                raise Cancelled("its invocation ended")
            if call.left_s() <= 0:
                raise TimedOut(call.function.spec.name, "wall", call.limit_s)
            if time.monotonic() > end_s:
                raise EngineDied(self.name, "a kernel host does not start")
        self._is_proven = True
        call.start_deadline(time.monotonic_ns())

    def _has_room(self) -> bool:
        """Tell whether there may be one more host, besides those that wait and are tried."""
        tried = self._trials.current is not None
        return len(self._hosts) + tried < self._options.processes()

    def _start_rival(self) -> HostProcess:
        return self._started(threads=False)

    def _adopt(self, identity: str, host: HostProcess) -> None:
        """Make a host that of a function, which has another one."""
        self._end(self._hosts[identity])
        self._hosts[identity] = host

    def _started(self, threads: bool = True) -> HostProcess:
        folder = self._folders.make()
        try:
            return HostProcess(
                self.name,
                self._template,
                folder,
                self._options.backend,
                self._resource,
                self._options.size("pool_bytes") or POOL_BYTES,
                threads,
                rehearse=not self._is_proven,
            )
        except BaseException:
            self._folders.remove(folder)
            raise

    def _no_process(self, error: OSError) -> BackendUnavailable:
        limit = limit_of(error) or (f"no process for kernels can be started: {error}", "")
        return BackendUnavailable(self._options.backend, *limit)

    def _drop(self, identity: str) -> None:
        """End the host of a function, if there is one."""
        host = self._hosts.pop(identity, None)
        self._trials.dropped(identity)
        if host is not None:
            self._end(host)

    def _end(self, host: HostProcess) -> None:
        if self._used is host:
            self._used = None
        host.kill()
        self._ending.append(host)

    def _reap(self, limit_s: float = 0.0) -> None:
        for host in tuple(self._ending):
            if host.is_gone(limit_s):
                self._folders.remove(host.folder)
                self._ending.remove(host)

    def hosts(self) -> dict[str, int]:
        """Process ids of the hosts that have a function, by its identity."""
        return {identity: host.child.pid for identity, host in self._hosts.items()}

    @property
    def facts(self) -> dict[str, str]:
        """What is enforced, by subject; waits until a host knows it."""
        host = self._ahead.take()
        try:
            host.wait_confined(START_LIMIT_S)
            return host.facts
        finally:
            self._end(host)

    # between calls

    def clean_up(self) -> None:
        """Zero what the last call left in the memory of its host."""
        self._ahead.called()
        used, self._used = self._used, None
        if used is not None:
            used.memory.clean()
        self._trials.step(self._has_room())
        if self._ending:
            self._reap()

    def forget(self, function: Function) -> None:
        """End the host of a function that is no longer registered."""
        self._drop(function.identity)
        self._answers.forget(function.identity)

    def close(self) -> None:
        """End all hosts and remove their folders. May be called twice."""
        self._closed = True
        self._ahead.close()
        self._trials.put_off()
        for identity in tuple(self._hosts):
            self._drop(identity)
        self._reap(_END_LIMIT_S)
        self._template.close()
        self._folders.close()
