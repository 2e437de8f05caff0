"""FIXTURE. Models exported for the tests on a device, in processes of their own, several at a time.

Nothing is measured meanwhile: `exported` returns when all are made.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from dandelion.documents import FunctionDocument
from dandelion.export import ExportReport, export_module
from tests import torch_models

_MOST_PROCESSES = 12


@dataclass(frozen=True, slots=True)
class Case:
    """A model to be exported.

    Attributes:
        model: of `tests.torch_models`.
        batch: images or texts of a call.
        precision: f32, tf32, or bf16 for all values.
        route: portable or peak.
    """

    model: str
    batch: int
    precision: str
    route: str

    @property
    def name(self) -> str:
        """Of the function."""
        return f"{self.model}_{self.batch}_{self.precision}_{self.route}"


class Exported(msgspec.Struct, frozen=True):
    """What was made."""

    function: FunctionDocument
    report: ExportReport
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def module_of(case: Case) -> tuple[Any, tuple[Any, ...]]:
    """The module, with element types as the case has them, and its inputs."""
    module, examples = torch_models.model(case.model, 1, case.batch)
    if case.precision != "bf16":
        return module, examples
    narrow = torch.bfloat16
    return module.to(narrow), tuple(
        one.to(narrow) if one.is_floating_point() else one for one in examples
    )


def exported(cases: Sequence[Case], arch: str, folder: Path) -> dict[Case, Future[Path]]:
    """Export models; the path of each document, or what went wrong.

    Args:
        cases: which.
        arch: architecture of the device: ``sm_90``.
        folder: where the documents are written.
    """
    spawned = multiprocessing.get_context("spawn")
    workers = max(min(_MOST_PROCESSES, (os.cpu_count() or 2) - 2, len(cases)), 1)
    with ProcessPoolExecutor(workers, spawned) as pool:
        return {case: pool.submit(_export, case, arch, folder) for case in cases}


def _export(case: Case, arch: str, folder: Path) -> Path:
    torch.set_num_threads(1)
    module, examples = module_of(case)
    compute = case.precision if case.precision == "tf32" else "f32"
    target = f"cuda:{arch.removeprefix('sm_')}" if case.route == "peak" else ""
    made = export_module(
        case.name, module, examples, precision=compute, route=case.route, target=target
    )
    path = folder / f"{case.name}.msgpack"
    whole = Exported(made.function, made.report, made.inputs, made.outputs)
    path.write_bytes(msgspec.msgpack.encode(whole))
    return path


def read(path: Path) -> Exported:
    """Read what was made."""
    return msgspec.msgpack.decode(path.read_bytes(), type=Exported)
