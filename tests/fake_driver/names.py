"""FIXTURE. The names of the scenarios, read without running anything: they load the fake device."""

from __future__ import annotations

import ast
from pathlib import Path

CUDA_ALONE = {"what_other_calls_wrote_is_not_seen", "fat_binaries_stay_loaded"}
"""Scenarios of modules that HIP loads for each call."""


def scenario_names(file: str = "scenarios.py") -> list[str]:
    """List the functions of a file that take the fake device alone."""
    tree = ast.parse((Path(__file__).parent / file).read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and [a.arg for a in node.args.args] == ["fake"]
    ]


def real_scenario_names(file: str = "scenarios.py") -> list[str]:
    """List those that hold on any device."""
    tree = ast.parse((Path(__file__).parent / file).read_text())
    return [
        element.id
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "ON_REAL_DEVICES"
        for element in ast.walk(node.value)
        if isinstance(element, ast.Name)
    ]
