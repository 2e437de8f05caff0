"""Shared memory objects of clients, which requests may refer to in place of their data.

A client that runs on the node's machine makes a POSIX shared memory object and registers a part of
it, a **region**, under a name. The node keeps the table; the process that serves a request opens
the object by its key, reads and writes.

- Only keys with the prefix of the setting `shared_memory_prefix` are allowed. ``{tenant}`` in it is
  replaced by the caller's tenant, so that tenants cannot name objects of each other.
- Objects are never mapped: a client that shortens a mapped object would end this process with
  SIGBUS. They are read and written by system calls, which report that.
- An object is opened for each request. It must be the one that was registered (device and inode).

Source: ``shm_overview(7)``; Linux has the objects as files of a tmpfs at ``/dev/shm``.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from dandelion.data import Bytes
from dandelion.errors import Conflict, InvalidInput, TooMany, Unknown, nearest
from dandelion.memory import Context
from dandelion.namespaces import check_tenant
from dandelion.settings import Settings

FOLDER = Path("/dev/shm")
REGIONS_LIMIT = 256
"""So many regions a tenant may have."""

_NAME_LIMIT = 255
_TENANT = "{tenant}"
_KEY = re.compile(r"/[^/\0]+")
_PREFIX = re.compile(r"/[^/\0]*")


class SharedRegion(msgspec.Struct, frozen=True):
    """A registered part of a shared memory object.

    Attributes:
        name: by which requests refer to it.
        key: of the object, such as ``/kserve_input``.
        offset, byte_size: the part, in bytes.
        device, inode: of the object when it was registered.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    device: int = 0
    inode: int = 0

    def read(self, acquire: Callable[[int], Context], offset: int, size_bytes: int) -> Bytes:
        """Copy bytes of the region to memory.

        Args:
            acquire: gives the memory.
            offset, size_bytes: the part within the region.

        Raises:
            InvalidInput: they are not in the region, or the object is shorter or not there.
            ContextFull: there is no memory.
        """
        self.check(offset, size_bytes)
        descriptor = self._opened(os.O_RDONLY)
        try:
            return self._filled(
                descriptor, acquire(size_bytes).view if size_bytes else None, offset
            )
        finally:
            os.close(descriptor)

    def _filled(self, descriptor: int, view: memoryview | None, offset: int) -> Bytes:
        if view is None:
            return b""
        end = 0
        while end < len(view):
            got = os.preadv(descriptor, [view[end:]], self.offset + offset + end)
            if not got:
                del view  # the error refers to this frame
                raise self._shorter()
            end += got
        return view.toreadonly()

    def write(self, pieces: list[Bytes], offset: int) -> None:
        """Write bytes at an offset of the region; raises `InvalidInput` as `read` does."""
        self.check(offset, sum(map(len, pieces)))
        descriptor = self._opened(os.O_RDWR)
        try:
            at = self.offset + offset
            for piece in pieces:
                view = memoryview(piece)
                while len(view):
                    done = os.pwrite(descriptor, view, at)
                    at, view = at + done, view[done:]
        except OSError as error:
            raise InvalidInput(self._where, f"{self.key}: {error.strerror}") from None
        finally:
            os.close(descriptor)

    @property
    def _where(self) -> str:
        return f"shared memory region '{self.name}'"

    def check(self, offset: int, size_bytes: int) -> None:
        """Refuse a part that is not within the region; raises `InvalidInput`."""
        if offset < 0 or offset + size_bytes > self.byte_size:
            message = f"{size_bytes} bytes at {offset} do not lie in its {self.byte_size} bytes"
            raise InvalidInput(self._where, message)

    def _opened(self, flags: int) -> int:
        descriptor = _open(self._where, self.key, flags)
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != (self.device, self.inode):
            os.close(descriptor)
            message = f"{self.key} is not the object that was registered"
            raise InvalidInput(self._where, message, "unregister the region and register it again")
        if status.st_size < self.offset + self.byte_size:
            os.close(descriptor)
            raise self._shorter()
        return descriptor

    def _shorter(self) -> InvalidInput:
        end = self.offset + self.byte_size
        return InvalidInput(self._where, f"{self.key} has become shorter than {end} bytes")


class SharedRegions:
    """The regions of all tenants. May be used from any thread.

    Args:
        settings: of the node.

    Raises:
        InvalidInput: the setting `shared_memory_prefix` cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._prefix = prefix = settings.shared_memory_prefix
        self._lock = threading.Lock()
        self._regions: dict[str, dict[str, SharedRegion]] = {}
        if prefix:
            _check_prefix(prefix, has_tenants=bool(settings.tokens))

    def register(self, region: SharedRegion, tenant: str) -> None:
        """Add a region.

        Raises:
            InvalidInput: the key does not have the prefix, or there is no such object, or it is
                shorter than the region.
            Conflict: the tenant has a region of that name.
            TooMany: the tenant has too many.
        """
        where = f"shared memory region '{region.name[:80]}'"
        self._check_key(where, region.key, tenant)
        if not 0 < len(region.name) <= _NAME_LIMIT:
            raise InvalidInput(where, f"its name has {len(region.name)} characters, not 1 to 255")
        if region.offset < 0 or region.byte_size < 1:
            message = f"{region.byte_size} bytes at {region.offset} are not a region"
            raise InvalidInput(where, message)
        descriptor = _open(where, region.key, os.O_RDWR)
        status = os.fstat(descriptor)
        os.close(descriptor)
        end = region.offset + region.byte_size
        if status.st_size < end:
            raise InvalidInput(where, f"{region.key} has {status.st_size} bytes, fewer than {end}")
        found = msgspec.structs.replace(region, device=status.st_dev, inode=status.st_ino)
        with self._lock:
            own = self._regions.setdefault(tenant, {})
            if region.name in own:
                raise Conflict("shared memory region", region.name, "unregister it before")
            if len(own) >= REGIONS_LIMIT:
                raise TooMany("regions", "regions", len(own) + 1, REGIONS_LIMIT)
            own[region.name] = found

    def unregister(self, name: str | None, tenant: str) -> None:
        """Remove a region, or all of a tenant; one that is not there is no error."""
        with self._lock:
            if name is None:
                self._regions.pop(tenant, None)
            else:
                self._regions.get(tenant, {}).pop(name, None)

    def of(self, tenant: str) -> list[SharedRegion]:
        """List the regions of a tenant."""
        with self._lock:
            return list(self._regions.get(tenant, {}).values())

    def _check_key(self, where: str, key: str, tenant: str) -> None:
        if not self._prefix:
            hint = "the operator can allow it by the setting 'shared_memory_prefix'"
            raise InvalidInput(where, "shared memory is not enabled", hint)
        prefix = self._prefix.replace(_TENANT, tenant)
        named = key if key.startswith("/") else f"/{key}"
        if not named.startswith(prefix) or len(key) > _NAME_LIMIT or not _KEY.fullmatch(named):
            shown = key if len(key) <= 80 else f"{key[:80]}..."
            raise InvalidInput(where, f"the key '{shown}' does not begin with '{prefix}'")


def named_region(regions: list[SharedRegion], name: str) -> SharedRegion:
    """Find a region by its name.

    Raises:
        Unknown: with the nearest name.
    """
    for region in regions:
        if region.name == name:
            return region
    close = nearest(name, [region.name for region in regions])
    raise Unknown("shared memory region", name[:80], None, close)


def _check_prefix(prefix: str, *, has_tenants: bool) -> None:
    setting = "shared_memory_prefix"
    before, found, after = prefix.partition(_TENANT)
    if has_tenants and not found:
        hint = "write for example /kserve:{tenant}:"
        raise InvalidInput(setting, f"with tokens '{prefix}' must contain {_TENANT}", hint)
    if found and (not after or _can_be_in_tenant(after[0])):
        hint = "write for example /kserve:{tenant}:"
        message = f"after {_TENANT} in '{prefix}' comes no character that tenants' names lack"
        raise InvalidInput(setting, message, hint)
    if len(prefix) < 2 or not _PREFIX.fullmatch(before + after):
        raise InvalidInput(setting, f"'{prefix}' is not / and a name without further slashes")


def _can_be_in_tenant(character: str) -> bool:
    try:
        check_tenant(f"a{character}")
    except InvalidInput:
        return False
    return True


def _open(where: str, key: str, flags: int) -> int:
    """Open an object; its descriptor is not waited for and not inherited."""
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(FOLDER / key.removeprefix("/"), flags)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(where, f"cannot open {key}: {reason}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidInput(where, f"{key} is not a shared memory object")
    return descriptor
