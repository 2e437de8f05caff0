"""Random compositions of GPU functions give the same whether functions are run as one or not.

Both ways use the same walk and the same engine, on the host device; what is compared is everything
that a caller sees: bytes, names, keys and the order of items, and errors with their causes.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from dandelion.backends.gpu.host import HostDevice, Memory
from dandelion.backends.gpu.plan import Launch
from dandelion.backends.gpu.sequential import SequentialEngine

import dandelion.blueprint as bp
from dandelion.blueprint.numbers import pack
from dandelion.catalog import Batch, CompositionRecord, MemoryCatalog
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.graph import (
    Application,
    Binding,
    Composition,
    CompositionModule,
    Declaration,
    Feed,
    RepeatClause,
    Return,
    Sharding,
)
from dandelion.dataflow.printer import print_module
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Complete, CompositionPlan, Fail, Run, Walk
from dandelion.driver import Call, InstanceSets, check_inputs
from dandelion.errors import ApplicationFailed, DandelionError
from dandelion.function import (
    CodeObject,
    Digest,
    Function,
    FunctionSpec,
    FusedFunction,
    StaticItem,
    digest_of,
)
from dandelion.memory import HeapDomain
from dandelion.node.library import Library
from dandelion.settings import Settings

POOL_BYTES = 1 << 18
SIZES = (8, 64, 264)
WAYS = {"r": bp.Access.READ, "w": bp.Access.WRITE, "b": bp.Access.BOTH}


def _kernel(letters: str) -> Callable[..., None]:
    """Make a kernel that reads what its letters say, and writes what depends on all of it."""

    def run(launch: Launch, *args: Memory | bytes) -> None:
        *buffers, salt = args
        assert isinstance(salt, bytes)
        seen = zlib.crc32(salt)
        for letter, buffer in zip(letters, buffers, strict=True):
            if letter in "rb":
                assert not isinstance(buffer, bytes)
                seen = zlib.crc32(buffer.tobytes(), seen)
        if salt == FAULT and seen % 3 == 0:
            raise ValueError("a bad address")
        for index, (letter, buffer) in enumerate(zip(letters, buffers, strict=True)):
            if letter in "wb":
                assert not isinstance(buffer, bytes)
                data = (seen + index).to_bytes(8, "little") * 40
                buffer[:] = np.frombuffer(data, np.uint8)[: buffer.size]

    return run


def _flag(launch: Launch, word: Memory, read: Memory, salt: bytes) -> None:
    """Write a word that is zero for one content in four."""
    word[:4] = 0
    word[0] = zlib.crc32(read.tobytes(), zlib.crc32(salt)) % 4


FAULT = (77).to_bytes(8, "little")
LETTERS = [a + b + c for a in "rb" for b in "wbr" for c in ("", "w", "b", "r")]
KERNELS = {f"k{letters}": _kernel(letters) for letters in LETTERS} | {"flag": _flag}
HOST_FILE = " ".join(KERNELS).encode()


@dataclass(slots=True)
class World:
    """What is registered.

    Attributes:
        typed: declare types of some sets.
        faults: some kernels fail.
        eaches: part of the applications that have an instance for each item of a set.
        absent: the outputs of each function that may be absent.
    """

    source: random.Random
    typed: bool
    faults: bool
    eaches: float
    catalog: MemoryCatalog = field(default_factory=MemoryCatalog)
    blobs: dict[Digest, bytes] = field(default_factory=dict)
    functions: list[FunctionSpec] = field(default_factory=list)
    inner: Composition | None = None
    absent: dict[str, frozenset[str]] = field(default_factory=lambda: {"P": frozenset()})

    def blob(self, data: bytes) -> Digest:
        digest = digest_of(data)
        self.blobs[digest] = data
        return digest

    def function(self, name: str) -> None:
        """Register a random GPU function."""
        source = self.source
        given = [f"a{i}" for i in range(source.choice([1, 1, 2, 3]))]
        fixed = ["c"] if source.random() < 0.4 else []
        inputs = [*given, *fixed]
        source.shuffle(inputs)
        buffers: dict[str, bp.Size] = {
            f"t{i}": self.size(inputs) for i in range(source.choice([1, 2, 3]))
        }
        every = [*inputs, *buffers]
        flow: list[bp.Action] = []
        kernels: dict[str, bp.Kernel] = {}
        count = source.choice([1, 2, 4])
        flow += [self.action(every, buffers, kernels) for _ in range(count)]
        if source.random() < 0.2:
            flow.append(bp.Repeat(bp.Absolute(2), tuple(flow[:2])))
        outputs = source.sample(list(buffers), source.choice([1, min(2, len(buffers))]))
        if source.random() < 0.4:
            outputs.append(source.choice(given))
        present_if: dict[str, str] = {}
        if source.random() < 0.4:
            chosen = source.sample(outputs, source.choice([1, len(outputs)]))
            word = self.word(every, given, buffers, flow, kernels)
            for output in chosen:
                if source.random() < 0.2:
                    word = self.word(every, given, buffers, flow, kernels)
                present_if[output] = word
        self.absent[name] = frozenset(present_if)
        body = bp.ExecutionBlueprint(
            tuple(inputs), (), buffers, tuple(outputs), tuple(flow), present_if=present_if
        )
        module = bp.Module("m", (bp.Code("k.host"),))
        main = bp.print_blueprint(bp.GpuConfig((module,), tuple(kernels.values()), body)).encode()
        code = CodeObject("blueprint", self.blob(main), {"k.host": self.blob(HOST_FILE)})
        constant = self.blob(bytes([source.randrange(256)]) * source.choice(SIZES))
        self.functions.append(
            FunctionSpec(
                name,
                tuple(self.declared(n) for n in inputs),
                tuple(self.declared(n) for n in outputs),
                {n: (StaticItem("constant", constant),) for n in fixed},
                (code,),
                version=1,
            )
        )

    def word(
        self,
        every: Sequence[str],
        given: Sequence[str],
        buffers: dict[str, bp.Size],
        flow: list[bp.Action],
        kernels: dict[str, bp.Kernel],
    ) -> str:
        """Add a launch that writes a word; give the word's buffer."""
        source = self.source
        name = source.choice([*given, *buffers])
        if source.random() < 0.6:
            name = f"w{len(buffers)}"
            buffers[name] = bp.Absolute(4)
        access = (bp.Access.BOTH, bp.Access.READ, bp.Access.VALUE)
        kernels.setdefault("flag", bp.Kernel("flag", "m", "", access))
        salt = bp.Scalar(bp.ScalarType.U64, source.randrange(50))
        args = (bp.Ptr(name), bp.Ptr(source.choice(every)), salt)
        flow.append(bp.ExecKernel("flag", args, bp.LaunchConfig()))
        return name

    def processor_function(self) -> None:
        """Register a function that runs on a processor."""
        code = (CodeObject("processor", self.blob(b"code")),)
        inputs, outputs = (SetSpec("a"), SetSpec("b")), (SetSpec("c"),)
        self.functions.append(FunctionSpec("P", inputs, outputs, {}, code, version=1))

    def declared(self, name: str) -> SetSpec:
        dtype = self.source.choice([None, "uint8", "uint8", "int64"]) if self.typed else None
        return SetSpec(name, dtype, None if dtype is None else (-1,))

    def size(self, inputs: Sequence[str]) -> bp.Size:
        source = self.source
        roll = source.random()
        if roll < 0.4:
            return bp.Sizeof(source.choice(inputs))
        if roll < 0.5:
            word = bp.FromInput(source.choice(inputs), 0)
            return bp.Mul((bp.Absolute(8), bp.CeilDiv(word, bp.Absolute(2**60))))
        return bp.Absolute(source.choice(SIZES))

    def action(
        self, every: Sequence[str], buffers: Mapping[str, bp.Size], kernels: dict[str, bp.Kernel]
    ) -> bp.Action:
        source = self.source
        if source.random() < 0.1:
            return bp.ZeroBuffer(source.choice(list(buffers)))
        letters = source.choice(LETTERS)
        used = source.choices(every, k=len(letters))
        declared = source.random() < 0.8
        name = f"k{letters}"
        access = (*(WAYS[letter] for letter in letters), bp.Access.VALUE) if declared else ()
        kernels.setdefault(name, bp.Kernel(name, "m", "", access))
        salt = 77 if self.faults and source.random() < 0.1 else source.randrange(50)
        args = (*map(bp.Ptr, used), bp.Scalar(bp.ScalarType.U64, salt))
        return bp.ExecKernel(name, args, bp.LaunchConfig())

    def inner_composition(self) -> None:
        """Make a composition that others apply, perhaps one of GPU functions only."""
        made = self.composition("D", self.source.choice([1, 1, 2, 2]))
        if self.source.random() < 0.8:  # all inputs are used, so that it may be one function
            used = {b.source for a in made.applications for b in a.bindings}
            inputs = tuple(name for name in made.inputs if name in used)
            made = msgspec.structs.replace(made, inputs=inputs)
        self.absent["D"] = frozenset(
            returned.target
            for application in made.applications
            for returned in application.returns
            if returned.output in self.absent[application.function]
        )
        if self.absent["D"] and self.source.random() < 0.8:
            outputs = dict.fromkeys((*sorted(self.absent["D"])[:1], *made.outputs))
            made = msgspec.structs.replace(made, outputs=tuple(outputs))
        self.inner = made

    def composition(self, name: str, count: int) -> Composition:
        """Apply functions at random to the inputs and to each other's outputs."""
        source = self.source
        inputs = [f"x{i}" for i in range(source.choice([1, 1, 2, 3]))]
        known = list(inputs)
        applications = []
        for number in range(count):
            if self.inner is not None and source.random() < 0.5:
                applications.append(self.inner_application(self.inner, number, known))
                known += [returned.target for returned in applications[-1].returns]
                continue
            spec = source.choice(self.functions)
            likely = known[-3:] if source.random() < 0.8 else known
            given = [s.name for s in spec.inputs if s.name not in spec.static]
            bindings = [Binding(name, source.choice(likely)) for name in given]
            if source.random() < self.eaches:
                bindings = [Binding(name, source.choice(inputs[1:] or inputs)) for name in given]
                at = source.randrange(len(given))
                bindings[at] = Binding(given[at], source.choice(likely), Sharding.EACH)
            returns = [Return(f"s{number}_{n}", n) for n in spec.output_names]
            if len(returns) > 1 and source.random() < 0.3:
                returns.pop()
            known += [returned.target for returned in returns]
            repeat = self.repeat(given, spec)
            applications.append(
                Application(spec.name, tuple(bindings), tuple(returns), None, repeat)
            )
        made = known[len(inputs) :]
        outputs = source.sample(made, min(len(made), source.choice([1, 2])))
        source.shuffle(applications)
        return Composition(name, tuple(inputs), tuple(outputs), tuple(applications))

    def inner_application(
        self, inner: Composition, number: int, known: Sequence[str]
    ) -> Application:
        """Repeat the inner composition."""
        source = self.source
        bindings = [Binding(name, source.choice(known[-3:])) for name in inner.inputs]
        returns = [Return(f"s{number}_{n}", n) for n in inner.outputs]
        fed = source.sample(list(inner.inputs), source.choice([1, len(inner.inputs)]))
        feedback = tuple(Feed(name, source.choice(inner.outputs)) for name in fed)
        ends = [name for name in inner.outputs if name in self.absent["D"]] or inner.outputs
        until = source.choice(ends) if source.random() < 0.8 else None
        repeat = RepeatClause(source.choice([1, 2, 3, 7]), until, feedback)
        return Application("D", tuple(bindings), tuple(returns), None, repeat)

    def repeat(self, given: Sequence[str], spec: FunctionSpec) -> RepeatClause | None:
        source, outputs = self.source, spec.output_names
        ends = [name for name in outputs if name in self.absent[spec.name]]
        if source.random() > (0.7 if ends else 0.25):
            return None
        fed = source.sample(list(given), source.choice([1, len(given)]))
        feedback = tuple(Feed(name, source.choice(outputs)) for name in fed)
        until = source.choice(ends or outputs) if source.random() < 0.7 else None
        return RepeatClause(source.choice([1, 2, 3, 7]), until, feedback)

    def sets(self, composition: Composition) -> list[ItemSet | None]:
        source = self.source
        found: list[ItemSet | None] = []
        for name in composition.inputs:
            count = source.choice([0, 1, 1, 1, 1, 2, 3])
            if self.eaches > 0.5:
                count = 3 if name == "x0" else 1
            size = source.choice(SIZES)
            items = tuple(
                Item(f"{name}.{i}", source.randrange(4), bytes([source.randrange(256)]) * size)
                for i in range(count)
            )
            found.append(ItemSet(name, items) if items else None)
        return found

    def register(self, composition: Composition) -> None:
        records = [self.record(c) for c in (self.inner, composition) if c is not None]
        self.catalog.register(Batch(self.functions, records, [], self.blobs))

    def record(self, composition: Composition) -> CompositionRecord:
        declarations = tuple(
            Declaration(s.name, s.input_names, s.output_names) for s in self.functions
        )
        if self.inner is not None and composition is not self.inner:
            inner = self.inner
            declarations = (*declarations, Declaration("D", inner.inputs, inner.outputs))
        text = print_module(CompositionModule(declarations, (composition,)))
        uses = tuple(dict.fromkeys(a.function for a in composition.applications))
        name, inputs, outputs = composition.name, composition.inputs, composition.outputs
        return CompositionRecord(name, text, inputs, outputs, uses)

    def plan(self, fuse: bool) -> CompositionPlan:
        return Library(self.catalog, {}, Settings().caps, fuse).plan("C")


class Host:
    """Runs the instances of a walk on an engine, one after the other in random order."""

    def __init__(self) -> None:
        self.blobs: Mapping[Digest, bytes] = {}
        self.engine = SequentialEngine(HostDevice(KERNELS, POOL_BYTES), POOL_BYTES)
        self.domain = HeapDomain(1 << 26)
        self.fused_calls = 0
        self.conditional_calls = self.inner_calls = 0
        self.failed_calls = 0

    def invoke(
        self, plan: CompositionPlan, inputs: Sequence[ItemSet | None], source: random.Random
    ) -> tuple[ItemSet | None, ...] | DandelionError:
        walk = Walk(plan, Partitioning())
        waiting = walk.start(inputs)
        runs: list[Run] = []
        while True:
            for instruction in waiting:
                if isinstance(instruction, Complete):
                    return instruction.outputs
                if isinstance(instruction, Fail):
                    return instruction.error
                if isinstance(instruction, Run):
                    runs.append(instruction)
            run = runs.pop(source.randrange(len(runs)))
            try:
                outputs = self.run(run)
            except DandelionError as error:
                self.failed_calls += isinstance(run.function, FusedFunction)
                waiting = walk.failed(run.instance, error)
            else:
                waiting = walk.finished(run.instance, outputs)

    def run(self, run: Run) -> InstanceSets:
        spec = run.function
        own: dict[Digest, bytes] = {}
        if isinstance(spec, FusedFunction):
            self.fused_calls += 1
            self.conditional_calls += b"RepeatWhile" in spec.blueprint
            self.inner_calls += re.search(rb"f\d_f\d_", spec.blueprint) is not None
            own, spec = {spec.code[0].main: spec.blueprint}, spec.plain()
        if spec.code[0].format == "processor":
            items = [item for item_set in run.inputs if item_set for item in item_set.items]
            data = b"".join(reversed([bytes(item.data) for item in items]))[:256]
            return (ItemSet("c", (Item("made", len(items), data),)),)
        blobs = {**self.blobs, **own}
        code = spec.code[0]
        static = {
            declared.name: ItemSet(
                declared.name,
                tuple(Item(i.name, 0, blobs[i.digest]) for i in spec.static[declared.name]),
            )
            for declared in spec.inputs
            if declared.name in spec.static
        }
        files = {name: blobs[digest] for name, digest in code.files.items()}
        function = Function(spec, code, blobs[code.main], files, static)
        inputs = check_inputs(function, function.with_static(run.inputs))
        call = Call(1, function, inputs, self.domain, 2**62, 60.0)
        try:
            outputs = self.engine.run(call)
        except DandelionError:
            if self.engine.lost:
                self.engine.close()
                self.engine = SequentialEngine(HostDevice(KERNELS, POOL_BYTES), POOL_BYTES)
            raise
        self.engine.clean_up()
        return tuple(
            None
            if s is None
            else ItemSet(
                s.name, tuple(Item(i.name, i.key, bytes(i.data), i.dtype, i.shape) for i in s.items)
            )
            for s in outputs
        )


def causes(error: BaseException | None) -> Iterator[str]:
    """Describe an error, without which of several instances failed first."""
    while error is not None:
        if isinstance(error, ApplicationFailed):
            yield f"{error.composition}.{error.application}"
        else:
            yield f"{type(error).__name__}: {error}"
        error = error.__cause__


@pytest.mark.parametrize("kind", ["plain", "typed", "faults"])
def test_running_functions_as_one_changes_nothing(kind: str) -> None:
    expected, found = Host(), Host()
    for seed in range(300):
        source = random.Random(f"{kind} {seed}")
        world = World(source, kind == "typed", kind == "faults", source.choice([0.0, 0.2, 0.9]))
        for i in range(source.choice([2, 3, 4])):
            world.function(f"F{i}")
        if source.random() < 0.5:
            world.processor_function()
        if source.random() < 0.4:
            world.inner_composition()
        composition = world.composition("C", source.choice([2, 3, 5, 7]))
        world.register(composition)
        apart, joined = world.plan(fuse=False), world.plan(fuse=True)
        for again in range(3):
            inputs = world.sets(composition)
            expected.blobs = found.blobs = world.blobs
            one = expected.invoke(apart, inputs, random.Random(again))
            other = found.invoke(joined, inputs, random.Random(again))
            if isinstance(one, DandelionError):
                assert isinstance(other, DandelionError), (seed, one)
                if world.eaches:
                    continue  # one may fail in its second function before another in its first
                orders = (expected.invoke(apart, inputs, random.Random(i)) for i in range(40))
                possible = (tuple(causes(e)) for e in orders if isinstance(e, DandelionError))
                assert tuple(causes(other)) in possible, seed
            else:
                assert one == other, seed
    assert not expected.fused_calls
    assert found.fused_calls > 100, "the test is about them"
    assert found.conditional_calls > 20, "and about loops that end by a word"
    assert found.inner_calls > 5, "and about loops over compositions"
    assert kind != "faults" or found.failed_calls > 10
    expected.engine.close()
    found.engine.close()


assert pack(bp.Scalar(bp.ScalarType.U64, 77), 77) == FAULT
