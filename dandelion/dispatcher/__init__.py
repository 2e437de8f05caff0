"""The dispatcher: a pure state machine that executes one invocation's graph."""

from dandelion.dispatcher.plan import (
    ApplicationPlan,
    CompositionPlan,
    RepeatPlan,
    Target,
    compile_composition,
)
from dandelion.dispatcher.walk import Cancel, Complete, Fail, Instruction, Run, Walk

__all__ = [
    "ApplicationPlan",
    "Cancel",
    "Complete",
    "CompositionPlan",
    "Fail",
    "Instruction",
    "RepeatPlan",
    "Run",
    "Target",
    "Walk",
    "compile_composition",
]
