"""The node: the scheduler on an event loop, with executors. Also the embedded runtime."""

from dandelion.node.info import EngineInfo, NodeInfo, Signature
from dandelion.node.invocation import Invocation
from dandelion.node.invocation_result import InvocationResult
from dandelion.node.node import Node
from dandelion.settings import Settings, TenantSettings

__all__ = [
    "EngineInfo",
    "Invocation",
    "InvocationResult",
    "Node",
    "NodeInfo",
    "Settings",
    "Signature",
    "TenantSettings",
]
