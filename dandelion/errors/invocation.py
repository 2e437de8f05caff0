"""An invocation did not end with its outputs; which application failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from dandelion.errors.error import Blame, DandelionError


@dataclass(eq=False)
class ApplicationFailed(DandelionError):
    """One application of a composition failed; ``__cause__`` is its error.

    Status and blame are those of the cause, so that a client reacts to the cause.

    Attributes:
        composition, application: which.
        instance: its number, from 0.
        key: of its items, if they are distributed by keys.
        attempts: how often the instance was run.
    """

    composition: str
    application: str
    instance: int
    key: int | None = None
    attempts: int = 1

    def because(self, cause: DandelionError) -> Self:
        self.status = cause.status
        self.blame = cause.blame
        return super().because(cause)

    @property
    def root(self) -> BaseException:
        """The first error of the chain of causes."""
        error: BaseException = self
        while error.__cause__ is not None:
            error = error.__cause__
        return error

    def __str__(self) -> str:
        key = "" if self.key is None else f", key {self.key}"
        times = "" if self.attempts == 1 else f", {self.attempts} attempts"
        where = f"{self.composition}.{self.application} (instance {self.instance}{key}{times})"
        return f"{where}: {self.__cause__}" if self.__cause__ is not None else where


@dataclass(eq=False)
class DeadlineExceeded(DandelionError):
    """The invocation's deadline passed before it completed."""

    deadline_s: float
    status = 504
    blame = Blame.CALLER

    def __str__(self) -> str:
        text = f"the invocation did not end within its deadline of {self.deadline_s:g} s"
        return f"{text}; give a later deadline, or find the slow call in its trace"


@dataclass(eq=False)
class Cancelled(DandelionError):
    """The invocation was cancelled: by its caller, by a closed connection, or by shutdown."""

    reason: str
    status = 499
    blame = Blame.CALLER

    def __str__(self) -> str:
        return f"the invocation was cancelled: {self.reason}"


def root_of(error: DandelionError) -> DandelionError:
    """Return the cause of a failed application, else the error itself."""
    while isinstance(error, ApplicationFailed) and isinstance(error.__cause__, DandelionError):
        error = error.__cause__
    return error
