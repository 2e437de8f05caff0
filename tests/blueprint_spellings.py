"""One blueprint in each spelling."""

from __future__ import annotations

import copy
from typing import Any

SOURCE = b"""
#include "dandelion.h"
// KERNEL void commented(GLOBAL i64 *A) {}
KERNEL void matmul(GLOBAL const i64 *A, u64 bytes, GLOBAL i64 *B) { }
"""


LAUNCH = {
    "grid_dim_x": {"FromInput": {"bufname": "cfg", "idx": 0}},
    "grid_dim_y": {"FromInput": {"bufname": "cfg", "idx": 0}},
    "grid_dim_z": {"Absolute": 1},
    "block_dim_x": {"Absolute": 32},
    "block_dim_y": {"Absolute": 32},
    "block_dim_z": {"Absolute": 1},
    "shared_mem_bytes": {"Absolute": 0},
}


BODY = {
    "inputs": ["cfg", "A"],
    "buffers": {"B": {"Sizeof": "A"}},
    "outputs": ["B"],
    "control_flow": [
        {"ExecKernel": ["matmul", [{"Ptr": "A"}, {"Sizeof": "A"}, {"Ptr": "B"}], LAUNCH]}
    ],
}


THESIS: dict[str, Any] = {"module_path": "lib.cl", "kernels": ["matmul"], "blueprint": BODY}
ORIGINAL: dict[str, Any] = {
    "modules": [{"module_name": "lib.cl", "path": "lib.cl"}],
    "kernels": [{"module_name": "lib.cl", "kernel_name": "matmul"}],
    "blueprint": BODY,
}


CANONICAL: dict[str, Any] = {
    "modules": {"lib.cl": "lib.cl"},
    "kernels": {"matmul": "lib.cl"},
    "blueprint": {
        **BODY,
        "control_flow": [
            {
                "ExecKernel": [
                    "matmul",
                    [{"Ptr": "A"}, {"u64": {"Sizeof": "A"}}, {"Ptr": "B"}],
                    {
                        "grid_dim_x": {"FromInput": {"bufname": "cfg", "idx": 0}},
                        "grid_dim_y": {"FromInput": {"bufname": "cfg", "idx": 0}},
                        "block_dim_x": 32,
                        "block_dim_y": 32,
                    },
                ]
            }
        ],
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The thesis' listing with one place changed; a place is written as a/0/b."""
    document = copy.deepcopy(THESIS)
    *parents, last = path.split("/")
    place: Any = document
    for step in parents:
        place = place[int(step) if step.isdigit() else step]
    key: Any = int(last) if last.isdigit() else last
    if value is KeyError:
        del place[key]
    else:
        place[key] = value
    return document


EXEC = "blueprint/control_flow/0/ExecKernel"
