"""FIXTURE. A process with a fake device: ``python -m tests.fake_driver.worker KIND FOLDER``.

Each line of its input names a scenario, or a check of the conformance suite; each line of its
output is ``ok`` or a traceback, as JSON.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from dandelion.backends.gpu.conformance import CHECKS, opened
from dandelion.backends.gpu.conformance_language import LANGUAGE_CHECKS

from tests.fake_driver import build
from tests.fake_driver.fake import Fake, Real

ROOT = Path(__file__).resolve().parent.parent.parent


def run(fake: Fake, name: str) -> str:
    """Run one scenario; return ``ok`` or the error."""
    from tests.fake_driver import (
        convolutions,
        loops,
        open_arguments,
        operations,
        scenarios,
        sharing,
        variables,
    )

    fake.reset()
    checks = {check.__name__: check for check in (*CHECKS, *LANGUAGE_CHECKS)}
    try:
        if name in checks:
            with opened(fake.device()) as device:
                checks[name](device)
            fake.nothing_left()
        else:
            files = (
                convolutions, loops, open_arguments, operations, sharing, variables, scenarios,
            )  # fmt: skip
            getattr(next((f for f in files if hasattr(f, name)), scenarios), name)(fake)
    except BaseException:  # an assertion or an error: the test reports it
        return traceback.format_exc()
    return "ok"


def device(kind: str, folder: Path) -> Fake:
    """Return the device of a kind: fake, or real where the kind says so."""
    if kind == "real_cuda":
        return Real("cuda", folder / "cache")
    library = build.load(kind, folder)
    if kind == "hip_on_cuda":
        return Real("hip", folder / "cache")
    return Fake(kind, library, folder / "cache", *build.operations(kind, folder))


def main(kind: str, folder: str) -> None:
    """Serve until the input ends."""
    fake = device(kind, Path(folder))
    importlib.import_module("tests.fake_driver.scenarios")
    gc.collect()
    gc.freeze()  # scenarios collect often, for their own garbage
    for line in sys.stdin:
        print(json.dumps(run(fake, line.strip())), flush=True)


class Worker:
    """The test's side of the process."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fake_driver.worker", kind, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def run(self, name: str) -> str:
        """Run a scenario; return ``ok`` or the error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        return str(json.loads(answer)) if answer else f"it died: {self._process.wait()}"

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@contextlib.contextmanager
def working(kind: str, folder: Path) -> Iterator[Worker]:
    """Yield a process with a fake device for the time of a block."""
    worker = Worker(kind, folder)
    try:
        yield worker
    finally:
        worker.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
