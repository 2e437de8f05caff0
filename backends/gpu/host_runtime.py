"""What a device that runs kernels on the host's processors must know of its libraries.

Kernels are code of users. Where the device is a processor of the host, they run as code of a
process, so that process is confined (`.kernel_host`): it keeps what its `HostRuntime` names, and
loses everything else, before it gets the first kernel.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ahead:
    """A device that is opened before the processes that use it are forked.

    Attributes:
        resources: the names by which engines call for it.
        device: the name under which it is found now.
        without_threads: the same of the device that runs kernels without threads; empty for none.
    """

    resources: frozenset[str]
    device: str
    without_threads: str


class HostRuntime(abc.ABC):
    """The libraries of such a device, from the side of the process that is to be confined."""

    @abc.abstractmethod
    def environment(self) -> dict[str, str]:
        """Give the whole environment of the process."""

    def without_threads(self) -> Mapping[str, str]:
        """Give what to add to the environment so that a thread runs what it launches by itself.

        It takes effect in a process that has loaded the libraries and not opened the device. Empty
        if these libraries always have threads.
        """
        return {}

    @abc.abstractmethod
    def load(self) -> tuple[str, ...]:
        """Load the libraries, without starting a thread; the process may be forked afterwards.

        Returns:
            Files and folders that must stay readable for the device to work.

        Raises:
            BackendUnavailable: they are missing.
        """

    def ahead(self) -> Ahead | None:
        """Let the device be opened in this process, to be used in processes forked from it.

        Called after `load`, in an empty folder, which is not kept. The device can compile then,
        but not run anything.

        Returns:
            What can be opened; None if these libraries cannot do that, which is no error.
        """
        return None

    def forked(self, threads: bool) -> None:
        """Start the threads of a device that was opened ahead, in a process that was forked.

        Args:
            threads: it is the device with threads that is used.

        Raises:
            OSError: there can be no further thread.
        """

    @abc.abstractmethod
    def furnish(self, folder: Path) -> None:
        """Put into a folder what the libraries look for, and have them use it.

        Args:
            folder: empty; the working folder, and the only place where the process will be able
                to write.
        """

    @abc.abstractmethod
    def opened(self) -> Mapping[str, str]:
        """Make the libraries work without starting programs; the device is open.

        Returns:
            What was done, by subject, for ``dandelion doctor``.

        Raises:
            BackendUnavailable: these libraries cannot work so.
        """
