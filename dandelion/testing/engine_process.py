"""Engine processes that a script plays, for tests of what the node does with them."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

from dandelion.testing.waiting import wait_until

_PROGRAM = """#!{python}
import sys
sys.path[:] = {path!r}
from dandelion.testing.played import play
sys.exit(play(sys.argv[3:], {folder!r}, {script!r}))
"""
ECHO = """
process.opened()
process.ready()
for call in process.calls():
    process.answer(call, *(None if s is None else bytes(s.items[0].data) for s in call.inputs))
"""
"""A script: every call gives its inputs back, as long as they have one item each."""


class FakeEngineProcess:
    """A program that takes the place of an engine process, and does what a script says.

    The script is Python code with one name, ``process``: a `dandelion.testing.played.Played`. It
    runs once in each process. When the node leaves, the process ends in silence; what the script
    raises otherwise goes to standard error, and the process ends with it.

    The processes and the test leave signs for each other in a folder: `sign` and `Played.wait_for`,
    `Played.note` and `notes`.

    Args:
        folder: of the test alone.
        script: what processes do that start from now on; see `script`.

    Attributes:
        executable: the program. It takes the arguments of the Python interpreter as the node gives
            them: ``-m dandelion.engine_process ...``.
    """

    def __init__(self, folder: Path, script: str = ECHO) -> None:
        self.folder = folder
        self.executable = folder / "engine-process"
        self.script(script)

    def script(self, text: str) -> None:
        """Have processes that start from now on do something else."""
        program = _PROGRAM.format(
            python=sys.executable,
            path=sys.path,
            folder=str(self.folder),
            script=textwrap.dedent(text),
        )
        fresh = self.executable.with_suffix(".new")
        fresh.write_text(program)
        fresh.chmod(0o700)
        fresh.replace(self.executable)  # a program that runs cannot be written to

    @contextmanager
    def replaces(self, module: ModuleType) -> Iterator[None]:
        """Have a module that starts ``sys.executable`` start this program instead."""
        real = module.__dict__["sys"]
        module.__dict__["sys"] = SimpleNamespace(executable=str(self.executable))
        try:
            yield
        finally:
            module.__dict__["sys"] = real

    def sign(self, name: str) -> None:
        """Leave a sign that `Played.wait_for` waits for."""
        (self.folder / name).touch()

    def wait_for(self, name: str, limit_s: float = 20.0) -> None:
        """Wait until a process left a sign.

        Raises:
            TimeoutError: none did within the limit.
        """
        wait_until((self.folder / name).exists, limit_s)

    def notes(self, name: str) -> list[str]:
        """Give the lines that processes have noted under a name."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []
