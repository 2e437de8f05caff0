"""Things that are to be closed, used with ``with``."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Self


class Closing(abc.ABC):
    """Gives everything back at the end of a ``with`` block."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give everything back. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
