"""The null backend: sets pass by reference, options make items or failures."""

from __future__ import annotations

import time

import pytest

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.driver import Call, Hosting, InstanceSets, load_driver
from dandelion.errors import BadOutput, InvalidFunction, Raised
from dandelion.function import CodeObject, Function, FunctionSpec, Limits
from dandelion.memory import HeapDomain

DRIVER = load_driver("null")


def a_function(inputs: str, outputs: str, /, **options: str) -> Function:
    code = CodeObject("null", options=options)
    spec = FunctionSpec(
        "F",
        tuple(SetSpec(name) for name in inputs.split()),
        tuple(SetSpec(name) for name in outputs.split()),
        code=(code,),
    )
    return Function(spec, code)


def run(function: Function, *inputs: ItemSet | None) -> InstanceSets:
    engine = DRIVER.factory().engine("null")
    deadline = time.monotonic_ns() + 10**9
    call = Call(1, function, inputs, HeapDomain(0), deadline)
    try:
        outputs = engine.run(call)
        assert isinstance(outputs, tuple)
        return outputs
    finally:
        engine.close()


def one(name: str, *data: bytes) -> ItemSet:
    return ItemSet(name, tuple(Item(str(i), i, d) for i, d in enumerate(data)))


def test_outputs_are_inputs_by_position_and_by_reference() -> None:
    a, b = one("a", b"x" * 100, b"y"), one("b", b"z")
    outputs = run(a_function("a b", "c d"), a, b)
    assert [s.name for s in outputs if s is not None] == ["c", "d"]
    assert outputs[0] is not None
    assert all(out is given for out, given in zip(outputs[0].items, a.items, strict=True))


def test_surplus_outputs_are_absent_and_surplus_inputs_dropped() -> None:
    assert run(a_function("a", "c d"), one("a", b"x"))[1] is None
    assert len(run(a_function("a b", "c"), one("a", b"x"), one("b", b"y"))) == 1
    assert run(a_function("a", "c"), None) == (None,)
    assert run(a_function("", "")) == ()


def test_static_sets_have_priority() -> None:
    function = a_function("a", "c")
    function.static = {"a": one("a", b"fixed")}
    (out,) = run(function, None)
    assert out is not None
    assert out.bytes() == b"fixed"


def test_option_outputs_gives_items_with_own_keys() -> None:
    outputs = run(a_function("a", "c d", outputs="7"), one("a", b"x"))
    for out in outputs:
        assert out is not None
        assert [(i.name, i.key, i.bytes()) for i in out] == [
            (str(n), n, str(n).encode()) for n in range(7)
        ]
    assert run(a_function("a", "c", outputs="0"), one("a", b"x")) == (None,)


def test_option_fail_raises_the_users_error() -> None:
    with pytest.raises(Raised) as caught:
        run(a_function("a", "c", fail="no more"), one("a", b"x"))
    assert caught.value.function == "F"
    assert caught.value.exception == "no more"


def test_limits_hold() -> None:
    function = a_function("a", "c", outputs="5")
    function.spec = FunctionSpec(
        "F", function.spec.inputs, function.spec.outputs, limits=Limits(output_items=4)
    )
    with pytest.raises(BadOutput):
        run(function, None)


@pytest.mark.parametrize("options", [{"outputs": "-1"}, {"outputs": ""}, {"output": "3"}])
def test_check_refuses_options_it_does_not_know(options: dict[str, str]) -> None:
    with pytest.raises(InvalidFunction) as caught:
        DRIVER.checker().check([a_function("a", "c", **options)])
    (problem,) = caught.value.problems
    assert problem.where == f"code.options.{next(iter(options))}"


def test_check_accepts_valid_code() -> None:
    DRIVER.checker().check([a_function("a", "c", outputs="3", fail="x")])
    DRIVER.checker().check([a_function("a", "c")])


def test_probe_and_hosting() -> None:
    (resource,) = DRIVER.factory().probe()
    assert resource.name == "null"
    assert DRIVER.hosting is Hosting.INLINE
    assert DRIVER.formats == {"null"}
    assert DRIVER.planner() is None


@pytest.mark.parametrize("count", ["100001", "9" * 5000])
def test_more_items_than_the_limit_are_refused_before_they_are_made(count: str) -> None:
    with pytest.raises(InvalidFunction, match="at most 100000"):
        DRIVER.checker().check([a_function("", "x", outputs=count)])
