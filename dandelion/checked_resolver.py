"""Names to addresses that may be reached, for clients of aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from functools import partial

from aiohttp.abc import AbstractResolver, ResolveResult

from dandelion.addresses import AddressPolicy, Refused

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class SystemResolver(AbstractResolver):
    """Resolves names by the system, each in a thread of its own. For one event loop.

    The threads of an event loop are few; uvloop resolves two names at a time. There, names whose
    servers do not answer would delay the requests of all tenants by half a minute. A thread waits
    until the system gives up, which it cannot be kept from, but the end of the program does not
    wait for it.

    Args:
        requests: how many are sent at once. There may be twice as many threads, since a request
            may give up before the system does.
    """

    def __init__(self, requests: int) -> None:
        self._places = asyncio.Semaphore(2 * requests)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Resolve a name.

        Raises:
            OSError: the name has no address, or no thread can be started.
            UnicodeError: it is not a name.
        """
        loop = asyncio.get_running_loop()
        await self._places.acquire()
        found: asyncio.Future[list[ResolveResult]] = loop.create_future()

        def end(result: list[ResolveResult] | Exception) -> None:
            self._places.release()
            if found.done():  # the request has given up
                return
            if isinstance(result, Exception):
                found.set_exception(result)
            else:
                found.set_result(result)

        def work() -> None:
            result: list[ResolveResult] | Exception
            try:
                result = _addresses_of(host, port, family)
            except Exception as error:
                result = error.with_traceback(None)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(partial(end, result))

        try:
            threading.Thread(target=work, name="dandelion-names", daemon=True).start()
        except RuntimeError as error:  # the limit of threads
            self._places.release()
            raise OSError(str(error)) from None
        return await found

    async def close(self) -> None:
        """Threads end by themselves."""


def _addresses_of(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    kind, flags = socket.SOCK_STREAM, socket.AI_ADDRCONFIG
    results = []
    for of, _, protocol, _, address in socket.getaddrinfo(host, port, family, kind, 0, flags):
        number = str(address[0])
        if len(address) == 4 and address[3]:  # of one link, whose name belongs to the address
            number, _ = socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
        results.append(
            ResolveResult(
                hostname=host, host=number, port=port, family=of, proto=protocol, flags=_NUMERIC
            )
        )
    return results


class CheckedResolver(AbstractResolver):
    """Resolves names, and returns only addresses that may be reached.

    The connector connects to these addresses only, so the check is on the address of the
    connection. Hosts that are addresses in numbers do not come here; see
    `AddressPolicy.check_literal`.
    """

    def __init__(self, policy: AddressPolicy, inner: AbstractResolver) -> None:
        self._policy = policy
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Resolve a name.

        Raises:
            Refused: it has no address that may be reached.
        """
        try:
            found = await self._inner.resolve(host, port, family)
        except UnicodeError:  # a label that is empty, or has more than 63 characters
            raise Refused(f"'{host[:80]}' is not a name of a host") from None
        if self._policy.trusts(host):
            return found
        admitted = [result for result in found if self._policy.admits(result["host"])]
        if not admitted:
            message = f"'{host}' has no address that may be reached"
            raise Refused(message + self._policy.remedy)
        return admitted

    async def close(self) -> None:
        """Close the inner resolver."""
        await self._inner.close()
