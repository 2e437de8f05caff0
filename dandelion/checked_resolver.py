"""Names to addresses that may be reached, for clients of aiohttp."""

from __future__ import annotations

import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from dandelion.addresses import AddressPolicy, Refused


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
