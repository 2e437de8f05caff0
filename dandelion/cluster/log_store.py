"""The contract of a shared place that keeps the log of the catalogue instead of voters.

A store has objects under names, and one special object, the **head**, which says what the log is
(`stored_head`). The head is replaced only if it is still the one that was read: so all nodes agree
on one order. All other objects are written before a head names them, and never changed.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

from dandelion.data import Bytes


class Outdated(Exception):
    """Another node has replaced the head."""


@dataclass(frozen=True, slots=True)
class StoredHead:
    """The head as it is stored.

    Attributes:
        content: its bytes.
        tag: names exactly this head.
    """

    content: bytes
    tag: str


class LogStore(abc.ABC):
    """Where the log is kept. Blocking; one thread at a time, but `get` and `close` from any.

    All methods raise `CatalogUnavailable` if the store cannot be reached or refuses. Then it is not
    known whether a change was made.

    Attributes:
        name: for messages.
    """

    name: str

    @abc.abstractmethod
    def head(self) -> StoredHead | None:
        """Read the head; None if there is none yet."""

    @abc.abstractmethod
    def swap(self, content: bytes, tag: str) -> str:
        """Replace the head that has a tag, empty if there is none yet; return the new tag.

        Raises:
            Outdated: it is another one now. It may be this one, if an attempt seemed to fail.
        """

    @abc.abstractmethod
    def put(self, name: str, data: Bytes) -> None:
        """Store an object; when it returns, it is as durable as the store makes it."""

    @abc.abstractmethod
    def get(self, name: str) -> Bytes | None:
        """Read an object; None if there is none."""

    @abc.abstractmethod
    def has(self, name: str) -> bool:
        """Tell whether there is an object."""

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""

    def close(self) -> None:
        """End what is waited for; that fails with `CatalogUnavailable`, and so may later calls."""
