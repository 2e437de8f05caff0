"""The content of functions' constants, by which devices store equal ones once."""

from __future__ import annotations

import msgspec

from dandelion.function import FunctionSpec, digest_of


def constants_of(spec: FunctionSpec, scope: str) -> str:
    """Return a digest of the content of a function's constants.

    Args:
        spec: the function.
        scope: the tenant that shares them with no other; empty if it does.

    Returns:
        The digest; empty if there are none.
    """
    if not spec.static:
        return ""
    digests = [(name, [item.digest for item in spec.static[name]]) for name in sorted(spec.static)]
    return digest_of(msgspec.msgpack.encode((scope, digests)))
