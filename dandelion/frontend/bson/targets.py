"""What invocations resolve to, kept until the catalogue changes.

A `BsonTarget` has everything about a function or composition that an invocation needs: its
identifier, its input sets by position, and the names of its output sets in replies. Making one asks
the node several questions, and a text is parsed, so it is made in a thread and kept.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from dandelion.data import ItemSet, Sets, SetSpec
from dandelion.errors import InvalidInput, TooLarge
from dandelion.frontend.bson.names import identifier_of, with_registered_names
from dandelion.frontend.bson.producers import Label, labels_of
from dandelion.frontend.bson.requests import BsonInvocation, SetRequest
from dandelion.frontend.service import Service
from dandelion.function import FunctionSpec, digest_of
from dandelion.set_values import checked

TARGETS_LIMIT = 1024
TEXT_LIMIT_BYTES = 16 * 1024
"""Of a composition in an invocation: some hundred applications, a tenth of a second of parsing."""

_Key: TypeAlias = tuple[str, bool, str]
"""Tenant, whether it is a text, and the name or the digest of the text."""


@dataclass(frozen=True, slots=True)
class BsonTarget:
    """A function or composition, as the protocol needs it.

    Attributes:
        name, version: to invoke it by; the version is that of the other attributes.
        inputs: input sets by position; None where a set is fixed at registration.
        labels: for each output set its name in replies, or the position of the input that has it.
        is_function: whether it is a function, which ignores further sets.
    """

    name: str
    version: int | None
    inputs: tuple[SetSpec | None, ...]
    labels: tuple[Label, ...]
    is_function: bool

    def bound(self, given: Sequence[SetRequest]) -> dict[str, ItemSet | None]:
        """Bind sets by position. Sets that are not given are absent.

        Raises:
            InvalidInput: a composition gets more sets than it has, or an item does not fit.
        """
        if len(given) > len(self.inputs) and not self.is_function:
            message = f"{len(given)} sets are more than the {len(self.inputs)} of the composition"
            raise InvalidInput("sets", message)
        sets: dict[str, ItemSet | None] = {}
        for position, spec in enumerate(self.inputs):
            if spec is not None:
                items = given[position].items if position < len(given) else ()
                sets[spec.name] = checked(spec.name, items, spec)
        return sets

    def labelled(
        self, outputs: Sets, identifiers: Sequence[str]
    ) -> list[tuple[str, ItemSet | None]]:
        """Return the output sets with their names in the reply.

        Args:
            outputs: of the invocation.
            identifiers: the names that the client gave its input sets.
        """
        named = []
        for label, one in zip(self.labels, outputs.values(), strict=True):
            if isinstance(label, int):
                label = identifiers[label] if label < len(identifiers) else ""
            named.append((label, one))
        return named


class BsonTargets:
    """Resolves names and texts. Use it only on the event loop.

    Args:
        node: has the catalogue.
    """

    def __init__(self, node: Service) -> None:
        self._node = node
        self._known: OrderedDict[_Key, BsonTarget] = OrderedDict()
        self._generation = node.generation

    async def find(self, invocation: BsonInvocation, tenant: str) -> BsonTarget:
        """Find what an invocation names, or compile its text.

        Raises:
            Unknown: there is no such function or composition.
            InvalidComposition, InvalidInput, TooLarge: the text is not valid.
        """
        generation = self._node.generation
        if generation != self._generation:
            self._known.clear()
            self._generation = generation
        key = _key(invocation, tenant)
        found = self._known.get(key)
        if found is None:
            found = await asyncio.to_thread(self._made, invocation, tenant)
            if generation == self._generation == self._node.generation:
                self._known[key] = found
                if len(self._known) > TARGETS_LIMIT:
                    self._known.popitem(last=False)
        return found

    def forget(self, invocation: BsonInvocation, tenant: str) -> None:
        """Forget a target: the node does not know its name any more."""
        self._known.pop(_key(invocation, tenant), None)

    def _made(self, invocation: BsonInvocation, tenant: str) -> BsonTarget:
        find = partial(self._node.describe, tenant=tenant)
        if invocation.is_text:
            text = with_registered_names(invocation.target, find)
            name = self._node.prepare(text, tenant=tenant)
        else:
            name = identifier_of(invocation.target)
        found = find(name)
        version = found.version or None  # functions of the platform and texts have none
        signature = self._node.signature(name, version, tenant=tenant)
        given = {spec.name: spec for spec in signature.inputs}
        is_function = isinstance(found, FunctionSpec)
        names = found.input_names if isinstance(found, FunctionSpec) else found.inputs
        inputs = tuple(given.get(one) for one in names)
        return BsonTarget(name, version, inputs, labels_of(found, find), is_function)


def _key(invocation: BsonInvocation, tenant: str) -> _Key:
    if not invocation.is_text:
        return tenant, False, invocation.target
    text = invocation.target.encode()
    if len(text) > TEXT_LIMIT_BYTES:
        raise TooLarge("composition", len(text), TEXT_LIMIT_BYTES)
    return tenant, True, digest_of(text)
