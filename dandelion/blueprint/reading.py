"""Reading blueprints: JSON in any of the three spellings becomes the records.

The spellings differ in their heads and share one grammar below it, so a file may use newer features
than its spelling:

========= ================================================= ==============================
spelling  modules                                           kernels
========= ================================================= ==============================
thesis    ``"module_path": PATH``                           ``[NAME, ...]``
original  ``"modules": [{"module_name":, "path":}, ...]``   ``[{"module_name":,
                                                            "kernel_name":}, ...]``
canonical ``"modules": {NAME: CODE or [CODE, ...]}``,       ``{NAME: MODULE or
          CODE is ``PATH`` or ``{"path":, "backend":,       {"module":, "symbol":,
          "arch":, "shared_mem_bytes":}``                   "access": [...]}}``
========= ================================================= ==============================

Problems are found in one pass, up to a bound. Unreadable parts are replaced by valid placeholders,
so that a mistake is reported once and the static check can still check the rest.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import json
import sys
from typing import NoReturn

from dandelion.blueprint.document import Json, TooManyProblems, json_object, kind_of
from dandelion.blueprint.reading_operations import OperationReader
from dandelion.blueprint.reading_sizes import SCALARS
from dandelion.blueprint.records import (
    MAX_DEPTH,
    Absolute,
    Access,
    Action,
    Argument,
    Candidates,
    Case,
    Choose,
    Code,
    CopyBuffer,
    ExecKernel,
    ExecutionBlueprint,
    GpuConfig,
    Kernel,
    LaunchConfig,
    Module,
    Ptr,
    Raw,
    Repeat,
    RepeatWhile,
    Scalar,
    ScalarType,
    Sizeof,
    ZeroBuffer,
)
from dandelion.errors import Problem, nearest

_ARGUMENTS = ("Ptr", "Sizeof", "Constant", "bytes", *SCALARS)
_ACTIONS = (
    *("ExecKernel", "CopyBuffer", "ZeroBuffer", "Gemm", "Conv2d"),
    *("Repeat", "RepeatWhile", "Candidates", "Choose"),
)
_LAUNCH = LaunchConfig.__struct_fields__
_LARGEST = sys.float_info.max


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def read_config(
    data: bytes | bytearray | memoryview | str,
) -> tuple[GpuConfig, tuple[Problem, ...]]:
    """Read a blueprint in any spelling.

    Returns:
        The records, with placeholders for unreadable parts, and all problems, up to
        `MOST_PROBLEMS`.
    """
    given = data if isinstance(data, str) else bytes(data)
    try:
        return _read(given) if len(given) <= _KEPT_BYTES else _read.__wrapped__(given)
    except RecursionError as error:  # depends on the caller's stack, so it must not be cached
        return _NOTHING, (Problem("json", f"no JSON: {error}", "blueprint"),)


_KEPT_BYTES = 1024 * 1024


@functools.lru_cache(maxsize=8)  # a document is read several times: for its files, check, plan
def _read(data: bytes | str) -> tuple[GpuConfig, tuple[Problem, ...]]:
    reader = _Reader()
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        document = json.loads(text, object_pairs_hook=json_object, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        problem = Problem(
            "json", f"no JSON: {error.msg}", where, line=error.lineno, column=error.colno
        )
        return _NOTHING, (problem,)
    except ValueError as error:
        return _NOTHING, (Problem("json", f"no JSON: {error}", "blueprint"),)
    config = _NOTHING
    with contextlib.suppress(TooManyProblems):
        config = reader.config(document)
    return config, tuple(reader.problems)


_NOTHING = GpuConfig((), (), ExecutionBlueprint())


class _Reader(OperationReader):
    """One pass over a document; `problems` grows."""

    # the head

    def config(self, document: Json) -> GpuConfig:
        if not isinstance(document, dict):
            self.wrong("document", "an object", document)
            return _NOTHING
        thesis = "module_path" in document
        required = ("module_path" if thesis else "modules", "kernels", "blueprint")
        head = self.fields("", document, required)
        if thesis:
            path = self.name("module_path", head["module_path"])
            modules: tuple[Module, ...] = (Module(path, (Code(path),)),)
        else:
            modules = self.modules(head.get("modules", []))
        first = modules[0].name if len(modules) == 1 else ""
        kernels = self.kernels(head.get("kernels", []), first)
        body = head.get("blueprint")
        blueprint = self.blueprint(body) if "blueprint" in head else ExecutionBlueprint()
        return GpuConfig(modules, kernels, blueprint)

    def modules(self, value: Json) -> tuple[Module, ...]:
        if isinstance(value, list):
            return self.items("modules", value, self.original_module)
        if not isinstance(value, dict):
            self.wrong("modules", "an object, or a list of {module_name, path}", value)
            return ()
        self.twice("modules", value)
        return tuple(
            Module(self.name("modules", name), self.code(f"modules.{name}", content))
            for name, content in value.items()
        )

    def original_module(self, where: str, value: Json) -> Module:
        fields = self.fields(where, value, ("module_name", "path"))
        name = self.name(f"{where}.module_name", fields.get("module_name", "?"))
        return Module(name, (Code(self.name(f"{where}.path", fields.get("path", "?"))),))

    def code(self, where: str, value: Json) -> tuple[Code, ...]:
        if isinstance(value, list):
            return self.items(where, value, self.one_code)
        return (self.one_code(where, value),)

    def one_code(self, where: str, value: Json) -> Code:
        if isinstance(value, str):
            return Code(self.name(where, value))
        fields = self.fields(where, value, ("path",), ("backend", "arch", "shared_mem_bytes"))
        path = self.name(f"{where}.path", fields.get("path", "?"))
        backend = self.name(f"{where}.backend", fields["backend"]) if "backend" in fields else ""
        arch = self.name(f"{where}.arch", fields["arch"]) if "arch" in fields else ""
        at, shared = f"{where}.shared_mem_bytes", fields.get("shared_mem_bytes")
        given = "shared_mem_bytes" in fields
        return Code(path, backend, arch, self.integer(at, shared) if given else None)

    def kernels(self, value: Json, only_module: str) -> tuple[Kernel, ...]:
        if isinstance(value, list):
            return self.items("kernels", value, lambda w, v: self.listed_kernel(w, v, only_module))
        if not isinstance(value, dict):
            self.wrong(
                "kernels", "an object, or a list of names or {module_name, kernel_name}", value
            )
            return ()
        self.twice("kernels", value)
        return tuple(self.kernel(f"kernels.{name}", name, v) for name, v in value.items())

    def listed_kernel(self, where: str, value: Json, only_module: str) -> Kernel:
        if isinstance(value, str):
            if not only_module:
                self.report(
                    "module", where, "its module is missing", expected="{module_name, kernel_name}"
                )
            return Kernel(self.name(where, value), only_module)
        fields = self.fields(where, value, ("module_name", "kernel_name"))
        name = self.name(f"{where}.kernel_name", fields.get("kernel_name", "?"))
        return Kernel(name, self.name(f"{where}.module_name", fields.get("module_name", "?")))

    def kernel(self, where: str, name: str, value: Json) -> Kernel:
        self.name(where, name)
        if isinstance(value, str):
            return Kernel(name, self.name(where, value))
        fields = self.fields(where, value, ("module",), ("symbol", "access"))
        module = self.name(f"{where}.module", fields.get("module", "?"))
        symbol = self.name(f"{where}.symbol", fields["symbol"]) if "symbol" in fields else ""
        access = self.items(f"{where}.access", fields.get("access", []), self.access)
        return Kernel(name, module, "" if symbol == name else symbol, access)

    def access(self, where: str, value: Json) -> Access:
        known = [a.value for a in Access]
        if isinstance(value, str) and value in known:
            return Access(value)
        close = nearest(value, known) if isinstance(value, str) else None
        self.report(
            "access", where, "unknown access", expected=" or ".join(known), found=kind_of(value),
            close=close,
        )  # fmt: skip
        return Access.BOTH

    # the body

    def blueprint(self, value: Json) -> ExecutionBlueprint:
        where = "blueprint"
        required = ("inputs", "buffers", "outputs", "control_flow")
        fields = self.fields(where, value, required, ("weights", "batch", "present_if"))
        buffers = fields.get("buffers", {})
        if not isinstance(buffers, dict):
            self.wrong(f"{where}.buffers", "an object from names to sizes", buffers)
            buffers = {}
        self.twice(f"{where}.buffers", buffers)
        return ExecutionBlueprint(
            self.items(f"{where}.inputs", fields.get("inputs", []), self.name),
            self.items(f"{where}.weights", fields.get("weights", []), self.name),
            {
                self.name(f"{where}.buffers", n): self.size(f"{where}.buffers.{n}", v)
                for n, v in buffers.items()
            },
            self.items(f"{where}.outputs", fields.get("outputs", []), self.name),
            self.actions(f"{where}.control_flow", fields.get("control_flow", []), 0),
            self.size(f"{where}.batch", fields["batch"]) if "batch" in fields else Absolute(1),
            self.present_if(f"{where}.present_if", fields.get("present_if", {})),
        )

    def present_if(self, where: str, value: Json) -> dict[str, str]:
        if not isinstance(value, dict):
            self.wrong(where, "an object from outputs to buffers", value)
            return {}
        self.twice(where, value)
        return {self.name(where, n): self.name(f"{where}.{n}", v) for n, v in value.items()}

    def actions(self, where: str, value: Json, depth: int) -> tuple[Action, ...]:
        if depth > MAX_DEPTH:
            self.report("depth", where, f"repeats are nested more than {MAX_DEPTH} deep")
            return ()
        return self.items(where, value, lambda w, v: self.action(w, v, depth))

    def action(self, where: str, value: Json, depth: int) -> Action | None:
        tag, content = self.tagged(where, value, _ACTIONS)
        if tag == "ExecKernel":
            return self.exec_kernel(where, content)
        if tag == "CopyBuffer":
            return self.copy_buffer(where, content)
        if tag == "ZeroBuffer":
            return ZeroBuffer(self.name(where, content))
        if tag == "Gemm":
            return self.gemm(where, content)
        if tag == "Conv2d":
            return self.convolution(where, content)
        if tag == "Repeat":
            if not isinstance(content, list) or len(content) != 2:
                self.wrong(where, "Repeat: [times, actions]", content)
                return None
            times = self.size(f"{where}.times", content[0])
            return Repeat(times, self.actions(f"{where}.actions", content[1], depth + 1))
        if tag == "Candidates":
            return Candidates(
                self.items(where, content, lambda at, one: self.actions(at, one, depth + 1))
            )
        if tag == "Choose":
            fields = self.fields(where, content, ("sizes", "cases"))
            return Choose(
                self.items(f"{where}.sizes", fields.get("sizes", []), self.size),
                self.items(
                    f"{where}.cases", fields.get("cases", []), lambda w, v: self.case(w, v, depth)
                ),
            )
        if tag == "RepeatWhile":
            return self.repeat_while(where, content, depth)
        return None

    def case(self, where: str, value: Json, depth: int) -> Case:
        fields = self.fields(where, value, ("up_to", "actions"), ("padded",))
        padded = fields.get("padded", {})
        if not isinstance(padded, dict):
            self.wrong(f"{where}.padded", "an object from buffers to sizes", padded)
            padded = {}
        self.twice(f"{where}.padded", padded)
        return Case(
            self.integer(f"{where}.up_to", fields.get("up_to", 0)),
            self.actions(f"{where}.actions", fields.get("actions", []), depth + 1),
            {
                self.name(f"{where}.padded", name): self.size(f"{where}.padded.{name}", size)
                for name, size in padded.items()
            },
        )

    def repeat_while(self, where: str, value: Json, depth: int) -> RepeatWhile | None:
        if not isinstance(value, list) or len(value) != 3:
            self.wrong(where, "RepeatWhile: [times, word, actions]", value)
            return None
        times = self.size(f"{where}.times", value[0])
        word = self.name(f"{where}.word", value[1])
        return RepeatWhile(times, word, self.actions(f"{where}.actions", value[2], depth + 1))

    def exec_kernel(self, where: str, value: Json) -> ExecKernel | None:
        if not isinstance(value, list) or len(value) != 3:
            self.wrong(where, "ExecKernel: [name, arguments, launch]", value)
            return None
        kernel = self.name(f"{where}.kernel", value[0])
        args: tuple[Argument, ...] = self.items(f"{where}.args", value[1], self.argument)
        return ExecKernel(kernel, args, self.launch(f"{where}.launch", value[2]))

    def copy_buffer(self, where: str, value: Json) -> CopyBuffer | None:
        if not isinstance(value, list) or len(value) != 2:
            self.wrong(where, "CopyBuffer: [target, source]", value)
            return None
        target, source = value
        return CopyBuffer(
            self.name(f"{where}.target", target), self.name(f"{where}.source", source)
        )

    def launch(self, where: str, value: Json) -> LaunchConfig:
        fields = self.fields(where, value, (), _LAUNCH)
        sizes = {n: self.size(f"{where}.{n}", v) for n, v in fields.items() if n in _LAUNCH}
        return LaunchConfig(**sizes)

    def argument(self, where: str, value: Json) -> Argument:
        tag, content = self.tagged(where, value, _ARGUMENTS)
        if tag == "Ptr":
            return self.pointer(where, content)
        if tag == "Sizeof":
            return Scalar(ScalarType.U64, Sizeof(self.name(where, content)))
        if tag == "Constant":
            return Scalar(ScalarType.I64, self.integer(where, content))
        if tag == "bytes":
            return self.raw(where, content)
        return self.scalar(where, ScalarType(tag), content) if tag else Raw(b"")

    def pointer(self, where: str, value: Json) -> Ptr:
        if not isinstance(value, dict):
            return Ptr(self.name(where, value))
        fields = self.fields(where, value, ("buffer", "offset"), ())
        if fields.keys() != {"buffer", "offset"}:
            return Ptr("")
        offset = self.size(f"{where}.offset", fields["offset"])
        return Ptr(self.name(f"{where}.buffer", fields["buffer"]), offset)

    def raw(self, where: str, value: Json) -> Raw:
        try:
            return Raw(base64.b64decode(value, validate=True))
        except (TypeError, ValueError, binascii.Error):
            self.wrong(where, "bytes in base64", value)
            return Raw(b"\0")

    def scalar(self, where: str, kind: ScalarType, value: Json) -> Scalar:
        if kind.is_float:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and abs(value) <= _LARGEST:
                return Scalar(kind, float(value))
            self.wrong(where, "a finite number", value)
            return Scalar(kind, 0.0)
        if isinstance(value, dict):
            size = self.size(where, value)
            return Scalar(kind, size.value if isinstance(size, Absolute) else size)
        return Scalar(kind, self.integer(where, value))
