"""The build. Where there is a C compiler, modules on the path of a call become extension modules.

mypyc compiles them. They are the same modules, only faster. ``DANDELION_COMPILE=0`` leaves all
modules as they are; with ``DANDELION_COMPILE=1``, a build without a working compiler fails. An
editable installation is left as it is by default, since Python prefers an extension module to its
source even if the source is newer. `make extensions` compiles the modules in a checkout.
"""

from __future__ import annotations

import gc
import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

COMPILED = (
    "dandelion/backends/gpu/adaptive_wait.py",
    "dandelion/backends/gpu/confined.py",
    "dandelion/backends/gpu/cudalike.py",
    "dandelion/backends/gpu/device.py",
    "dandelion/backends/gpu/host_memory.py",
    "dandelion/backends/gpu/host_process.py",
    "dandelion/backends/gpu/known_answers.py",
    "dandelion/backends/gpu/known_calls.py",
    "dandelion/backends/gpu/modules.py",
    "dandelion/backends/gpu/opencl_device.py",
    "dandelion/backends/gpu/pool.py",
    "dandelion/backends/gpu/program.py",
    "dandelion/backends/gpu/sequential.py",
    "dandelion/polling.py",
    "dandelion/timers.py",
    "dandelion/dataflow/sharding.py",
    "dandelion/dispatcher/*.py",
    "dandelion/driver/checks.py",
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
    "dandelion/frontend_process/link.py",
    "dandelion/frontend_process/node_link.py",
    "dandelion/frontend_process/wired_sets.py",
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
    "dandelion/policies/*.py",
)
INTERPRETED = (
    "dandelion/dispatcher/frames.py",
    "dandelion/dispatcher/instructions.py",
    "dandelion/scheduler/actions.py",
)
"""Modules with records of msgspec. They are never compiled: msgspec reads annotations at run time,
and mypyc drops the arguments of a class, such as ``order``, ``eq`` and ``frozen``. Nor is a module
with coroutines: cancelled ones that mypyc compiled give warnings on Python 3.12."""

FLAGS = ("--config-file=", "--ignore-missing-imports", "--no-warn-no-return")


def sources() -> list[str]:
    """Return the modules to compile."""
    found = [path for pattern in COMPILED for path in sorted(glob(pattern))]
    return [path for path in found if not path.endswith((*INTERPRETED, "__init__.py"))]


DESCRIBING = {"egg_info", "dist_info", "sdist"}
"""Commands that build nothing. pip gives two of them before it builds."""


def has_compiler() -> bool:
    """Tell whether a C compiler and the headers of Python are there."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    with TemporaryDirectory() as folder:
        probe = Path(folder, "probe.c")
        probe.write_text("#include <Python.h>\n")
        include = "-I" + sysconfig.get_path("include")
        line = [*shlex.split(command), include, "-c", str(probe), "-o", str(probe) + ".o"]
        try:
            return subprocess.run(line, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def wanted() -> bool:
    """Tell whether to compile."""
    choice = os.environ.get("DANDELION_COMPILE", "")
    if choice not in ("", "0", "1"):
        sys.exit(f"DANDELION_COMPILE is {choice!r}; it may be 0 or 1")
    if DESCRIBING & set(sys.argv):
        return False
    if choice or "editable_wheel" in sys.argv:
        return choice == "1"
    if has_compiler():
        return True
    print("no C compiler, or no headers of Python: calls will be about twice as slow")
    return False


@contextmanager
def one_tree() -> Iterator[None]:
    """Work in a folder where the backends are inside of the package, as in an installation.

    mypyc derives the names of modules from their paths.
    """
    root = Path.cwd()
    with TemporaryDirectory() as folder:
        package = Path(folder, "dandelion")
        package.mkdir()
        for path in [*Path("dandelion").iterdir(), Path("backends")]:
            (package / path.name).symlink_to(path.absolute())
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(root)


def extension_modules() -> list[Extension]:
    """Translate the modules to C, if that is wanted."""
    if not wanted():
        return []
    from mypyc.build import mypycify

    target = str(Path("build").absolute())
    with one_tree():
        made = mypycify(
            [*FLAGS, *sources()],
            group_name="dandelion", opt_level="1", debug_level="0", target_dir=target,
            multi_file=True,  # one file of C takes a compiler three times as long
        )  # fmt: skip
    gc.freeze()  # else the objects of mypy are collected as the process ends, which takes 18 s
    return made


class ParallelBuild(build_ext):
    """Compile several files of C at a time; setuptools does that for extension modules only."""

    def build_extensions(self) -> None:
        compile_in_turn = self.compiler.compile

        def compile_all(sources: Sequence[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                done = pool.map(lambda source: compile_in_turn([source], **options), sources)
                return [path for objects in done for path in objects]

        self.compiler.compile = compile_all
        super().build_extensions()


setup(ext_modules=extension_modules(), cmdclass={"build_ext": ParallelBuild})
