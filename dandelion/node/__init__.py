"""The node: carries out what dispatchers instruct. Also the embedded runtime."""

from dandelion.node.invocation import Outcome
from dandelion.node.node import EngineInfo, Node, Signature
from dandelion.settings import Settings

__all__ = ["EngineInfo", "Node", "Outcome", "Settings", "Signature"]
