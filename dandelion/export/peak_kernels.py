"""Compiling the kernels of a model for one architecture, and their launches."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from dandelion.blueprint import Access
from dandelion.errors import InvalidFunction, Problem
from dandelion.export.memory_access import accesses
from dandelion.export.peak_records import AttentionProduct, FusedCall, Place, ProductCall
from dandelion.export.targets import Target
from dandelion.export.triton_binding import (
    ALIGNMENT,
    CompiledKernel,
    TritonKernel,
    compile_kernel,
    kernel_of,
)

Grid = tuple[int, int, int]
_ATOMICS = ("tt.atomic_rmw", "tt.atomic_cas")
_POINTERS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", "bool": "*i1"}


@dataclass(frozen=True, slots=True)
class PeakLaunch:
    """A launch of a compiled kernel.

    Attributes:
        kernel: its name.
        arguments: places, and integers with their type in Triton (``i32``).
        grid: blocks.
    """

    kernel: str
    arguments: tuple[Place | tuple[str, int], ...]
    grid: Grid


@dataclass(frozen=True, slots=True)
class PeakKernel:
    """A kernel and what it does with each of its arguments."""

    compiled: CompiledKernel
    access: tuple[Access, ...]


class PeakKernels:
    """Compiles kernels as launches need them, each once.

    Args:
        sources: Python text of the kernels that Inductor made, by name.
        target: the architecture.
    """

    def __init__(self, sources: Mapping[str, str], target: Target) -> None:
        self._target = target
        self._sources = sources
        self._tuners: dict[str, Any] = {}
        self._attention: dict[tuple[object, ...], str] = {}
        self.kernels: dict[str, PeakKernel] = {}

    # kernels of Inductor

    def fused(self, call: FusedCall) -> PeakLaunch:
        """The launch of a kernel that Inductor made."""
        tuner = self._tuners.get(call.kernel)
        if tuner is None:
            tuner = self._tuners[call.kernel] = _loaded(call.kernel, self._sources[call.kernel])
        config = _chosen(tuner)
        meta = tuner.triton_meta
        signature: dict[str, str] = meta["signature"]
        if call.kernel not in self.kernels:
            self._compile(call.kernel, tuner, config)
        given = {**meta["constants"], **config.kwargs}
        passed = [
            (name, call.arguments[name]) for name in signature
            if name not in given and signature[name] != "constexpr"
        ]  # fmt: skip
        arguments = tuple(
            value if isinstance(value, Place) else (signature[name], value)
            for name, value in passed
        )
        sizes = {n: v for n, v in call.arguments.items() if isinstance(v, int)}
        return PeakLaunch(call.kernel, arguments, _grid(tuner, config, sizes))

    def _compile(self, name: str, tuner: Any, config: Any) -> None:
        kernel, _ = kernel_of(tuner.fn)
        meta = tuner.triton_meta
        known = [parameter.name for parameter in kernel.parameters]
        own = {n: v for n, v in config.kwargs.items() if n in known}
        further = {n: v for n, v in config.kwargs.items() if n not in known}
        constants = {**meta["constants"], **own}
        signature = {
            n: "constexpr" if n in constants else meta["signature"][n] for n in known
        }  # fmt: skip
        aligned = [
            known[at] for (at,), marks in meta["configs"][0].items()
            if ["tt.divisibility", ALIGNMENT] in marks and known[at] not in constants
        ]  # fmt: skip
        options = {
            "num_warps": config.num_warps, "num_stages": config.num_stages, "debug": False,
            "sanitize_overflow": False, **further,
        }  # fmt: skip
        self._add(name, kernel, signature, constants, aligned, options)

    # attention

    def attention(self, call: ProductCall, product: AttentionProduct) -> PeakLaunch:
        """The launch of attention."""
        compiler = importlib.import_module("triton")
        q, k, v = product.q, product.k, product.v
        batch, heads, rows, width = q.shape
        columns = k.shape[2]
        block_width = max(compiler.next_power_of_2(width), 16)
        block_columns = 64 if block_width <= 64 else 32
        if product.dtype != "float32" and block_width <= 64 and columns > 64:
            block_columns = 128  # few turns, as each waits for its loads
        block_rows = 128 if rows > 512 and block_width <= 64 else 64
        mask = product.mask
        masking = 0 if mask is None else 1 if product.mask_dtype == "bool" else 2
        spread = (0, 0, 0, 0) if mask is None else mask.strides
        # float32 in three steps, as torch: with one, errors are twice those of torch
        in_steps = product.dtype == "float32" and self._target.backend == "cuda"
        precision = "tf32x3" if in_steps else "ieee"
        values = (
            product.scale, rows, columns, width, heads, heads // k.shape[1], *q.strides[:3],
            *k.strides[:3], *v.strides[:3], *spread, masking, product.causal, precision, block_rows,
            block_columns, block_width,
        )  # fmt: skip
        kind = _POINTERS[product.dtype]
        mask_kind = _POINTERS[product.mask_dtype] if mask is not None else kind
        aligned = tuple(
            _is_aligned(place.offset_bytes + view.offset * _item_bytes(product.dtype), view.strides,
                        product.dtype)
            for place, view in zip(call.reads, (q, k, v), strict=False)
        )  # fmt: skip
        key = (*values, kind, mask_kind, aligned)
        name = self._attention.get(key)
        if name is None:
            name = self._attention[key] = f"attention_{len(self._attention)}"
            module = importlib.import_module("dandelion.export.attention_kernel")
            kernel, _ = kernel_of(module.attention)
            names = [parameter.name for parameter in kernel.parameters]
            constants = dict(zip(names[5:], values, strict=True))
            types = dict(zip(names, (kind, kind, kind, mask_kind, kind), strict=False))
            signature = {n: types.get(n, "constexpr") for n in names}
            marked = [n for n, good in zip(names, aligned, strict=False) if good]
            options = {"num_warps": self._warps(4), "num_stages": 2}
            self._add(name, kernel, signature, constants, [*marked, "out"], options)
        places = [
            Place(place.buffer, place.offset_bytes + view.offset * item)
            for place, view, item in zip(
                call.reads, product.places,
                (*[_item_bytes(product.dtype)] * 3, _item_bytes(product.mask_dtype)), strict=False,
            )
        ]  # fmt: skip
        if mask is None:
            places.append(places[0])
        grid = (-(-rows // block_rows), batch * heads, 1)
        return PeakLaunch(name, (*places, Place(call.out)), grid)

    def _warps(self, count: int) -> int:
        """Warps of 32 threads in the target's own."""
        return max(count * 32 // self._target.warp_threads, 1)

    def _add(
        self, name: str, kernel: TritonKernel, signature: Mapping[str, str],
        constants: Mapping[str, object], aligned: list[str], options: Mapping[str, object],
    ) -> None:  # fmt: skip
        made = compile_kernel(kernel, signature, constants, aligned, self._target, options)
        limit = self._target.shared_limit_bytes
        if limit is not None and made.shared_bytes > limit:
            message = f"it needs {made.shared_bytes} bytes of shared memory on {self._target.arch}"
            raise InvalidFunction((Problem("launch", message, f"kernel {name}"),))
        passed = [n for n in signature if signature[n] != "constexpr"]
        found = accesses(made.operations, len(passed))
        atomic = any(operation.name in _ATOMICS for operation in made.operations)
        ways = tuple(
            _way(n, signature[n], way, atomic) for n, way in zip(passed, found, strict=True)
        )
        self.kernels[name] = PeakKernel(made, ways)


def _way(name: str, kind: str, derived: Access, atomic: bool) -> Access:
    """The access to a parameter; what Inductor names an output is written, and never read."""
    if not kind.startswith("*"):
        return Access.VALUE
    if derived is Access.BOTH and name.startswith("out") and not atomic:
        return Access.WRITE
    return derived


def _loaded(name: str, text: str) -> Any:
    """Import the text of a kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.py"
        path.write_text(text, "utf-8")
        spec = importlib.util.spec_from_file_location(f"dandelion_inductor_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        helpers = importlib.import_module("torch._inductor.runtime.triton_helpers")
        with mock.patch.object(helpers, "set_driver_to_gpu"):  # there may be none
            spec.loader.exec_module(module)
    found = [one for one in vars(module).values() if hasattr(one, "triton_meta")]
    assert len(found) == 1, f"kernel {name} is not alone in its text"
    return found[0]


def _chosen(tuner: Any) -> Any:
    """A configuration: the one whose blocks are neither tiny nor larger than registers."""
    return tuner.configs[0]


def _grid(tuner: Any, config: Any, sizes: Mapping[str, int]) -> Grid:
    heuristics = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    rule = heuristics.GridExpr.from_meta(tuner.inductor_meta, config, mode="python")
    x, y, z = rule.eval_slow({**sizes})
    return int(x), int(y), int(z)


def _item_bytes(dtype: str) -> int:
    return {"float32": 4, "bool": 1}.get(dtype, 2)


def _is_aligned(offset_bytes: int, strides: tuple[int, ...], dtype: str) -> bool:
    item = _item_bytes(dtype)
    return all(value % ALIGNMENT == 0 for value in (offset_bytes, *(s * item for s in strides[:3])))
