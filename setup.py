"""The build. With ``DANDELION_COMPILE=1``, modules on the path of a call become extension modules.

mypyc compiles them; it needs mypy, msgspec and a C compiler. `make extensions` does this in a
checkout. They are the same modules, only faster. Python prefers an extension module to its source
even if the source is newer.
"""

from __future__ import annotations

import os
from glob import glob

from setuptools import Extension, setup

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

FLAGS = ("--config-file=", "--ignore-missing-imports", "--no-warn-no-return")


def sources() -> list[str]:
    """Return the modules to compile."""
    found = [path for pattern in COMPILED for path in sorted(glob(pattern))]
    return [path for path in found if not path.endswith((*INTERPRETED, "__init__.py"))]


def extension_modules() -> list[Extension]:
    """Translate the modules to C, if that is wanted."""
    if os.environ.get("DANDELION_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    return mypycify([*FLAGS, *sources()], group_name="dandelion", opt_level="1", debug_level="0")


setup(ext_modules=extension_modules())
