"""The build: modules that every call passes through become extension modules, compiled by mypyc.

They are the same modules, only faster: without a C compiler, the package is installed without them.
``DANDELION_COMPILE=0`` always leaves them out, and ``1`` makes it an error if they cannot be
compiled. An editable installation has them only with ``1``, since Python prefers an extension
module even if its source is newer; `make extensions` compiles them there, and again after changes.
"""

from __future__ import annotations

import os
import sys
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

COMPILED = (
    "dandelion/timers.py",
    "dandelion/dataflow/sharding.py",
    "dandelion/dispatcher/*.py",
    "dandelion/engine_process/channel.py",
    "dandelion/engine_process/confined.py",
    "dandelion/engine_process/serving.py",
    "dandelion/executors/arena_process.py",
    "dandelion/executors/batches.py",
    "dandelion/executors/confined.py",
    "dandelion/executors/constants_exchange.py",
    "dandelion/executors/contract.py",
    "dandelion/executors/demands.py",
    "dandelion/executors/failures.py",
    "dandelion/executors/incoming.py",
    "dandelion/executors/inline.py",
    "dandelion/executors/kept_constants.py",
    "dandelion/executors/loaded_functions.py",
    "dandelion/executors/lost_process.py",
    "dandelion/executors/process.py",
    "dandelion/executors/sent_calls.py",
    "dandelion/executors/staging.py",
    "dandelion/executors/threads.py",
    "dandelion/executors/worker.py",
    "dandelion/memory/context.py",
    "dandelion/memory/free_ranges.py",
    "dandelion/memory/heap.py",
    "dandelion/memory/shared.py",
    "dandelion/memory/transfer.py",
    "dandelion/node/action_carrier.py",
    "dandelion/node/activity.py",
    "dandelion/node/executor_answers.py",
    "dandelion/node/inputs.py",
    "dandelion/node/invocation.py",
    "dandelion/node/invoker.py",
    "dandelion/node/library.py",
    "dandelion/node/loop.py",
    "dandelion/node/observer.py",
    "dandelion/node/poll.py",
    "dandelion/node/runtime.py",
    "dandelion/node/spaces.py",
    "dandelion/scheduler/*.py",
    "dandelion/scheduler/policies/*.py",
)
INTERPRETED = (
    "dandelion/dispatcher/frames.py",
    "dandelion/dispatcher/instructions.py",
    "dandelion/scheduler/actions.py",
)
"""Modules with records of msgspec. They are never compiled: msgspec reads annotations at run time,
and mypyc drops the arguments of a class, such as ``order``, ``eq`` and ``frozen``. Nor is a module
with coroutines: cancelled ones that mypyc compiled give warnings on Python 3.12."""

BUILDS = {"bdist_wheel", "build", "build_ext", "install"}
FLAGS = ("--config-file=", "--ignore-missing-imports", "--no-warn-no-return")


class OptionalExtensions(build_ext):
    """Builds all extension modules, or leaves all out."""

    def run(self) -> None:
        try:
            super().run()
        except (BaseError, CCompilerError) as error:
            if CHOICE == "1":
                raise
            self.warn(f"installed without extension modules: {error}")
            for name in map(self.get_ext_fullpath, [one.name for one in self.extensions]):
                Path(name).unlink(missing_ok=True)
            self.extensions = []


def sources() -> list[str]:
    """Return the modules to compile."""
    found = [path for pattern in COMPILED for path in sorted(glob(pattern))]
    return [path for path in found if not path.endswith((*INTERPRETED, "__init__.py"))]


def extension_modules() -> list[Extension]:
    """Translate the modules to C; an empty list if that is not wanted or possible."""
    wanted = CHOICE == "1" or (CHOICE != "0" and "editable_wheel" not in sys.argv)
    if not wanted or not (BUILDS | {"editable_wheel"}).intersection(sys.argv):
        return []
    try:
        from mypyc.build import mypycify

        return mypycify(
            [*FLAGS, *sources()], group_name="dandelion", opt_level="1", debug_level="0"
        )
    except (ImportError, SystemExit) as error:
        if CHOICE == "1":
            raise
        print(f"installed without extension modules: {error}", file=sys.stderr)
        return []


CHOICE = os.environ.get("DANDELION_COMPILE", "")
setup(ext_modules=extension_modules(), cmdclass={"build_ext": OptionalExtensions})
