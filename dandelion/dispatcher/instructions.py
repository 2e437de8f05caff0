"""The instructions of a walk, which the node carries out."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from dandelion.data import ItemSet, Origin
from dandelion.dataflow.sharding import Instance
from dandelion.dispatcher.plan import ApplicationPlan
from dandelion.errors import DandelionError
from dandelion.function import FunctionSpec


class Run(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Run an instance of a function; reply with `Walk.finished` or `Walk.failed`.

    Attributes:
        instance: id of the instance within the walk.
        function: the function.
        inputs: its sets by position; static ones are absent here.
        application: the application, for errors and traces.
        number: of the instance in its application, from 0, counted over all iterations.
        origin: the item that the instance is made for, if it is made for one.
        attempt: how often the instance was run so far, this time included.
    """

    instance: int
    function: FunctionSpec
    inputs: Instance
    application: ApplicationPlan
    number: int
    origin: Origin | None = None
    attempt: int = 1


class Pause(msgspec.Struct, frozen=True, eq=False):
    """Wait before the next attempt of an instance; then call `Walk.again`.

    Or call `Walk.give_up` with the error, if too many instances wait.

    Attributes:
        instance: id of the pause within the walk; `Cancel` may end it.
        pause_s: how long, in seconds.
        error: of the last attempt.
    """

    instance: int
    pause_s: float
    error: DandelionError


class Cancel(msgspec.Struct, frozen=True):
    """Stop an instance if possible, or end its pause; its outputs are dropped."""

    instance: int


class Complete(msgspec.Struct, frozen=True):
    """The invocation has completed, with its output sets by position."""

    outputs: tuple[ItemSet | None, ...]


class Fail(msgspec.Struct, frozen=True):
    """The invocation failed."""

    error: DandelionError


Instruction: TypeAlias = Run | Pause | Cancel | Complete | Fail
