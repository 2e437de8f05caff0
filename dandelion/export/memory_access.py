"""The access of a kernel to its pointer parameters, derived from Triton's intermediate code.

The code is a list of operations on values. A value that is computed from a pointer parameter points
into its buffer; the analysis follows these values through address arithmetic, loops and branches
to loads and stores. It over-approximates: an operation that it does not know counts as a write to
all buffers that its operands point to, and a store through a pointer of unknown origin as a write
to every buffer. So a buffer that is reported as read is never written.

Writes are reported as `Access.BOTH` also where nothing is loaded: a store with a mask leaves
elements as they were, and these have to be zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from dandelion.blueprint import Access

_LOADS = frozenset({"tt.load", "tt.descriptor_load", "tt.descriptor_gather"})
_STORES = frozenset({"tt.store", "tt.descriptor_store", "tt.descriptor_scatter"})
_ATOMICS = frozenset({"tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_reduce"})
_ADDRESSES = frozenset(
    {"tt.addptr", "tt.advance", "tt.bitcast", "tt.broadcast", "tt.expand_dims", "tt.join"}
    | {"tt.make_tensor_descriptor", "tt.make_tensor_ptr", "tt.reshape", "tt.splat", "tt.split"}
    | {"tt.trans", "tt.cat", "arith.select", "tt.return"}
)
_CONTROL = frozenset({"scf.for", "scf.if", "scf.while", "scf.yield", "scf.condition"})
_BRANCHES = frozenset({"cf.br", "cf.cond_br"})
_FUNCTION = "tt.func"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; values, blocks and regions are numbers.

    Attributes:
        name: with its dialect: ``tt.load``.
        operands: values that it uses.
        results: values that it makes.
        regions: nested in it.
        block: in which it is; -1 for the module.
        block_arguments: values that this block begins with.
        region: in which the block is; -1 for the module.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...] = ()
    regions: tuple[int, ...] = ()
    block: int = -1
    block_arguments: tuple[int, ...] = ()
    region: int = -1


def accesses(operations: Sequence[Operation], parameters: int) -> tuple[Access, ...]:
    """Derive the access to each parameter: READ if the kernel never writes there, else BOTH.

    Parameters that are no pointers have some result too; it means nothing.

    Args:
        operations: all of the module, in the order of the text or with nested ones first.
        parameters: their number.
    """
    functions = [op for op in operations if op.name == _FUNCTION]
    body = functions[0].regions if len(functions) == 1 else ()
    entry = next((op.block_arguments for op in operations if op.region in body), ())
    if len(entry) != parameters:  # calls that were not inlined, or code of an unknown form
        return (Access.BOTH,) * parameters
    written = _Flow(operations, entry).written()
    return tuple(Access.BOTH if i in written else Access.READ for i in range(parameters))


class _Flow:
    def __init__(self, operations: Sequence[Operation], entry: Sequence[int]) -> None:
        self.operations = operations
        self.entry = frozenset(entry)
        self.all = frozenset(range(len(entry)))
        self.origins: dict[int, frozenset[int]] = defaultdict(frozenset)
        self.origins |= {value: frozenset({index}) for index, value in enumerate(entry)}
        self.blocks: dict[int, dict[int, tuple[int, ...]]] = defaultdict(dict)
        self.owners: dict[int, Operation] = {}
        for op in operations:
            self.blocks[op.region][op.block] = op.block_arguments
            self.owners.update(dict.fromkeys(op.regions, op))

    def written(self) -> frozenset[int]:
        """Parameters whose buffers the kernel may write."""
        edges = [edge for op in self.operations for edge in self.edges(op)]
        while sum(self.follow(source, target) for source, target in edges):
            pass
        return frozenset().union(*map(self.write, self.operations))

    def follow(self, source: int, target: int) -> bool:
        """Let a value point where another one points; return whether that is new."""
        origins = self.origins[source]
        if target in self.entry or origins <= self.origins[target]:
            return False
        self.origins[target] |= origins
        return True

    def of(self, values: Sequence[int]) -> frozenset[int]:
        return frozenset().union(*(self.origins[value] for value in values))

    def write(self, op: Operation) -> frozenset[int]:
        """Parameters whose buffers an operation may write, or whose addresses it hands on."""
        if op.name in _LOADS | _ADDRESSES | _CONTROL | _BRANCHES:
            return frozenset()
        origins = self.of(op.operands)
        if op.name in _STORES | _ATOMICS:
            return origins if self.of(op.operands[:1]) else self.all
        return origins

    def edges(self, op: Operation) -> Iterable[tuple[int, int]]:
        """Pairs of values of which the second may point where the first points."""
        if op.name in _LOADS | _STORES | _ATOMICS:
            return ()
        if op.name in _CONTROL:
            return self.control(op)
        targets = op.results if op.name not in _BRANCHES else self.arguments((op.region,))
        return product(op.operands, (*targets, *self.arguments(op.regions)))

    def control(self, op: Operation) -> list[tuple[int, int]]:
        """Edges of structured control flow, by position.

        Source: MLIR's documentation of the dialect "scf".
        """
        owner = self.owners.get(op.region, op)
        targets: tuple[tuple[int, ...], ...]
        match op.name, owner.name:
            case (
                "scf.for",
                _,
            ):  # lower, upper, step, initial values; the block begins with a counter
                targets = (op.results, self.entry_of(op, 0)[1:])
                values = op.operands[3:]
            case "scf.while", _:
                targets, values = (self.entry_of(op, 0),), op.operands
            case "scf.condition", _:
                targets, values = (owner.results, self.entry_of(owner, 1)), op.operands[1:]
            case "scf.yield", "scf.while":
                targets, values = (self.entry_of(owner, 0),), op.operands
            case "scf.yield", "scf.for":
                targets, values = (owner.results, self.entry_of(owner, 0)[1:]), op.operands
            case "scf.yield", _:
                targets, values = (owner.results,), op.operands
            case _:
                return []
        return [edge for target in targets for edge in zip(values, target, strict=True)]

    def entry_of(self, op: Operation, region: int) -> tuple[int, ...]:
        """Values that the first block of a region begins with."""
        return next(iter(self.blocks[op.regions[region]].values()))

    def arguments(self, regions: Sequence[int]) -> list[int]:
        blocks = [block for region in regions for block in self.blocks[region].values()]
        return [value for arguments in blocks for value in arguments]
