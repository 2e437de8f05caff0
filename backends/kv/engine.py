"""Requests to key-value stores: the items of a call leave in pieces, each with one round trip.

A piece has items of one store, up to `PIECE_ITEMS` of them and about `PIECE_BYTES` of values. Its
commands are sent at once, then its replies are read, in order. Pieces run at the same time on
connections of their own. After a transient failure, an idempotent piece goes on with the item whose
reply has not been received, on another connection. So each reply is counted once. The library never
repeats a command itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from redis import exceptions
from redis.asyncio import ConnectionPool

from ..stores.engine import StoresEngine, StoreWork, at_once
from ..stores.failures import ItemFailed, ItemRefused, typed_failure
from ..stores.jobs import Job, OpenStore
from .connections import RECEIVER, ValueReceiver, open_pool
from .replies import Command, command_of, failure_of, result_of
from .settings import KvStoreSettings

PIECE_ITEMS = 256
PIECE_BYTES = 1024 * 1024
_KEY_LIMIT_BYTES = 1024
_FIRST_PAUSE_S = 0.05
_LOST = (exceptions.RedisError, OSError, ValueError)
"""A `ValueError` is raised for lines that are too long, or have no number."""

KvWork = StoreWork[ConnectionPool]
KvJob = Job[ConnectionPool]


@dataclass(slots=True)
class Piece:
    """Jobs of one store that share a round trip.

    Attributes:
        jobs: with their positions in the call.
        done: how many of them have their results.
    """

    store: OpenStore[ConnectionPool]
    jobs: list[tuple[int, KvJob]]
    commands: list[Command]
    done: int = 0

    @property
    def current(self) -> KvJob:
        """The job whose reply is next, or the last one."""
        return self.jobs[min(self.done, len(self.jobs) - 1)][1]


class IdleLimit:
    """Moves a time limit when something has arrived; not each time, which takes microseconds.

    Args:
        limit: it is entered.
        idle_s: how long nothing may arrive, within a tenth.
    """

    def __init__(self, limit: asyncio.Timeout, idle_s: float) -> None:
        self._limit = limit
        self._idle_s = idle_s
        self._now_s = asyncio.get_running_loop().time
        self._next_s = 0.0

    def progress(self) -> None:
        """Count what has arrived."""
        now_s = self._now_s()
        if now_s >= self._next_s:
            self._limit.reschedule(now_s + self._idle_s)
            self._next_s = now_s + self._idle_s / 10


class KvEngine(StoresEngine[ConnectionPool, KvStoreSettings]):
    """Performs the requests of many calls at once."""

    name = "kv"

    def _open_store(self, name: str, given: KvStoreSettings) -> ConnectionPool:
        return open_pool(name, given, self._settings.connect_s)

    def _check_path(self, path: str, is_prefix: bool) -> None:
        if len(path.encode()) > _KEY_LIMIT_BYTES:
            raise ItemRefused(f"the key has more than {_KEY_LIMIT_BYTES} bytes")

    async def _perform(self, work: KvWork) -> None:
        async def do(piece: Piece) -> None:
            # A place of the engine is taken last, so a slow store takes no places of others.
            tenant = work.call.tenant
            async with piece.store.places.taken(tenant), self._places.taken(tenant):
                await self._repeated(work, piece)

        pieces = [piece async for piece in self._pieces(work)]
        await at_once(pieces, self._settings.concurrency, do)

    async def _pieces(self, work: KvWork) -> AsyncIterator[Piece]:
        """Divide the jobs; raises `RequestRefused` for a value or an option that is not valid."""
        begun: dict[str, Piece] = {}
        sizes: dict[str, int] = {}
        async for position, job in self._turns.through(enumerate(work.jobs)):
            name, size = job.store.name, len(job.content)
            piece = begun.get(name)
            if piece and (len(piece.jobs) == PIECE_ITEMS or sizes[name] + size > PIECE_BYTES):
                yield begun.pop(name)
                piece = None
            if piece is None:
                piece = begun[name] = Piece(job.store, [], [])
                sizes[name] = 0
            limit = self._settings.stores[name].value_bytes
            try:
                if size > limit:
                    raise ItemRefused(f"the value has {size} bytes, more than {limit}")
                piece.commands.append(command_of(work.operation.name, job))
            except ItemRefused as error:
                raise typed_failure(error, work.function, job.item.name) from None
            piece.jobs.append((position, job))
            sizes[name] += size
        for piece in begun.values():
            yield piece

    async def _repeated(self, work: KvWork, piece: Piece) -> None:
        """Run a piece, again after a transient failure if that does no harm."""
        retries = self._settings.retries if work.call.function.spec.idempotent else 0
        for attempt in range(retries + 1):
            try:
                await self._exchange(work, piece)
                return
            except ItemFailed as error:
                failure = error.with_traceback(None)  # it refers to this frame
            except TimeoutError:  # is an OSError
                idle_s = self._settings.idle_s
                failure = ItemFailed(f"no reply within {idle_s:g} s", transient=True)
            except _LOST as error:
                failure = failure_of(error)
            if not failure.transient or attempt == retries:
                raise typed_failure(failure, work.function, piece.current.item.name)
            await asyncio.sleep(_FIRST_PAUSE_S * 2**attempt)

    async def _exchange(self, work: KvWork, piece: Piece) -> None:
        """Send the commands of a piece on one connection, and read the replies."""
        pool = piece.store.client
        connection: Any = await pool.get_connection()  # type: ignore[no-untyped-call]
        greeting_s, connection.socket_timeout = connection.socket_timeout, None
        try:
            await self._converse(work, piece, connection)
        except BaseException:
            await connection.disconnect(nowait=True)  # replies may be under way
            raise
        finally:
            connection.socket_timeout = greeting_s
            await pool.release(connection)

    async def _converse(self, work: KvWork, piece: Piece, connection: Any) -> None:
        idle_s = self._settings.idle_s
        async with asyncio.timeout(idle_s) as limit:
            progress = IdleLimit(limit, idle_s).progress
            value_bytes = self._settings.stores[piece.store.name].value_bytes
            receiver = ValueReceiver(work.budget, value_bytes, progress)
            before = RECEIVER.set(receiver)
            try:
                await self._turns.pause()
                left = connection.pack_commands(piece.commands[piece.done :])
                await connection.send_packed_command(left)
                async for position, job in self._turns.through(piece.jobs[piece.done :]):
                    receiver.item = job.item.name
                    await self._reply(work, position, job, connection)
                    receiver.finish()
                    piece.done += 1
                    progress()
            finally:
                receiver.give_back()
                RECEIVER.reset(before)

    async def _reply(self, work: KvWork, position: int, job: KvJob, connection: Any) -> None:
        operation = work.operation.name
        try:
            reply = await connection.read_response()
        except exceptions.ResponseError as error:
            reply = error
        target, data = result_of(operation, job, reply)
        if operation == "get" and target == 0 and isinstance(data, bytes):
            data = work.budget.placed(data)
        work.budget.count(job.item.name, 1)
        work.produced[position] = [(target, job.named(data))]

    async def close(self) -> None:
        for store in self._stores.values():
            await store.client.disconnect()
        self._stores.clear()
