"""The loop over the items of a call, for engines of stores."""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from dandelion.data import Item, ItemSet
from dandelion.driver import AsyncEngine, Call, InstanceSets
from dandelion.errors import TimedOut
from dandelion.function import FunctionSpec
from dandelion.tenant_places import TenantPlaces

from .bodies import OutputBudget
from .failures import ItemFailed, ItemRefused, typed_failure
from .jobs import Job, JobReader, OpenStore, Operation
from .settings import StoreSettings, StoresSettings
from .turns import Turns

C = TypeVar("C")
S = TypeVar("S", bound=StoreSettings)
T = TypeVar("T")

Produced: TypeAlias = Sequence[tuple[int, Item]]
"""Output items of a job, each with the position of its set."""


@dataclass(slots=True)
class StoreWork(Generic[C]):
    """One call.

    Attributes:
        produced: by position of the job.
    """

    call: Call
    operation: Operation
    jobs: list[Job[C]]
    budget: OutputBudget
    produced: list[Produced]

    @property
    def function(self) -> FunctionSpec:
        """The function, for errors."""
        return self.call.function.spec


class StoresEngine(AsyncEngine, Generic[C, S]):
    """Performs the requests of many calls at once.

    A subclass opens stores (`_open_store`), checks paths (`_check_path`) and does a job (`_one`),
    or all jobs of a call (`_perform`).

    Args:
        settings: the operator's.
        operations: by name.
    """

    def __init__(self, settings: StoresSettings[S], operations: Mapping[str, Operation]) -> None:
        self._settings = settings
        self._operations = operations
        self._places = TenantPlaces(settings.concurrency)
        self._turns = Turns()
        self._stores = {
            name: OpenStore(
                name, given, self._open_store(name, given), TenantPlaces(given.concurrency)
            )
            for name, given in settings.stores.items()
        }

    @abc.abstractmethod
    def _open_store(self, name: str, given: S) -> C:
        """Make the client of a store, without waiting."""

    @abc.abstractmethod
    def _check_path(self, path: str, is_prefix: bool) -> None:
        """Refuse a path that is not valid; raises `ItemRefused`."""

    async def _one(self, work: StoreWork[C], job: Job[C]) -> Produced:
        """Do one job; raises `ItemRefused` or `ItemFailed`."""
        raise NotImplementedError

    async def _run(self, call: Call) -> InstanceSets:
        began = time.perf_counter_ns()
        left_s = call.left_s()
        try:
            if not left_s:
                raise TimeoutError
            async with asyncio.timeout(left_s):
                outputs = await self._all(call)
        except TimeoutError:
            raise TimedOut(call.function.spec.name, "wall", call.limit_s) from None
        call.stages["requests"] = time.perf_counter_ns() - began
        return outputs

    async def _all(self, call: Call) -> InstanceSets:
        spec = call.function.spec
        operation = self._operations[call.function.code.options["operation"]]
        reader = JobReader(call, operation, self._stores, self._check_path, self._turns)
        jobs = await reader.read()
        budget = OutputBudget(spec.name, spec.limits, call.domain)
        work = StoreWork(call, operation, jobs, budget, [()] * len(jobs))
        await self._perform(work)
        sets: list[list[Item]] = [[] for _ in spec.outputs]
        async for produced in self._turns.through(work.produced):
            for position, item in produced:
                sets[position].append(item)
        pairs = zip(spec.output_names, sets, strict=True)
        return tuple(ItemSet(name, tuple(items)) if items else None for name, items in pairs)

    async def _perform(self, work: StoreWork[C]) -> None:
        """Do all jobs, some at a time."""

        async def do(position: int) -> None:
            job = work.jobs[position]
            # A place of the engine is taken last, so a slow store takes no places of others.
            tenant = work.call.tenant
            async with job.store.places.taken(tenant), self._places.taken(tenant):
                work.produced[position] = await self._attempt(work, job)

        await at_once(range(len(work.jobs)), self._settings.concurrency, do)

    async def _attempt(self, work: StoreWork[C], job: Job[C]) -> Produced:
        try:
            produced = await self._one(work, job)
        except (ItemRefused, ItemFailed) as error:
            raise typed_failure(error, work.function, job.item.name) from None
        work.budget.count(job.item.name, len(produced))
        return produced


async def at_once(jobs: Sequence[T], limit: int, do: Callable[[T], Awaitable[None]]) -> None:
    """Do jobs, at most `limit` at a time. The first failure cancels the others and is raised."""
    if len(jobs) == 1:
        await do(jobs[0])
        return
    left = iter(jobs)

    async def worker() -> None:
        for job in left:
            await do(job)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(limit, len(jobs))):
                group.create_task(worker())
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
