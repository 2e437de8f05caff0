"""The dispatcher: a pure state machine that executes one invocation's graph."""

from dandelion.dispatcher.instructions import Cancel, Complete, Fail, Instruction, Pause, Run
from dandelion.dispatcher.plan import (
    ApplicationPlan,
    CompositionPlan,
    FailurePlan,
    RepeatPlan,
    Target,
    compile_composition,
)
from dandelion.dispatcher.walk import Walk

__all__ = [
    "ApplicationPlan",
    "Cancel",
    "Complete",
    "CompositionPlan",
    "Fail",
    "FailurePlan",
    "Instruction",
    "Pause",
    "RepeatPlan",
    "Run",
    "Target",
    "Walk",
    "compile_composition",
]
