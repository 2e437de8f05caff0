"""One line of log for each change of the catalogue over HTTP: logger ``dandelion.audit``.

::

    time=2026-03-01T12:00:00Z action=register token=ci tenant=acme names=function:resize@3
    peer=192.0.2.7:51000 outcome=ok

(without the line break). An attempt that fails has a line, too, at whatever step: without a valid
token, when tenant and token are ``-``, with a body that cannot be read, or in the catalogue. A
value that contains anything but plain characters is written as a JSON string, so a name cannot
imitate another field. The outcome of a change that failed or was refused is the type of the
problem.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import Iterable, Iterator

from dandelion.errors import DandelionError
from dandelion.frontend.asgi import Request
from dandelion.frontend.problem import Unauthenticated
from dandelion.tokens import ANONYMOUS

log = logging.getLogger("dandelion.audit")

_PLAIN = re.compile(r"[A-Za-z0-9_.:/@*,\[\]%-]+")


class Change:
    """A change of the catalogue.

    Args:
        request: asks for it.
        action: ``register`` or ``remove``.

    Attributes:
        names: what is changed, as ``KIND:NAME@VERSION``.
    """

    def __init__(self, request: Request, action: str, names: Iterable[str] = ()) -> None:
        self._request = request
        self._action = action
        self.names = tuple(names)

    def write(self, outcome: str) -> None:
        """Write the line."""
        grant = self._request.grant
        is_known = grant is not ANONYMOUS or outcome != Unauthenticated.__name__
        fields = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "action": self._action,
            "token": grant.name,
            "tenant": grant.tenant if is_known else "-",
            "names": ",".join(self.names) or "-",
            "peer": self._request.peer or "-",
            "outcome": outcome,
        }
        log.info(" ".join(f"{name}={_quoted(value)}" for name, value in fields.items()))


@contextlib.contextmanager
def audited(change: Change) -> Iterator[Change]:
    """Write a line about the change that is made in the context."""
    with preparing(change):
        yield change
    change.write("ok")


@contextlib.contextmanager
def preparing(change: Change) -> Iterator[Change]:
    """Write a line about a change if the context, which does not make it yet, fails."""
    try:
        yield change
    except DandelionError as error:
        change.write(type(error).__name__)
        raise
    except asyncio.CancelledError:
        change.write("Cancelled")
        raise
    except BaseException:
        change.write("InternalError")
        raise


def entry(kind: str, name: str, version: int | None) -> str:
    """Name a record; without a version, all versions."""
    return f"{kind}:{name}@{'*' if version is None else version}"


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value)
