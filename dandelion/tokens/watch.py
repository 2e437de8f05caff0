"""Reads the file of tokens again when it has changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from dandelion.errors import InvalidInput
from dandelion.tokens.file import read_tokens
from dandelion.tokens.records import TokenRecord

log = logging.getLogger("dandelion.tokens")

LOOK_S = 1.0
"""How often the file is looked at, in seconds."""

_Version: TypeAlias = tuple[int, int, int] | None


class TokenFile:
    """The file of tokens of a node.

    A file that cannot be used does not change the tokens. It is read again at each look, since the
    reason may pass without a change of the file; each error is logged once.

    Args:
        path: of the file.

    Attributes:
        records: the last good ones.

    Raises:
        InvalidInput: the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_now = asyncio.Event()
        self._seen = self._version()
        self._failure: tuple[_Version, str] | None = None
        self.records = read_tokens(path)

    def read_now(self) -> None:
        """Have `watch` read the file now, also if it seems unchanged; on the event loop only."""
        self._read_now.set()

    def look(self, *, always: bool = False) -> bool:
        """Read the file if it has changed; return whether there are other tokens now."""
        version = self._version()
        if version == self._seen and self._failure is None and not always:
            return False
        try:
            records = read_tokens(self._path)
        except InvalidInput as error:
            failure = version, str(error)
            if failure != self._failure or always:
                log.error("the old tokens stay in use", extra={"why": str(error)})
            self._failure = failure
            return False
        self._seen, self._failure = version, None
        if records == self.records:
            return False
        self.records = records
        log.info("tokens were read", extra={"count": len(records)})
        return True

    async def watch(self, changed: Callable[[tuple[TokenRecord, ...]], None]) -> None:
        """Call back with the records when they have changed, until it is cancelled.

        A look or a callback that fails is logged, and watching goes on.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._read_now.wait(), LOOK_S)
            always = self._read_now.is_set()
            self._read_now.clear()
            try:
                if await asyncio.to_thread(self.look, always=always):
                    changed(self.records)
            except Exception:  # else no token would be read or removed any more
                log.exception("tokens that changed are not in use")

    def _version(self) -> _Version:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
