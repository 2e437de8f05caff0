"""Calls that fill a socket."""

from dandelion.scheduler import CallState
from tests.executors.harness import call_of, flow_of


def wide_call() -> CallState:
    """A call whose description is larger than a socket that is small."""
    return call_of(flow_of("wide"), *(b"%d" % number for number in range(1000)))
