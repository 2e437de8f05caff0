"""What the compile process must know of a backend's compiler of sources."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from .source import LoadedCode


class SourceCompiler(abc.ABC):
    """Compiles sources at registration, without a device; see `.compile_process`.

    Attributes:
        formats: the sources that it takes; words of `.source.CodeFormat`.
    """

    formats: ClassVar[frozenset[str]]

    @abc.abstractmethod
    def key(self, code: LoadedCode, arch: str) -> str:
        """Give the name under which a cache keeps the binary of a source; nothing is loaded."""

    @abc.abstractmethod
    def load(self) -> Iterable[str]:
        """Load the compiler, without starting a thread.

        Returns:
            Files and folders that must stay readable for it to work, beside its libraries.

        Raises:
            BackendUnavailable: it is missing.
        """

    def furnish(self, folder: Path) -> None:
        """Put into a folder what the compiler looks for, and have it use that.

        Args:
            folder: empty; the only place where the process will be able to write.
        """

    @abc.abstractmethod
    def compile(self, code: LoadedCode, arch: str) -> bytes:
        """Give the binary of a source; empty if it is of no use to an engine.

        Raises:
            InvalidFunction: it does not compile; the compiler's words are in it.
            BackendUnavailable: the compiler does not work here.
        """
