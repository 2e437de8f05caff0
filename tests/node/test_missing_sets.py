"""A set that is missing: the error has the declared type, and proposes null where it may help."""

from __future__ import annotations

import pytest
from dandelion.backends.gpu.program import make_program

import dandelion.blueprint as bp
from dandelion.data import SetSpec
from dandelion.dispatcher.plan import direct_plan
from dandelion.errors import InvalidInput
from dandelion.frontend.codecs import check_names
from dandelion.function import CodeObject, Function, FunctionSpec, digest_of
from dandelion.node.inputs import positional
from dandelion.set_values import item_set

VECTOR = SetSpec("a", "float32", (-1,))


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize(
    ("spec", "text", "has_null"), [(VECTOR, "float32[?]", False), (SetSpec("a"), "a", True)]
)
def test_the_error_of_a_missing_set(
    spec: SetSpec, text: str, has_null: bool, optional: bool
) -> None:
    declared = SetSpec(spec.name, spec.dtype, spec.shape, optional=optional)
    plan = direct_plan(FunctionSpec("f", (declared,), (SetSpec("b"),)))
    if optional:
        assert positional(plan, {}) == (None,)
        check_names({}, {"a": declared})
        return
    with pytest.raises(InvalidInput, match="missing") as in_process:
        positional(plan, {})
    with pytest.raises(InvalidInput, match="missing") as over_http:
        check_names({}, {"a": declared})
    for caught in (in_process, over_http):
        assert text in str(caught.value)
        assert ("null" in caught.value.hint) is has_null
    assert positional(plan, {"a": None}) == (None,)


def test_a_gpu_function_needs_every_set_and_names_its_type() -> None:
    blueprint = bp.Blueprint(inputs=["a", "b"], outputs=["b"], modules={"m": "m.c"})
    blueprint.launch("add", [blueprint.a, blueprint.b], grid=1, block=1)
    main = blueprint.json().encode()
    files = {"m.c": b'#include "dandelion.h"\nKERNEL void add(GLOBAL f32 *a, GLOBAL f32 *b) {}\n'}
    code = CodeObject("blueprint", digest_of(main), {n: digest_of(d) for n, d in files.items()})
    inputs = (VECTOR, SetSpec("b", "float32", (2, -1)))
    spec = FunctionSpec("add", inputs, (SetSpec("b"),), code=(code,))
    program = make_program(Function(spec, code, main, files))
    with pytest.raises(InvalidInput, match="needs every set") as caught:
        program.items((item_set("a", [1.0], VECTOR), None))
    assert caught.value.where == "sets.b"
    assert "float32[2, ?]" in caught.value.hint
