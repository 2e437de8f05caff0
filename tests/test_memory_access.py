"""The access of a kernel to its pointers, from operations that are written here by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from dandelion.blueprint import Access
from dandelion.export.memory_access import Operation, accesses

P, Q = 0, 1  # the kernel's parameters; other values are numbered from 10
MODULE, BODY, ENTRY = 100, 101, 102
READ, BOTH = Access.READ, Access.BOTH


def op(
    name: str,
    operands: Sequence[int] = (),
    results: Sequence[int] = (),
    regions: Sequence[int] = (),
) -> Operation:
    """An operation in the first block of the kernel."""
    return Operation(
        name, tuple(operands), tuple(results), tuple(regions), ENTRY, (P, Q), BODY
    )  # fmt: skip


def inside(
    region: int, block_arguments: Sequence[int], name: str, operands: Sequence[int],
    results: Sequence[int] = (),
) -> Operation:  # fmt: skip
    """An operation in the only block of a nested region."""
    arguments = tuple(block_arguments)
    return Operation(name, tuple(operands), tuple(results), (), region + 1, arguments, region)


def found(*operations: Operation) -> tuple[Access, ...]:
    end = [op("tt.return"), Operation("tt.func", (), (), (BODY,), 1, (), MODULE)]
    return accesses([*operations, *end], 2)


def test_loads_read_and_stores_write() -> None:
    address = [op("tt.splat", [P], [10]), op("tt.addptr", [10, 11], [12])]
    load = op("tt.load", [12], [13])
    assert found(*address, load, op("tt.store", [Q, 13])) == (READ, BOTH)
    assert found(*address, load, op("tt.store", [12, 13])) == (BOTH, READ)
    assert found(*address, op("tt.atomic_rmw", [12, 13], [14])) == (BOTH, READ)


def test_an_index_that_was_loaded_is_no_pointer() -> None:
    load = op("tt.load", [P], [10])
    assert found(load, op("tt.addptr", [Q, 10], [11]), op("tt.store", [11, 10])) == (READ, BOTH)


def test_a_pointer_that_is_stored_may_be_written_through() -> None:
    assert found(op("tt.store", [Q, P])) == (BOTH, BOTH)


@pytest.mark.parametrize("name", ["tt.ptr_to_int", "tt.elementwise_inline_asm", "tt.call", "new"])
def test_what_is_unknown_may_write(name: str) -> None:
    assert found(op(name, [P], [10]), op("tt.load", [Q], [11])) == (BOTH, READ)


def test_a_store_to_an_unknown_place_may_write_everything() -> None:
    assert found(op("tt.int_to_ptr", [20], [10]), op("tt.store", [10, 11])) == (BOTH, BOTH)
    assert found(op("tt.int_to_ptr", [20], [10]), op("tt.load", [10], [11])) == (READ, READ)


@pytest.mark.parametrize("stored", [P, Q])
def test_loops_carry_pointers_by_position(stored: int) -> None:
    """The loop swaps nothing: its first value is `stored`, its second the other pointer."""
    other = P + Q - stored
    loop = op("scf.for", [30, 31, 32, stored, other], [40, 41], [200])
    arguments = [50, 51, 52]  # the counter, and both values
    body = [
        inside(200, arguments, "tt.load", [52], [60]),
        inside(200, arguments, "tt.store", [51, 60]),
        inside(200, arguments, "scf.yield", [51, 52]),
    ]
    ways = found(*body, loop, op("tt.load", [41], [70]))
    assert (ways[stored], ways[other]) == (BOTH, READ)


def test_a_loop_may_swap_pointers() -> None:
    loop = op("scf.for", [30, 31, 32, P, Q], [40, 41], [200])
    arguments = [50, 51, 52]
    body = [
        inside(200, arguments, "tt.store", [51, 60]),
        inside(200, arguments, "scf.yield", [52, 51]),
    ]
    assert found(*body, loop) == (BOTH, BOTH)


def test_results_of_loops_and_branches_point_on() -> None:
    both = [
        inside(200, [], "scf.yield", [P]),
        inside(300, [], "scf.yield", [Q]),
        op("scf.if", [30], [40], [200, 300]),
    ]
    assert found(*both, op("tt.store", [40, 50])) == (BOTH, BOTH)
    assert found(*both, op("tt.load", [40], [50])) == (READ, READ)
    loop = [
        inside(200, [50], "scf.condition", [30, 50]),
        inside(300, [51], "tt.addptr", [51, 31], [52]),
        inside(300, [51], "scf.yield", [52]),
        op("scf.while", [P], [40], [200, 300]),
    ]
    assert found(*loop, op("tt.store", [40, 60])) == (BOTH, READ)
    assert found(*loop, op("tt.store", [Q, 60])) == (READ, BOTH)


def test_branches_between_blocks() -> None:
    second = Operation("tt.store", (90, 30), (), (), 103, (90,), BODY)
    assert found(op("cf.br", [P]), second) == (BOTH, READ)


def test_code_of_another_form_may_write_everything() -> None:
    function = Operation("tt.func", (), (), (300,), 1, (), MODULE)
    assert found(op("tt.load", [P], [10]), function) == (BOTH, BOTH)
    assert accesses([], 2) == (BOTH, BOTH)


def test_the_order_of_operations_changes_nothing() -> None:
    operations = [
        op("tt.addptr", [P, 11], [12]),
        op("tt.splat", [12], [13]),
        op("tt.store", [13, 14]),
    ]
    for order in itertools.permutations(operations):
        assert found(*order) == (BOTH, READ)
