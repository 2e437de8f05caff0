"""A GPU function as an engine or a planner uses it: its checked blueprint beside its sets."""

from __future__ import annotations

import functools
import struct
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dandelion.arrays import text_of
from dandelion.blueprint import FromInput, GpuConfig, parse_blueprint
from dandelion.blueprint.uses import (
    integers_open,
    integers_planned,
    integers_read,
    with_access,
    written_buffers,
)
from dandelion.data import Bytes, Item
from dandelion.driver import InstanceSets
from dandelion.errors import InternalError, InvalidBlueprint, InvalidInput, Problem, nearest
from dandelion.function import Digest, Function, FunctionSpec

from .draft_records import Choices
from .layout import Slot, aligned
from .open_arguments import OpenArgument, Values, bits
from .plan import Plan
from .plan_cache import PlanCache

Signature: TypeAlias = tuple[int | None, ...]
"""What the calls of a function have in common that are alike; see `Program.signature`."""
ConstantsKey: TypeAlias = tuple[str, tuple[tuple[str, Digest], ...]]
"""The tenant that shares its constants with no other, or an empty text; their digests by name."""

_INTEGER = struct.Struct("<q")
_INTEGERS = frozenset({"int64", "uint64", "uint8"})  # bytes may be anything
_KEPT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Program:
    """What does not change between the calls of a function.

    Attributes:
        function: its name.
        identity: its digest.
        config: its blueprint.
        inputs: for each buffer that is copied in, the position of its set.
        types: the declared type of each input set, for errors.
        naming: position of the set whose item names the outputs, or -1.
        outputs: names of the output sets, in their order.
        integers: those that plans depend on.
        reads: the same: position of the set, offset in bytes.
        open_reads: likewise of the integers that only go to kernels by value.
        varying: positions of the sets that are not static.
        constants: digests of the static sets that no kernel writes to, by the buffer's name.
        constants_key: by which equal constants are known on a device.
    """

    function: str
    identity: str
    config: GpuConfig
    inputs: tuple[tuple[str, int], ...]
    types: Mapping[str, str]
    naming: int
    outputs: tuple[str, ...]
    integers: tuple[FromInput, ...]
    reads: tuple[tuple[int, int], ...]
    open_reads: tuple[tuple[int, int], ...]
    varying: tuple[int, ...]
    constants: Mapping[str, Digest]
    constants_key: ConstantsKey

    def signature(self, inputs: InstanceSets) -> Signature:
        """Give what calls have in common that are alike.

        These are sizes, integers that sizes read, and how many bits the other integers have that
        the blueprint reads: calls with integers of another size may take another time. Static
        sets never change, so their sizes say nothing.

        Raises:
            InvalidInput: a set is missing or has more than one item.
        """
        found: list[int | None] = []
        for position in self.varying:
            item_set = inputs[position]
            if item_set is None or len(item_set.items) != 1:
                self.items(inputs)  # says which, and how
            else:
                found.append(item_set.items[0].size_bytes)
        for position, offset in self.reads:
            found.append(self._integer(inputs, position, offset))
        for position, offset in self.open_reads:
            number = self._integer(inputs, position, offset)
            found.append(None if number is None else bits(number))
        return tuple(found)

    def _integer(self, inputs: InstanceSets, position: int, offset: int) -> int | None:
        """Read an integer of an input; None if it is outside."""
        item_set = inputs[position]
        if item_set is None or len(item_set.items) != 1:
            self.items(inputs)  # says which, and how
            raise InternalError(f"{self.function}: no integer can be read")
        item = item_set.items[0]
        if offset + _INTEGER.size > item.size_bytes:
            return None
        value: int = _INTEGER.unpack_from(item.data, offset)[0]
        return value

    def values(self, arguments: Sequence[OpenArgument], inputs: InstanceSets) -> Values:
        """Give the values of open arguments in a call, whose sets `signature` has accepted.

        Raises:
            InvalidInput: one of them does not fit its type.
        """
        if not arguments:
            return ()
        positions = dict(self.inputs)

        def read(name: str, index: int) -> int:
            value = self._integer(inputs, positions[name], index * _INTEGER.size)
            if value is None:
                raise InternalError(f"{self.function}: an integer is outside, which was planned")
            return value

        return tuple([argument.packed(read) for argument in arguments])

    def items(self, inputs: InstanceSets) -> dict[str, Item]:
        """Give the item of each input buffer.

        Raises:
            InvalidInput: a set is missing or has more than one item.
        """
        found = {}
        for name, position in self.inputs:
            item_set = inputs[position]
            if item_set is None:
                message = "it is absent, and a GPU function needs every set"
                raise InvalidInput(f"sets.{name}", message, f"give {self.types[name]}")
            if len(item_set.items) != 1:
                message = f"it has {len(item_set.items)} items; a buffer is exactly one"
                raise InvalidInput(f"sets.{name}", message, "apply the function to each")
            found[name] = item_set.items[0]
        return found

    def output_bytes(self, plan: Plan) -> int:
        """Size of the context that the outputs of a call need, in bytes."""
        return sum(aligned(plan.outputs[name].size_bytes) for name in self.outputs)

    def name_of_outputs(self, inputs: InstanceSets) -> tuple[str | None, int]:
        """Name and key that output items take over; the name is None if there is no input."""
        item_set = inputs[self.naming] if self.naming >= 0 else None
        if item_set is None:
            return None, 0
        return item_set.items[0].name, item_set.items[0].key


def make_program(function: Function) -> Program:
    """Read, check and join a function's blueprint with its declaration.

    Raises:
        InvalidBlueprint: with all problems at once.
    """
    main, files = bytes(function.main), _frozen(function.files)
    small = len(main) + sum(len(data) for _, data in files) <= _KEPT_BYTES
    code = _code(main, files) if small else _code.__wrapped__(main, files)
    config = code.config
    problems = _mismatches(function.spec, config)
    if problems:
        raise InvalidBlueprint(tuple(problems))
    spec = function.spec
    constants = _constants(spec, code)
    names = (*config.blueprint.inputs, *config.blueprint.weights)
    position = {name: i for i, name in enumerate(spec.input_names)}
    naming = next((position[n] for n in config.blueprint.inputs if n not in spec.static), -1)
    return Program(
        spec.name,
        function.identity,
        config,
        tuple((name, position[name]) for name in names),
        {declared.name: text_of(declared.dtype, declared.shape) for declared in spec.inputs},
        naming,
        spec.output_names,
        code.integers,
        tuple((position[r.bufname], r.idx * 8) for r in code.integers),
        tuple((position[r.bufname], r.idx * 8) for r in code.open_integers),
        tuple(position[name] for name in names if name not in spec.static),
        constants,
        (function.scope, tuple(constants.items())),
    )


@dataclass(frozen=True, slots=True)
class _Code:
    """What functions with the same code have in common, whatever their constants are.

    Attributes:
        config: the blueprint, checked, with all that is known of its kernels' parameters.
        integers: what plans depend on.
        open_integers: other ones that it reads.
        written: buffers that a kernel may write to.
    """

    config: GpuConfig
    integers: tuple[FromInput, ...]
    open_integers: tuple[FromInput, ...]
    written: frozenset[str]


@functools.lru_cache(maxsize=8)  # tenants have constants of their own, and often the same model
def _code(main: bytes, files: tuple[tuple[str, bytes], ...]) -> _Code:
    named = dict(files)
    config = with_access(parse_blueprint(main, named), named)
    written = frozenset(written_buffers(config))
    return _Code(config, integers_planned(config), integers_open(config), written)


def _frozen(files: Mapping[str, Bytes]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, bytes(data)) for name, data in files.items())


def _constants(spec: FunctionSpec, code: _Code) -> dict[str, Digest]:
    """Find the static sets that can be kept on a device, open for reading only."""
    body = code.config.blueprint
    given = {*body.inputs, *body.weights} - code.written
    return {
        name: items[0].digest
        for name, items in sorted(spec.static.items())
        if len(items) == 1 and name in given
    }


def _mismatches(spec: FunctionSpec, config: GpuConfig) -> list[Problem]:
    """Compare the declared sets with the blueprint's buffers."""
    body = config.blueprint
    needed = dict.fromkeys((*body.inputs, *body.weights))
    given = dict.fromkeys(spec.input_names)
    problems = []
    for name in needed:
        if name not in given:
            close = nearest(name, given) or ""
            message = f"the function has no input set '{name}'"
            problems.append(Problem("unknown-set", message, "blueprint.inputs", nearest=close))
    for name in given:
        if name not in needed:
            close = nearest(name, needed) or ""
            message = f"the blueprint has no input '{name}'"
            problems.append(Problem("unknown-input", message, f"inputs.{name}", nearest=close))
    for name in spec.output_names:
        if name not in body.outputs:
            close = nearest(name, body.outputs) or ""
            message = f"the blueprint has no output '{name}'"
            problems.append(Problem("unknown-output", message, f"outputs.{name}", nearest=close))
    declared = {s.name: s for s in spec.inputs}
    for name in dict.fromkeys(integer.bufname for integer in integers_read(config)):
        dtype = declared[name].dtype if name in declared else None
        if dtype is not None and dtype not in _INTEGERS:
            message = f"the blueprint reads 64-bit integers in it, and it is declared as {dtype}"
            expected = "int64"
            problems.append(Problem("dtype", message, f"inputs.{name}", expected=expected))
    if spec.batching is not None and body.present_if:
        message = "outputs that may be absent cannot be divided among the calls of a batch"
        problems.append(Problem("batching", message, "blueprint.present_if"))
    return problems


class ProgramCache:
    """Programs by the function's identity; the least recently used go first."""

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._programs: OrderedDict[str, Program] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, function: Function) -> Program:
        """Give the program of a function; see `make_program`."""
        with self._lock:
            found = self._programs.get(function.identity)
            if found is not None:
                self._programs.move_to_end(function.identity)
                return found
        made = make_program(function)
        with self._lock:
            self._programs[function.identity] = made
            if len(self._programs) > self._capacity:
                self._programs.popitem(last=False)
        return made

    def forget(self, identity: str) -> None:
        """Drop a program."""
        with self._lock:
            self._programs.pop(identity, None)


def plan_call(
    cache: PlanCache,
    program: Program,
    items: Mapping[str, Item],
    resident: Mapping[str, Slot] | None = None,
    choices: Choices | None = None,
) -> Plan:
    """Give the plan for these items; see `dandelion.backends.gpu.plan.plan`."""

    def read_integer(name: str, index: int) -> int:
        value: int = _INTEGER.unpack_from(items[name].data, index * 8)[0]
        return value

    sizes = {name: item.size_bytes for name, item in items.items()}
    return cache.get(
        program.identity, program.config, program.integers, sizes, read_integer, resident, choices
    )
