"""Printing blueprints: the records become JSON in the requested spelling."""

from __future__ import annotations

import base64
import enum
import json
from typing import Any, TypeAlias, cast

from dandelion.blueprint.operation_records import COMPUTATIONS, BufferPart, Matrix
from dandelion.blueprint.records import (
    Absolute,
    Action,
    Add,
    Argument,
    ByBatch,
    Candidates,
    Case,
    CeilDiv,
    Choose,
    Code,
    Conv2d,
    CopyBuffer,
    Elements,
    ExecKernel,
    ExecutionBlueprint,
    FromInput,
    Gemm,
    GpuConfig,
    Kernel,
    LaunchConfig,
    Module,
    Mul,
    Ptr,
    Raw,
    RepeatWhile,
    ScalarType,
    Size,
    Sizeof,
    ZeroBuffer,
)
from dandelion.errors import InvalidInput

Json: TypeAlias = Any  # an argument of json.dumps


class Spelling(enum.Enum):
    """The spellings of blueprints; see `dandelion.blueprint.reading`."""

    THESIS = "thesis"
    ORIGINAL = "original"
    CANONICAL = "canonical"


def print_blueprint(config: GpuConfig, spelling: Spelling = Spelling.CANONICAL) -> str:
    """Write a blueprint as JSON; reading it gives equal records.

    Raises:
        InvalidInput: the older spelling cannot express something that the blueprint uses.
    """
    printer = _Printer(spelling)
    return json.dumps(printer.config(config), indent=2, ensure_ascii=False)


def print_argument(argument: Argument) -> str:
    """Write one argument of a launch as JSON, in the canonical spelling."""
    return json.dumps(_Printer(Spelling.CANONICAL).argument(argument), ensure_ascii=False)


class _Printer:
    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        self.canonical = spelling is Spelling.CANONICAL

    def only(self, what: str, *spellings: Spelling) -> None:
        if self.spelling not in spellings:
            raise InvalidInput(
                "spelling", f"the {self.spelling.value} spelling has no {what}", "use the canonical"
            )

    def config(self, config: GpuConfig) -> Json:
        head: dict[str, Json] = {}
        if self.canonical:
            head["modules"] = {m.name: self.codes(m) for m in config.modules}
            head["kernels"] = {k.name: self.kernel(k) for k in config.kernels}
        else:
            for module in config.modules:
                if module.code != (Code(module.code[0].path if module.code else ""),):
                    self.only("alternatives of a module", Spelling.CANONICAL)
            for kernel in config.kernels:
                if kernel.symbol or kernel.access:
                    self.only("symbols or access of kernels", Spelling.CANONICAL)
        if self.spelling is Spelling.ORIGINAL:
            head["modules"] = [
                {"module_name": m.name, "path": m.code[0].path} for m in config.modules
            ]
            head["kernels"] = [
                {"module_name": k.module, "kernel_name": k.name} for k in config.kernels
            ]
        if self.spelling is Spelling.THESIS:
            if len(config.modules) != 1 or config.modules[0].name != config.modules[0].code[0].path:
                self.only("module names", Spelling.ORIGINAL, Spelling.CANONICAL)
            if any(k.module != config.modules[0].name for k in config.kernels):
                self.only("module names", Spelling.ORIGINAL, Spelling.CANONICAL)
            head["module_path"] = config.modules[0].name
            head["kernels"] = [k.name for k in config.kernels]
        head["blueprint"] = self.blueprint(config.blueprint)
        return head

    def codes(self, module: Module) -> Json:
        codes = [self.code(c) for c in module.code]
        return codes[0] if len(codes) == 1 else codes

    def code(self, code: Code) -> Json:
        if code == Code(code.path):
            return code.path
        fields: dict[str, Json] = {"path": code.path}
        if code.backend:
            fields["backend"] = code.backend
        if code.arch:
            fields["arch"] = code.arch
        if code.shared_mem_bytes is not None:
            fields["shared_mem_bytes"] = code.shared_mem_bytes
        return fields

    def kernel(self, kernel: Kernel) -> Json:
        if not kernel.symbol and not kernel.access:
            return kernel.module
        fields: dict[str, Json] = {"module": kernel.module}
        if kernel.symbol:
            fields["symbol"] = kernel.symbol
        if kernel.access:
            fields["access"] = [a.value for a in kernel.access]
        return fields

    def blueprint(self, blueprint: ExecutionBlueprint) -> Json:
        fields: dict[str, Json] = {"inputs": list(blueprint.inputs)}
        if blueprint.weights:
            self.only("weights", Spelling.ORIGINAL, Spelling.CANONICAL)
            fields["weights"] = list(blueprint.weights)
        if blueprint.batch != Absolute(1):
            self.only("field for the batch", Spelling.CANONICAL)
            fields["batch"] = self.size(blueprint.batch)
        fields["buffers"] = {n: self.size(s) for n, s in blueprint.buffers.items()}
        fields["outputs"] = list(blueprint.outputs)
        if blueprint.present_if:
            self.only("outputs that may be absent", Spelling.CANONICAL)
            fields["present_if"] = dict(blueprint.present_if)
        fields["control_flow"] = [self.action(a) for a in blueprint.control_flow]
        return fields

    def action(self, action: Action) -> Json:
        if isinstance(action, ExecKernel):
            args = [self.argument(a) for a in action.args]
            return {"ExecKernel": [action.kernel, args, self.launch(action.launch)]}
        if isinstance(action, CopyBuffer):
            self.only("copies of buffers", Spelling.CANONICAL)
            return {"CopyBuffer": [action.target, action.source]}
        if isinstance(action, ZeroBuffer):
            self.only("zeroed buffers", Spelling.CANONICAL)
            return {"ZeroBuffer": action.buffer}
        if isinstance(action, Gemm | Conv2d):
            self.only("library operations", Spelling.CANONICAL)
            return {type(action).__name__: self.operation(action)}
        if isinstance(action, Candidates):
            self.only("candidates", Spelling.CANONICAL)
            return {"Candidates": [[self.action(a) for a in one] for one in action.alternatives]}
        if isinstance(action, Choose):
            self.only("choices", Spelling.CANONICAL)
            cases = [self.case(case) for case in action.cases]
            return {"Choose": {"sizes": [self.size(s) for s in action.sizes], "cases": cases}}
        inner = [self.action(a) for a in action.actions]
        if isinstance(action, RepeatWhile):
            self.only("loops with a condition", Spelling.CANONICAL)
            return {"RepeatWhile": [self.size(action.times), action.word, inner]}
        return {"Repeat": [self.size(action.times), inner]}

    def case(self, case: Case) -> Json:
        fields: dict[str, Json] = {"up_to": case.up_to}
        if case.padded:
            fields["padded"] = {name: self.size(size) for name, size in case.padded.items()}
        fields["actions"] = [self.action(action) for action in case.actions]
        return fields

    def operation(self, action: Gemm | Conv2d) -> Json:
        """The fields of a library operation that have not their default."""
        fields = action.__struct_fields__
        optional = dict(zip(fields[::-1], action.__struct_defaults__[::-1], strict=False))
        optional["compute"] = COMPUTATIONS[action.dtype][0]
        if isinstance(action, Gemm) and action.c is not None:
            optional["beta"] = 1.0
        return {
            name: self.value(getattr(action, name))
            for name in fields
            if name not in optional or getattr(action, name) != optional[name]
        }

    def value(self, value: object) -> Json:
        """One field of a library operation."""
        match value:
            case BufferPart() | Matrix():
                fields = self.operation_operand(value)
                return fields["buffer"] if len(fields) == 1 else fields
            case enum.Enum():
                return value.value
            case tuple():
                return [self.size(size) for size in value]
            case bool() | float() | None:
                return value
        return self.size(cast("Size", value))

    def operation_operand(self, operand: BufferPart | Matrix) -> dict[str, Json]:
        fields: dict[str, Json] = {"buffer": operand.buffer}
        optional = operand.__struct_defaults__
        for name, default in zip(operand.__struct_fields__[1:], optional, strict=True):
            value = getattr(operand, name)
            if value != default:
                fields[name] = value if value is True else self.size(value)
        return fields

    def launch(self, launch: LaunchConfig) -> Json:
        default = LaunchConfig()
        names = launch.__struct_fields__
        sizes = {n: getattr(launch, n) for n in names}
        return {
            name: self.size(size)
            for name, size in sizes.items()
            if not self.canonical or size != getattr(default, name)
        }

    def argument(self, argument: Argument) -> Json:
        if isinstance(argument, Ptr):
            if argument.offset == Absolute(0):
                return {"Ptr": argument.buffer}
            self.only("pointers with an offset", Spelling.CANONICAL)
            return {"Ptr": {"buffer": argument.buffer, "offset": self.size(argument.offset)}}
        if isinstance(argument, Raw):
            self.only("bytes by value", Spelling.CANONICAL)
            return {"bytes": base64.b64encode(argument.data).decode()}
        value = argument.value
        if argument.dtype is ScalarType.U64 and isinstance(value, Sizeof):
            return {"Sizeof": value.buffer}
        if argument.dtype is ScalarType.I64 and isinstance(value, int):
            return {"Constant": value}
        self.only("typed scalars", Spelling.CANONICAL)
        if isinstance(value, int | float):
            return {argument.dtype.value: value}
        return {argument.dtype.value: self.size(value)}

    def size(self, size: Size) -> Json:
        match size:
            case Absolute(value):
                return value if self.canonical else {"Absolute": value}
            case Sizeof(buffer):
                return {"Sizeof": buffer}
            case FromInput(bufname, idx):
                return {"FromInput": {"bufname": bufname, "idx": idx}}
            case ByBatch(value, even):
                self.only("sizes by the batch", Spelling.ORIGINAL, Spelling.CANONICAL)
                return {"AbsoluteByBatchEven" if even else "AbsoluteByBatch": value}
        self.only("arithmetic", Spelling.CANONICAL)
        match size:
            case Elements(buffer, dtype):
                return {"Elements": {"bufname": buffer, "dtype": dtype.value}}
            case Add(terms):
                return {"Add": [self.size(t) for t in terms]}
            case Mul(factors):
                return {"Mul": [self.size(f) for f in factors]}
            case CeilDiv(dividend, divisor):
                return {"CeilDiv": [self.size(dividend), self.size(divisor)]}
