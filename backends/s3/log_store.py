"""The log of a cluster's catalogue in an S3-compatible store: `dandelion.cluster.log_store`.

The head is the object ``head``. It is replaced with ``If-Match`` and its tag, and written first
with ``If-None-Match: *``; a service that ignores these conditions must not be used, and is refused
(`_check_conditions`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

from dandelion.cluster.log_store import LogStore, Outdated, StoredHead
from dandelion.data import Bytes
from dandelion.errors import CatalogUnavailable, InvalidInput

from .errors import failure_of, is_absent
from .opening import opened_store
from .settings import read_settings

_SHORT = timedelta(seconds=10)
"""For requests whose answers are short; those of blobs end when nothing arrives for a while."""
_RAISED = (BaseError, ValueError, OSError)

_T = TypeVar("_T")


def open_log_store(name: str, options: Mapping[str, str]) -> S3LogStore:
    """Open the log in a store that the options of the backend describe.

    Raises:
        InvalidInput: the options are not valid, or describe no such store.
        BackendUnavailable: credentials cannot be read.
    """
    settings = read_settings(options)
    given = settings.stores.get(name)
    if given is None:
        known = ", ".join(sorted(settings.stores)) or "none"
        hint = f"the options of s3 describe: {known}"
        raise InvalidInput("cluster_store", f"there is no store '{name[:80]}' of s3", hint)
    if given.tenants:
        reason = f"functions of {', '.join(given.tenants)} could change the catalogue there"
        hint = f"add the option store.{name}.tenants with an empty value"
        raise InvalidInput(f"options.s3.store.{name}.tenants", reason, hint)
    short = opened_store(name, given, settings, _SHORT)
    return S3LogStore(
        name, short, opened_store(name, given, settings), given.prefix, given.part_bytes
    )


class S3LogStore(LogStore):
    """See `LogStore`.

    Args:
        name: of the store.
        client: for its bucket, for short requests.
        long: the same for objects.
        prefix: in front of all names.
        part_bytes: larger objects are written in parts.
    """

    def __init__(
        self, name: str, client: S3Store, long: S3Store, prefix: str, part_bytes: int
    ) -> None:
        self.name = f"s3:{name}"
        self._client = client
        self._long = long
        self._prefix = prefix
        self._part_bytes = part_bytes

    def head(self) -> StoredHead | None:
        def read() -> StoredHead | None:
            found = self._found(self._client, "head")
            if found is None:
                return None
            tag = found.meta["e_tag"]
            if not tag:
                raise CatalogUnavailable(self.name, "the service gives no tags of objects")
            return StoredHead(bytes(found.bytes()), tag)

        return self._reported(read)

    def swap(self, content: bytes, tag: str) -> str:
        if not tag:
            self._reported(self._check_conditions)
        mode: Any = {"e_tag": tag} if tag else "create"
        return self._reported(lambda: self._put_head(content, mode))

    def _put_head(self, content: bytes, mode: Any) -> str:
        try:
            made = obstore.put(
                self._client, f"{self._prefix}head", content, mode=mode, use_multipart=False
            )
        except (AlreadyExistsError, PreconditionError):
            raise Outdated from None
        return made["e_tag"] or ""

    def _check_conditions(self) -> None:
        """Refuse a service that replaces objects under a condition that does not hold."""
        path = f"{self._prefix}check-{secrets.token_hex(8)}"  # nodes may start at the same time
        obstore.put(self._client, path, b"1", use_multipart=False)
        modes: list[Any] = ["create", {"e_tag": '"00000000000000000000000000000000"'}]
        for mode in modes:
            try:
                obstore.put(self._client, path, b"2", mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                continue
            reason = "the service ignores conditions of writes, so it cannot keep one order"
            raise CatalogUnavailable(self.name, reason, "use another service, or peers")
        obstore.delete(self._client, path)

    def put(self, name: str, data: Bytes) -> None:
        content: Any = data if len(data) else b""
        size = len(content) if isinstance(content, bytes) else content.nbytes
        self._reported(
            lambda: obstore.put(
                self._long,
                self._prefix + name,
                content,
                use_multipart=size > self._part_bytes,
                chunk_size=self._part_bytes,
            )
        )

    def get(self, name: str) -> Bytes | None:
        def read() -> Bytes | None:
            found = self._found(self._long, name)
            return None if found is None else memoryview(found.bytes())

        return self._reported(read)

    def has(self, name: str) -> bool:
        def ask() -> bool:
            try:
                obstore.head(self._client, self._prefix + name)
            except FileNotFoundError as error:
                if not is_absent(error):
                    raise
                return False
            return True

        return self._reported(ask)

    def delete(self, name: str) -> None:
        def delete() -> None:
            try:
                obstore.delete(self._client, self._prefix + name)
            except FileNotFoundError as error:
                if not is_absent(error):
                    raise

        self._reported(delete)

    def _found(self, client: S3Store, name: str) -> obstore.GetResult | None:
        try:
            return obstore.get(client, self._prefix + name)
        except FileNotFoundError as error:
            if not is_absent(error):
                raise
            return None

    def _reported(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except _RAISED as error:
            hint = "check the service, the credentials and the rights of the node"
            raise CatalogUnavailable(self.name, str(failure_of(error)), hint) from None
