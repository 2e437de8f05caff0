"""One blueprint made of several: the launches of all parts, in order.

Buffers, kernels, modules and files of a part get names of their own. An input of a part is one of
three things:

* a buffer of the whole, if the part only reads it, or if no other part uses it;
* a copy of such a buffer, if the part changes it, or returns it, and others use it too;
* a static set of the part, which is an input of the whole.

So each part finds what it would find if it ran alone: its inputs as they were given, and zeros in
its other buffers.

A part that is repeated is a loop. Each iteration begins with fresh copies of the inputs that it
changes, and with zeros; it ends with copies of the outputs that are inputs of the next one. Whether
there is a next one may depend on the word that says whether an output is present.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from dandelion.blueprint import (
    Absolute,
    Action,
    Add,
    Argument,
    ByBatch,
    Candidates,
    CeilDiv,
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
    Repeat,
    RepeatWhile,
    Scalar,
    Size,
    Sizeof,
    ZeroBuffer,
)
from dandelion.blueprint.first_uses import is_written_first
from dandelion.blueprint.operation_parts import mapped_operation
from dandelion.blueprint.uses import symbol_of, written_buffers


@dataclass(frozen=True, slots=True)
class BlueprintPart:
    """A blueprint within the whole.

    Attributes:
        config: with what is known of its kernels' parameters.
        bound: for each of its inputs that is not static: which value it takes. A value is an input
            of the whole, or an output of an earlier part.
        outputs: the values that it makes, by the name of its output.
        times: how often it is run.
        fed: for inputs that later iterations take from the one before: from which output.
        until: the output whose absence ends the repetition; empty if only the number does.
    """

    config: GpuConfig
    bound: Mapping[str, str]
    outputs: Mapping[str, str]
    times: int = 1
    fed: Mapping[str, str] = field(default_factory=dict)
    until: str = ""


@dataclass(slots=True)
class _Whole:
    buffers: dict[str, Size] = field(default_factory=dict)
    static: dict[str, bool] = field(default_factory=dict)  # whether it is a weight
    kernels: list[Kernel] = field(default_factory=list)
    modules: list[Module] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)  # the buffer of each value
    words: dict[str, str] = field(default_factory=dict)  # of values that may be absent


def own_name(part: int, name: str, kind: str = "") -> str:
    """Name something of a part within the whole; all kinds begin differently."""
    return f"{kind}f{part}_{name}"


def fused_blueprint(
    parts: Sequence[BlueprintPart], inputs: Sequence[str], outputs: Mapping[str, str]
) -> GpuConfig:
    """Make one blueprint.

    Args:
        parts: in an order in which they can run.
        inputs: the values that are given, in order.
        outputs: names of the whole's outputs, by value.
    """
    whole = _Whole(places={value: value for value in inputs})
    uses = Counter(value for part in parts for value in part.bound.values())
    uses.update(outputs.keys())
    for number, part in enumerate(parts):
        _add(whole, number, part, uses)
    final = {whole.places[value]: name for value, name in outputs.items()}

    def renamed(name: str) -> str:
        return final.get(name, name)

    body = ExecutionBlueprint(
        (
            *map(renamed, inputs),
            *(name for name, is_weight in whole.static.items() if not is_weight),
        ),
        tuple(name for name, is_weight in whole.static.items() if is_weight),
        {renamed(n): _size(s, renamed, renamed) for n, s in whole.buffers.items()},
        tuple(outputs.values()),
        tuple(_action(action, renamed, renamed, str) for action in whole.actions),
        present_if={
            name: renamed(whole.words[value])
            for value, name in outputs.items()
            if value in whole.words
        },
    )
    return GpuConfig(tuple(whole.modules), tuple(whole.kernels), body)


def _add(whole: _Whole, number: int, part: BlueprintPart, uses: Mapping[str, int]) -> None:
    """Add the buffers, code and actions of a part."""

    def of_part(name: str) -> str:
        return own_name(number, name)

    body = _without_batch(part.config.blueprint)
    names = {name: of_part(name) for name in body.buffers}
    integers: dict[str, str] = {}
    before: list[Action] = []
    begin: list[Action] = []
    changed = written_buffers(part.config)
    for name in (*body.inputs, *body.weights):
        given, is_own = _given(whole, number, name, part, uses)
        names[name] = integers[name] = given
        again = part.times > 1 and name not in part.fed  # each iteration takes what was given
        if (name in changed and (again or not is_own)) or (name in part.fed and not is_own):
            names[name] = own_name(number, name, "copy_")
            whole.buffers[names[name]] = Sizeof(given)
            (begin if again else before).append(CopyBuffer(names[name], given))
    for name, size in body.buffers.items():
        whole.buffers[names[name]] = _size(size, names.__getitem__, integers.__getitem__)
    whole.modules += [_module(module, of_part) for module in part.config.modules]
    whole.kernels += [
        Kernel(of_part(k.name), of_part(k.module), symbol_of(k), k.access)
        for k in part.config.kernels
    ]
    actions = [
        _action(action, names.__getitem__, integers.__getitem__, of_part)
        for action in body.control_flow
    ]
    whole.actions += before
    if part.times == 1:
        whole.actions += [*begin, *actions]
    else:
        stale = [n for n in body.buffers if not is_written_first(n, part.config)]
        begin += [ZeroBuffer(names[name]) for name in stale]
        pairs = [(names[name], names[output]) for name, output in part.fed.items()]
        end = [CopyBuffer(state, made) for state, made in pairs if state != made]
        word = body.present_if.get(part.until)
        whole.actions.append(
            Repeat(Absolute(part.times), (*begin, *actions, *end))
            if word is None
            else RepeatWhile(Absolute(part.times), names[word], (*begin, *actions, *end))
        )
    for name, value in part.outputs.items():
        whole.places[value] = names[name]
        if name in body.present_if:
            whole.words[value] = names[body.present_if[name]]


def _given(
    whole: _Whole, number: int, name: str, part: BlueprintPart, uses: Mapping[str, int]
) -> tuple[str, bool]:
    """Find the buffer that an input of a part is given in, and whether no other part uses it."""
    value = part.bound.get(name)
    if value is not None:
        return whole.places[value], uses[value] == 1
    own = own_name(number, name)
    whole.static[own] = name in part.config.blueprint.weights
    return own, True


def _module(module: Module, renamed: Callable[[str], str]) -> Module:
    code = tuple(msgspec.structs.replace(c, path=renamed(c.path)) for c in module.code)
    return Module(renamed(module.name), code)


def _without_batch(body: ExecutionBlueprint) -> ExecutionBlueprint:
    """Write the factor of `ByBatch` out: the whole has no batch."""

    def size(given: Size) -> Size:
        match given:
            case ByBatch(value, even):
                factor = CeilDiv(body.batch, Absolute(2)) if even else body.batch
                return Mul((Absolute(value), factor))
            case Add(parts):
                return Add(tuple(map(size, parts)))
            case Mul(parts):
                return Mul(tuple(map(size, parts)))
            case CeilDiv(dividend, divisor):
                return CeilDiv(size(dividend), size(divisor))
        return given

    flow = tuple(_mapped(action, size) for action in body.control_flow)
    buffers = {name: size(given) for name, given in body.buffers.items()}
    return msgspec.structs.replace(body, buffers=buffers, control_flow=flow, batch=Absolute(1))


def _mapped(action: Action, size: Callable[[Size], Size]) -> Action:
    """Replace the sizes of an action."""
    if isinstance(action, RepeatWhile):
        inner = tuple(_mapped(a, size) for a in action.actions)
        return RepeatWhile(size(action.times), action.word, inner)
    if isinstance(action, Repeat):
        return Repeat(size(action.times), tuple(_mapped(a, size) for a in action.actions))
    if isinstance(action, Candidates):
        return Candidates(
            tuple(tuple(_mapped(a, size) for a in one) for one in action.alternatives)
        )
    if isinstance(action, Gemm | Conv2d):
        return mapped_operation(action, str, size)
    if not isinstance(action, ExecKernel):
        return action

    def argument(given: Argument) -> Argument:
        if isinstance(given, Scalar) and not isinstance(given.value, int | float):
            return Scalar(given.dtype, size(given.value))
        return Ptr(given.buffer, size(given.offset)) if isinstance(given, Ptr) else given

    launch = action.launch
    sizes = {name: size(getattr(launch, name)) for name in launch.__struct_fields__}
    return ExecKernel(action.kernel, tuple(map(argument, action.args)), LaunchConfig(**sizes))


def _action(
    action: Action,
    buffer: Callable[[str], str],
    integer: Callable[[str], str],
    kernel: Callable[[str], str],
) -> Action:
    """Rename what an action uses.

    Args:
        action: which.
        buffer: the new name of a buffer.
        integer: the new name of an input that an integer is read from.
        kernel: the new name of a kernel.
    """
    match action:
        case CopyBuffer(target, source):
            return CopyBuffer(buffer(target), buffer(source))
        case ZeroBuffer(name):
            return ZeroBuffer(buffer(name))
        case Repeat(times, actions):
            inner = tuple(_action(a, buffer, integer, kernel) for a in actions)
            return Repeat(_size(times, buffer, integer), inner)
        case Candidates(alternatives):
            return Candidates(
                tuple(
                    tuple(_action(a, buffer, integer, kernel) for a in one) for one in alternatives
                )
            )
        case RepeatWhile(times, word, actions):
            inner = tuple(_action(a, buffer, integer, kernel) for a in actions)
            return RepeatWhile(_size(times, buffer, integer), buffer(word), inner)
        case Gemm() | Conv2d():
            return mapped_operation(action, buffer, lambda size: _size(size, buffer, integer))
    assert isinstance(action, ExecKernel), "functions with choices are not fused"
    args = tuple(Ptr(buffer(a.buffer), a.offset) if isinstance(a, Ptr) else a for a in action.args)
    renamed = ExecKernel(kernel(action.kernel), args, action.launch)
    return _mapped(renamed, lambda size: _size(size, buffer, integer))


def _size(size: Size, buffer: Callable[[str], str], integer: Callable[[str], str]) -> Size:
    match size:
        case Sizeof(name):
            return Sizeof(buffer(name))
        case Elements(name, dtype):
            return Elements(buffer(name), dtype)
        case FromInput(name, index):
            return FromInput(integer(name), index)
        case Add(parts):
            return Add(tuple(_size(part, buffer, integer) for part in parts))
        case Mul(parts):
            return Mul(tuple(_size(part, buffer, integer) for part in parts))
        case CeilDiv(dividend, divisor):
            return CeilDiv(_size(dividend, buffer, integer), _size(divisor, buffer, integer))
    return size
