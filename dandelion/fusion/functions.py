"""The functions that groups become, and the composition that applies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from dandelion.blueprint import (
    Action,
    Choose,
    GpuConfig,
    RepeatWhile,
    check_blueprint,
    print_blueprint,
)
from dandelion.blueprint.launch_counts import launches
from dandelion.blueprint.records import MAX_LAUNCHES, contains
from dandelion.blueprint.uses import integers_read
from dandelion.data import SetSpec
from dandelion.dataflow.graph import (
    Application,
    Binding,
    Composition,
    Return,
    Sharding,
    application_ids,
)
from dandelion.function import (
    CodeObject,
    Digest,
    FunctionSpec,
    FusedFunction,
    Limits,
    digest_of,
)
from dandelion.fusion.blueprints import BlueprintPart, fused_blueprint, own_name
from dandelion.fusion.groups import Candidate, Groups, has_plain_loop, is_groupable, naming
from dandelion.fusion.wholes import Found, Whole, as_function

FORMAT = "blueprint"
"""Format of the code objects that can be run together."""
LAUNCHES = 4096
"""Groups with more launches, loops unrolled, are run apart: others could not use the engine between
them. Loops that end by a condition count once. Most of them end much earlier than they could, and
run apart each iteration would be a call that copies all sets that are fed back. With these loops as
long as they may be, a group has at most as many as a blueprint, `MAX_LAUNCHES`."""
_NO_LIMITS = Limits()
_NAMED = 4  # of a group's members, at most


@dataclass(frozen=True, slots=True)
class Loaded:
    """The code of a GPU function.

    Attributes:
        code: its code object.
        config: its blueprint, checked, with what is known of its kernels' parameters.
    """

    code: CodeObject
    config: GpuConfig


@dataclass(frozen=True, slots=True)
class Fused:
    """A composition whose groups are applications of one function each.

    Attributes:
        composition: with these applications in place of their members.
        ids: names of its applications.
        functions: the functions of groups, by name.
        parts: for each application the members of its group, as a composition and with the names
            of their applications; None if it is none.
    """

    composition: Composition
    ids: tuple[str, ...]
    functions: Mapping[str, FusedFunction]
    parts: tuple[tuple[Composition, tuple[str, ...]] | None, ...]


def fused(
    composition: Composition,
    find: Callable[[str], Found],
    load: Callable[[FunctionSpec], Loaded | None],
) -> Fused | None:
    """Join GPU functions of a composition; None if there is nothing to join.

    Args:
        composition: valid.
        find: gives the function of a name, or that of a composition which is one; else None.
        load: gives the code of a function, None if it is no GPU function.
    """
    ids = application_ids(composition)
    loaded: dict[int, Loaded] = {}
    candidates: dict[int, Candidate] = {}
    for index, written in enumerate(composition.applications):
        found, application = find(written.function), written
        if isinstance(found, Whole):
            if written.repeat is None:
                continue
            application = as_function(written, found)
            found = found.function
        if found is None or not (_is_plain(found) and is_groupable(application, found)):
            continue
        code = load(found)
        candidate = None
        if code is not None:
            candidate = _candidate(index, (written, application), found, code.config)
        if code is not None and candidate is not None:
            loaded[index], candidates[index] = code, candidate
    if not candidates:
        return None
    groups = Groups(composition, candidates)
    made = [
        joined
        for members in groups.find()
        if (joined := _joined(composition.name, members, groups.outputs(members), loaded, ids))
    ]
    if not made:
        return None
    return _applied(composition, ids, made)


def _is_plain(spec: FunctionSpec) -> bool:
    """Tell whether nothing in a function's record needs calls of its own."""
    limits = spec.limits
    return (
        spec.kind == "compute"
        and not spec.cache
        and spec.batching is None
        and limits.concurrency >= _NO_LIMITS.concurrency
        and limits.queue_length >= _NO_LIMITS.queue_length
        and all(len(items) == 1 for items in spec.static.values())
    )


def _candidate(
    index: int, written: tuple[Application, Application], spec: FunctionSpec, config: GpuConfig
) -> Candidate | None:
    body = config.blueprint
    given = (name for name in body.inputs if name not in spec.static)
    name = next(given, None)
    if name is None or set(spec.input_names) != {*body.inputs, *body.weights}:
        return None
    if contains(body.control_flow, Choose):  # behind what another function made are no zeros
        return None
    read = frozenset(size.bufname for size in integers_read(config))
    candidate = Candidate(index, *written, spec, name, read, body.present_if)
    returned = {name for name in spec.output_names if name in spec.input_names}
    return candidate if has_plain_loop(candidate, returned) else None


@dataclass(frozen=True, slots=True)
class _Joined:
    """A group as a function, and how it is applied.

    Attributes:
        name: of the function in the composition.
        function: the function.
        application: its application.
        parts: the members as a composition.
        ids: names of the members' applications.
        indices: of the members' applications.
    """

    name: str
    function: FusedFunction
    application: Application
    parts: Composition
    ids: tuple[str, ...]
    indices: tuple[int, ...]


def _joined(
    name: str,
    members: Sequence[Candidate],
    outputs: Sequence[str],
    loaded: Mapping[int, Loaded],
    ids: Sequence[str],
) -> _Joined | None:
    """Make the function of a group; None if its blueprint would be too large.

    Args:
        name: of the composition.
        members: of the group.
        outputs: the sets that it makes for others.
        loaded: code of functions, by the index of the application.
        ids: names of all applications.
    """
    made = {name: member for member in members for name in member.makes}
    values: dict[tuple[str, Sharding, SetSpec], str] = {}
    bound = [_bound(member, made, values) for member in members]
    first = naming(outputs[0], made)
    inputs = sorted(values.items(), key=lambda pair: pair[0][:2] != first)
    names = _output_names(outputs, made)
    parts = [
        BlueprintPart(
            loaded[m.index].config,
            sources,
            {output: _value(name) for name, output in m.makes.items()},
            m.times,
            m.fed,
            m.until,
        )
        for m, sources in zip(members, bound, strict=True)
    ]
    whole = {_value(name): output for name, output in names.items()}
    config = fused_blueprint(parts, [value for _, value in inputs], whole)
    if check_blueprint(config) or _is_long(config.blueprint.control_flow):
        return None
    specs = [spec for (_, _, spec), _ in inputs]
    function = _function(members, config, specs, names, loaded)
    bindings = [
        Binding(parameter, source, sharding)
        for parameter, ((source, sharding, _), _) in zip(
            function.input_names[: len(inputs)], inputs, strict=True
        )
    ]
    key = f"{function.name}@{function.version}"
    returns = tuple(Return(name, output) for name, output in names.items())
    return _Joined(
        key,
        function,
        Application(key, tuple(bindings), returns),
        Composition(
            name,
            tuple(dict.fromkeys(source for (source, _, _), _ in inputs)),
            tuple(outputs),
            tuple(member.written for member in members),
        ),
        tuple(ids[member.index] for member in members),
        tuple(member.index for member in members),
    )


def _is_long(flow: tuple[Action, ...]) -> bool:
    """Tell whether a group must be run apart, see `LAUNCHES`."""
    return launches(flow, once=RepeatWhile) > LAUNCHES or launches(flow) > MAX_LAUNCHES


def _value(name: str) -> str:
    """Name the value of a set that is made within the group, unlike any buffer."""
    return f"set {name}"


def _bound(
    member: Candidate,
    made: Mapping[str, Candidate],
    values: dict[tuple[str, Sharding, SetSpec], str],
) -> dict[str, str]:
    """Find the value of each parameter; values from outside of the group are noted.

    A set that is declared differently by several members is one value for each declaration.
    """
    found = {}
    for declared in member.spec.inputs:
        binding = member.bindings.get(declared.name)
        if declared.name in member.spec.static or binding is None:
            continue
        if binding.source in made:
            found[declared.name] = _value(binding.source)
            continue
        key = (binding.source, binding.sharding, SetSpec("", declared.dtype, declared.shape))
        found[declared.name] = values.setdefault(key, f"i{len(values)}")
    return found


def _output_names(outputs: Sequence[str], made: Mapping[str, Candidate]) -> dict[str, str]:
    """Name the outputs of a group as their members do; equal names get a number."""
    names: dict[str, str] = {}
    for name in outputs:
        wanted = plain = made[name].makes[name]
        number = 2
        while wanted in names.values():
            wanted, number = f"{plain}_{number}", number + 1
        names[name] = wanted
    return names


def _function(
    members: Sequence[Candidate],
    config: GpuConfig,
    inputs: Sequence[SetSpec],
    outputs: Mapping[str, str],
    loaded: Mapping[int, Loaded],
) -> FusedFunction:
    """Make the record of the function of a group."""
    given = config.blueprint.inputs[: len(inputs)]
    sets = [SetSpec(n, spec.dtype, spec.shape) for n, spec in zip(given, inputs, strict=True)]
    static = {}
    files: dict[str, Digest] = {}
    for number, member in enumerate(members):
        for declared in member.spec.inputs:
            if declared.name in member.spec.static:
                own = own_name(number, declared.name)
                sets.append(SetSpec(own, declared.dtype, declared.shape))
                static[own] = member.spec.static[declared.name]
        code = loaded[member.index].code
        files.update({own_name(number, path): digest for path, digest in code.files.items()})
    made = {
        (name, output): next(s for s in member.spec.outputs if s.name == output)
        for member in members
        for name, output in member.makes.items()
    }
    returned = tuple(
        SetSpec(name, spec.dtype, spec.shape)
        for target, name in outputs.items()
        for (made_name, _), spec in made.items()
        if made_name == target
    )
    main = print_blueprint(config).encode()
    digest = digest_of(main)
    parts = tuple(dict.fromkeys(part for m in members for part in _parts(m.spec)))
    return FusedFunction(
        name=joined_name([member.spec.name for member in members]),
        inputs=tuple(sets),
        outputs=returned,
        static=static,
        code=(CodeObject(FORMAT, digest, files),),
        limits=_limits([(member.spec.limits, member.times) for member in members]),
        version=_version(digest, parts, static),
        parts=parts,
        blueprint=main,
    )


def _parts(spec: FunctionSpec) -> tuple[tuple[str, int], ...]:
    return spec.parts if isinstance(spec, FusedFunction) else ((spec.name, spec.version),)


def joined_name(names: Sequence[str]) -> str:
    """Name a group after its members."""
    if len(names) <= _NAMED:
        return "+".join(names)
    return f"{names[0]}+({len(names) - 2} more)+{names[-1]}"


def _version(digest: Digest, *rest: object) -> int:
    """Tell functions with equal names apart, by content."""
    return int(digest_of(msgspec.msgpack.encode((digest, rest), order="sorted"))[:13], 16)


def _limits(limits: Sequence[tuple[Limits, int]]) -> Limits:
    """Add limits up, each as often as the function runs."""
    return Limits(
        memory_bytes=max(one.memory_bytes for one, _ in limits),
        wall_s=sum(times * one.wall_s for one, times in limits),
        cpu_s=sum(times * one.cpu_s for one, times in limits),
        output_bytes=sum(one.output_bytes for one, _ in limits),
        output_items=sum(one.output_items for one, _ in limits),
    )


def _applied(composition: Composition, ids: Sequence[str], made: Sequence[_Joined]) -> Fused:
    """Put the applications of groups in the place of their first members."""
    heads = {joined.indices[0]: joined for joined in made}
    inside = {index for joined in made for index in joined.indices}
    applications: list[Application] = []
    names: list[str] = []
    parts: list[tuple[Composition, tuple[str, ...]] | None] = []
    for index, application in enumerate(composition.applications):
        joined = heads.get(index)
        if joined is not None:
            applications.append(joined.application)
            names.append(joined_name(joined.ids))
            parts.append((joined.parts, joined.ids))
        elif index not in inside:
            applications.append(application)
            names.append(ids[index])
            parts.append(None)
    return Fused(
        msgspec.structs.replace(composition, applications=tuple(applications)),
        tuple(names),
        {joined.name: joined.function for joined in made},
        tuple(parts),
    )
