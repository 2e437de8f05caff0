"""What confines engine processes on this machine.

A process confines itself as an engine process does, and reports what is enforced.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping

import msgspec

from dandelion.errors import BackendUnavailable, DandelionError
from dandelion.search_path import small_environment

_LIMIT_S = 30.0


class ConfineResult(msgspec.Struct, frozen=True):
    """What is enforced, by subject; or why nothing is."""

    facts: dict[str, str] = {}
    error: str = ""


def confined_facts() -> Mapping[str, str]:
    """Tell what is enforced.

    Raises:
        BackendUnavailable: a process cannot be confined here.
    """
    ours, theirs = socket.socketpair()
    program = f"from {__name__} import main; main({theirs.fileno()})"
    with ours, theirs:
        try:
            subprocess.run(
                [sys.executable, "-c", program],
                pass_fds=(theirs.fileno(),),
                env=small_environment(),
                timeout=_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BackendUnavailable("wasm", f"no process can be confined: {error}") from None
        theirs.close()
        answer = ours.recv(1 << 16)
    if not answer:
        raise BackendUnavailable("wasm", "a confined process ended without an answer")
    result = msgspec.json.decode(answer, type=ConfineResult)
    if result.error:
        raise BackendUnavailable("wasm", result.error)
    return result.facts


def main(channel: int) -> None:
    """Confine this process and tell what is enforced."""
    from .driver import WasmDriver

    with socket.socket(fileno=channel) as peer:
        try:
            factory = WasmDriver().factory()
            facts = factory.confine(factory.engine("0"), channel, lambda: None)
            result = ConfineResult(dict(facts))
        except DandelionError as error:
            result = ConfineResult(error=str(error))
        peer.send(msgspec.json.encode(result))
