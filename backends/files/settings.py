"""The operator's options of folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated

import msgspec

from dandelion.errors import InvalidInput

from ..stores.settings import Count, StoreSettings, StoresSettings, check_folder_prefix, read_stores

MIB = 1024 * 1024
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]


class FilesStoreSettings(StoreSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One folder.

    Attributes:
        folder: its absolute path; links in it are followed, once, when the engine starts or the
            folder was removed.
        file_bytes: largest file that is read or written.
        keep_free_bytes: a file is not written if less than this would be free on the disk.
        sync: a file is on the disk before its write has succeeded.
    """

    folder: str = ""
    concurrency: Count = 8
    file_bytes: Size = 256 * MIB
    keep_free_bytes: Size = 64 * MIB
    sync: bool = True


class FilesSettings(
    StoresSettings[FilesStoreSettings], frozen=True, forbid_unknown_fields=True, kw_only=True
):
    """Settings of the backend ``files``; `concurrency` is the number of its threads."""

    concurrency: Count = 8


def read_settings(options: Mapping[str, str]) -> StoresSettings[FilesStoreSettings]:
    """Read settings as an operator writes them.

    Raises:
        InvalidInput: an option is unknown, has a bad value or is missing.
    """
    for option in ("connect_s", "idle_s", "retries"):
        if option in options:
            where = f"options.files.{option}"
            raise InvalidInput(where, "folders have no connections", "remove this option")
    settings = read_stores("files", options, FilesSettings, FilesStoreSettings)
    for name, given in settings.stores.items():
        where = f"options.files.store.{name}"
        if not PurePosixPath(given.folder).is_absolute():
            hint = "give one such as /srv/pictures"
            raise InvalidInput(f"{where}.folder", "it is not an absolute path", hint)
        check_folder_prefix(f"{where}.prefix", given.prefix)
    return settings
