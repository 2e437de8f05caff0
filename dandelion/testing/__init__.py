"""Test doubles for the engine and for authors of backends; see ``docs/testing.md``."""

from dandelion.testing.domains import Failing, Limited, Tracked
from dandelion.testing.engine_process import FakeEngineProcess
from dandelion.testing.installation import installed
from dandelion.testing.scripted import (
    Script,
    ScriptedAsyncEngine,
    ScriptedDriver,
    ScriptedEngine,
    echo,
)
from dandelion.testing.steps import Failures, Gate
from dandelion.testing.stopped import StoppedCall
from dandelion.testing.waiting import wait_until

__all__ = [
    "Failing",
    "Failures",
    "FakeEngineProcess",
    "Gate",
    "Limited",
    "Script",
    "ScriptedAsyncEngine",
    "ScriptedDriver",
    "ScriptedEngine",
    "StoppedCall",
    "Tracked",
    "echo",
    "installed",
    "wait_until",
]
