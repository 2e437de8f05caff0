"""The interface of a backend: a `Driver`, with its checker, planner, engine factory and engines."""

from dandelion.driver.checks import InstanceSets, check_inputs, check_outputs
from dandelion.driver.contracts import Checker, DeviceSharing, Driver, EngineFactory, Planner
from dandelion.driver.engine import AsyncEngine, Call, Engine, SharedConstants
from dandelion.driver.installed import (
    backend_names,
    backends_of_functions,
    load_driver,
    needed_backends,
    unknown_backend,
)
from dandelion.driver.records import Capacity, Demand, Hosting, Resource, Sharing

__all__ = [
    "AsyncEngine",
    "Call",
    "Capacity",
    "Checker",
    "Demand",
    "DeviceSharing",
    "Driver",
    "Engine",
    "EngineFactory",
    "Hosting",
    "InstanceSets",
    "Planner",
    "Resource",
    "SharedConstants",
    "Sharing",
    "backend_names",
    "backends_of_functions",
    "check_inputs",
    "check_outputs",
    "load_driver",
    "needed_backends",
    "unknown_backend",
]
