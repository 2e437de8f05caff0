"""Names for attacks of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

EPERM, EACCES, ENOENT, ENOSYS, ENOTTY, EFBIG = -1, -13, -2, -38, -25, -27


SECRET = b"the_secret_of_another_tenant"


def given_place() -> Iterator[Path]:
    """A folder with all permissions for every user, so that permissions do not protect it."""
    with TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        secret = folder / "secret"
        secret.write_bytes(SECRET)
        secret.chmod(0o666)
        yield folder
