"""A server that answers by a script, and what a perfect client would see of it.

The script fixes how long each request takes once the server has it, and when the whole server
stalls: then it neither reads nor answers. `replay` computes from the script alone when each request
is answered. The server also keeps an `Account` of what it really did, which differs from the script
by what its machine does to it; a harness is measured against that account.
"""

from __future__ import annotations

import enum

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..load import HttpRequest
from .servers import ServerProcess, module

_NS_OF_US = 1000
_NS = 1_000_000_000

Times = NDArray[np.int64]
"""Nanoseconds of the monotonic clock, or between two of its times."""


class Fault(enum.Enum):
    """What a server may do in place of an answer."""

    CLOSE = "close"
    STATUS = "status"  # 503
    WRONG = "wrong"  # another body
    SILENCE = "silence"
    NO_HTTP = "no http"


class Script(msgspec.Struct, frozen=True):
    """How a server answers.

    Attributes:
        delays_us: what requests may take, with the share of all requests that take it.
        stall_every_s: time from the end of a stall to the next; 0 is never.
        stall_s: how long the whole server stalls.
        faults: by the number of the request.
        seed: of which request takes how long.
    """

    delays_us: tuple[tuple[float, float], ...]
    stall_every_s: float = 0.0
    stall_s: float = 0.0
    faults: dict[int, Fault] = {}
    seed: int = 1


class Account(msgspec.Struct, frozen=True):
    """What a server really did; all times in nanoseconds of the monotonic clock.

    Attributes:
        numbers: of requests, in the order of the answers.
        got_ns: when each of them was read.
        answered_ns: just before each answer was handed to the kernel.
        stalls_ns: beginning and end of each stall.
    """

    numbers: tuple[int, ...]
    got_ns: tuple[int, ...]
    answered_ns: tuple[int, ...]
    stalls_ns: tuple[tuple[int, int], ...]


REQUEST = HttpRequest("/", method="GET", numbered=True, expect=b"ok")
"""What a scripted server understands."""


def scripted_server(script: Script) -> ServerProcess:
    """Start a server that answers by a script; its account can be read once it was stopped."""
    return ServerProcess(
        "scripted",
        module("dandelion.bench.systems.scripted"),
        standard_input=msgspec.msgpack.encode(script),
    )


def account_of(server: ServerProcess) -> Account:
    """Stop a scripted server and read its account."""
    server.stop()
    _, _, told = server.output().partition(b"\n")
    return msgspec.json.decode(told, type=Account)


def delays_ns(script: Script, count: int) -> Times:
    """Give how long each of the first requests takes; shares are kept in every thousand of them."""
    delays, shares = np.array([(d * _NS_OF_US, s) for d, s in script.delays_us]).T
    within = (np.arange(1000) + 0.5) / 1000
    places = np.searchsorted(np.cumsum(shares) / shares.sum(), within)
    thousand = delays[places].astype(np.int64)
    random = np.random.default_rng(script.seed)
    blocks = [random.permutation(thousand) for _ in range(-(-count // 1000))]
    found: Times = np.concatenate(blocks)[:count]
    return found


def replay(arrivals_ns: Times, takes_ns: Times, stalls_ns: tuple[tuple[int, int], ...]) -> Times:
    """Compute when a server would answer that does exactly what the script says.

    Args:
        arrivals_ns: when each request arrives.
        takes_ns: how long each takes.
        stalls_ns: when the server stalls.

    Returns:
        When each is answered.
    """
    got = _after_stalls(arrivals_ns, stalls_ns)
    return _after_stalls(got + takes_ns, stalls_ns)


def _after_stalls(times_ns: Times, stalls_ns: tuple[tuple[int, int], ...]) -> Times:
    found = times_ns.copy()
    for begin, end in stalls_ns:
        found[(found >= begin) & (found < end)] = end
    return found
