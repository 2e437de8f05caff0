"""The node: the scheduler on an event loop, with executors. Also the embedded runtime."""

from dandelion.node.info import EngineInfo, NodeInfo, Signature
from dandelion.node.invocation import Invocation
from dandelion.node.node import Node
from dandelion.node.traced_result import TracedResult
from dandelion.settings import Settings, TenantSettings

__all__ = [
    "EngineInfo",
    "Invocation",
    "Node",
    "NodeInfo",
    "Settings",
    "Signature",
    "TenantSettings",
    "TracedResult",
]
