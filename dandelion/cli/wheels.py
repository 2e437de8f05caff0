"""``dandelion wheels FILE``: download the packages that its functions name.

pip does the download, with this user's settings of it. Wheels are for this Python and platform.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dandelion.cli.loading import load_program
from dandelion.cli.output import Output, WrongUsage
from dandelion.cli.parser import Arguments
from dandelion.cli.run import split_target
from dandelion.cli.wheel_folder import wheel_folder
from dandelion.documents import RegistrationDocument
from dandelion.errors import BackendUnavailable, InvalidInput
from dandelion.packages.requirements import PROVIDED, read_requirements


def run(arguments: Arguments, out: Output) -> int:
    """Download wheels into a folder."""
    path, _ = split_target(arguments.source)
    document, _ = load_program(path)
    sets = {read_requirements(one, str(path)) for one in _requirements(document)} - {()}
    if not sets:
        raise WrongUsage(
            str(path), "its functions name no packages", "name them: @dd.function(packages=[...])"
        )
    folder = arguments.wheels or wheel_folder(path)
    before = _wheels(folder)
    for requirements in sorted(sets):  # each function has an environment of its own
        _download(requirements, folder)
    found = _wheels(folder)
    if out.as_json:
        out.document({"folder": str(folder), "wheels": sorted(found)})
        return 0
    for name in sorted(found - before):
        out.line(f"  {name}")
    new = len(found - before)
    out.line(
        f"{new} new wheel{'s' * (new > 1)} in {folder}" if new else f"{folder} has all of them"
    )
    return 0


def _requirements(document: RegistrationDocument) -> list[list[str]]:
    codes = [code for function in document.functions for code in function.code]
    return [[one for one in code.packages if one not in PROVIDED] for code in codes]


def _wheels(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.whl")}


def _download(requirements: Sequence[str], folder: Path) -> None:
    """Have pip download what is not there yet.

    Raises:
        BackendUnavailable: there is no pip.
        InvalidInput: it failed; with what it said.
    """
    if importlib.util.find_spec("pip") is None:
        hint = f"put wheels into {folder} by hand"
        raise BackendUnavailable("packages", "pip is not installed", hint)
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder)]
    done = subprocess.run(
        [*command, *requirements], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        text = "\n".join(line for line in lines if line.startswith("ERROR")) or "\n".join(lines)
        raise InvalidInput(", ".join(requirements), f"pip cannot download this:\n{text}")
