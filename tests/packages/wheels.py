"""Builds wheels by hand, as zip files."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

PURE = "py3-none-any"


def wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str | bytes] | None = None,
    requires: Iterable[str] = (),
    tag: str = PURE,
) -> Path:
    """Write a wheel; without files it has one module with the version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        shown = {f"{name}.py": f"VERSION = '{version}'\n"} if files is None else files
        for member, text in shown.items():
            archive.writestr(member, text)
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        archive.writestr(f"{info}/METADATA", head + needs)
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
