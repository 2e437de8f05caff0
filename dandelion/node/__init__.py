"""The node: carries out what dispatchers instruct. Also the embedded runtime."""

from dandelion.node.facts import EngineInfo, Signature
from dandelion.node.invocation import Outcome
from dandelion.node.node import Node
from dandelion.settings import Settings

__all__ = ["EngineInfo", "Node", "Outcome", "Settings", "Signature"]
