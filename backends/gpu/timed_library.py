"""A vendor's library of convolutions that proposes several ways to compute each shape.

What `.cudnn` and `.miopen` have in common. When a shape is first planned, the library is asked for
ways; a few of them are made ready and timed (`.cudalike_trials`), and the fastest one is kept. All
that takes place outside of any capture. An operation that the library has no way for is not here:
it is tried without its epilogue, and else a product or a template computes it.

Handles of the library are host memory. A way is used by all convolutions of its shape; those that
are used least recently are dropped, unless a prepared convolution uses them. Which way was chosen
is remembered for longer: the memory of plans that were made before is that of this way.
"""

from __future__ import annotations

import abc
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from dandelion.blueprint.operation_calls import ConvolutionCall, OperationCall, operand_calls
from dandelion.errors import DeviceFault

from .calls import LibrarySite, Trials
from .cudalike_library import PreparedOperation
from .lowering import Library

WORKSPACE_BYTES = 32 << 20
"""Most memory that a way may need."""
MOST_WAYS = 6
"""So many ways are timed for each shape."""
PLANNING_S = 1.0
"""After so long no further way is made ready to be timed: some are compiled for the shape."""
ALIGNMENT_BYTES = 256
_KNOWN = 1024
_REMEMBERED = 8
"""So many times as many choices are remembered as have handles."""

Key: TypeAlias = tuple[object, ...]


class LibraryWay(abc.ABC):
    """One way to compute the convolutions of a shape.

    Attributes:
        workspace_bytes: that it needs.
    """

    workspace_bytes: int

    @abc.abstractmethod
    def prepare(
        self, addresses: Mapping[str, int], workspace: tuple[int, int]
    ) -> PreparedOperation:
        """Make it ready to be launched; see `Library.prepare`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release its own handles."""


class LibraryShape(abc.ABC):
    """A shape of convolutions, as a library describes it."""

    @abc.abstractmethod
    def ways(self) -> Iterator[tuple[int, Callable[[], LibraryWay | None]]]:
        """Yield the number of each way, always the same one, and what makes it ready.

        Those expected fastest are first. None is given for a way that does not work, or that needs
        more than `WORKSPACE_BYTES`. It may raise `DeviceFault`.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release the handles that its ways share."""


class _Chosen:
    """The fastest way of a shape."""

    def __init__(self, shape: LibraryShape, way: LibraryWay) -> None:
        self.shape = shape
        self.way = way
        self.users = 0

    def close(self) -> None:
        self.way.close()
        self.shape.close()


class TimedLibrary(Library):
    """The library on the current device.

    Args:
        site: where convolutions are launched and timed.
        version: name and version of the library; part of the keys of what was measured.
    """

    def __init__(self, site: LibrarySite, version: str) -> None:
        self._site = site
        self._version = version
        self._known: OrderedDict[Key, _Chosen | None] = OrderedDict()
        self._numbers: OrderedDict[Key, int] = OrderedDict()  # of the ways that were chosen
        self._prepared: set[PreparedOperation] = set()

    @abc.abstractmethod
    def _has(self, call: ConvolutionCall) -> bool:
        """Tell whether the library may have such a convolution."""

    @abc.abstractmethod
    def _shape(self, call: ConvolutionCall) -> LibraryShape:
        """Describe a shape to the library.

        Raises:
            DeviceFault: it does not know such a convolution; nothing is left of it.
        """

    @abc.abstractmethod
    def _close(self) -> None:
        """Release the library itself. May be called twice."""

    def workspace_bytes(self, call: OperationCall) -> int | None:
        found = self._find(call) if isinstance(call, ConvolutionCall) else None
        return None if found is None else found.way.workspace_bytes

    def prepare(
        self, call: OperationCall, addresses: Mapping[str, int], workspace: tuple[int, int]
    ) -> PreparedOperation:
        assert isinstance(call, ConvolutionCall), "the library has nothing else"
        found = self._find(call)
        if found is None or found.way.workspace_bytes > workspace[1]:
            what = "a way of the library needs more memory than when the call was planned"
            raise DeviceFault(self._site.name, "convolution", what)
        made = found.way.prepare(addresses, workspace)
        own = made.release
        found.users += 1
        self._prepared.add(made)

        def release() -> None:
            if made in self._prepared:
                self._prepared.discard(made)
                found.users -= 1
                own()

        made.release = release
        return made

    def _find(self, call: ConvolutionCall) -> _Chosen | None:
        key = _key(call)
        if key not in self._known:
            self._trim(_KNOWN - 1)
            self._known[key] = self._chosen(call, key) if self._has(call) else None
        self._known.move_to_end(key)
        return self._known[key]

    def _chosen(self, call: ConvolutionCall, key: Key) -> _Chosen | None:
        """Give the fastest way; None if there is none."""
        with contextlib.suppress(DeviceFault):  # it does not know such a convolution
            shape = self._shape(call)
            best = None
            try:
                best = self._fastest(call, shape, key)
            finally:
                if best is None:
                    shape.close()
            return None if best is None else _Chosen(shape, best)
        return None

    def _fastest(self, call: ConvolutionCall, shape: LibraryShape, key: Key) -> LibraryWay | None:
        trials, name = self._site.trials, f"{self._version} {key}"
        known = self._numbers.get(key, trials.known(name))
        if known is not None:
            ways = _ready(shape, trials, only=known)
            if ways:
                self._remember(key, known)
                return ways[known]
        ways = _ready(shape, trials)
        if not ways:
            return None
        parts = dict(operand_calls(call))
        item = call.dtype.size_bytes
        offsets = {name: part.offset_bytes % ALIGNMENT_BYTES for name, part in parts.items()}
        sizes = [offsets[name] + part.elements * item for name, part in parts.items()]
        sizes.append(max(way.workspace_bytes for way in ways.values()))
        launches = {number: _launch(way, offsets, sizes[-1]) for number, way in ways.items()}
        best = None
        try:
            number = trials.fastest(name, sizes, launches)
            best = ways[number]
            self._remember(key, number)
        finally:
            for way in ways.values():
                if way is not best:
                    way.close()
        return best

    def _remember(self, key: Key, number: int) -> None:
        self._numbers[key] = number
        self._numbers.move_to_end(key)
        if len(self._numbers) > _REMEMBERED * _KNOWN:
            self._numbers.popitem(last=False)

    def _trim(self, most: int) -> None:
        """Drop what is used least recently."""
        excess = len(self._known) - most
        if excess > 0:
            idle = [k for k, found in self._known.items() if found is None or not found.users]
            for key in idle[:excess]:
                gone = self._known.pop(key)
                if gone is not None:
                    gone.close()

    def close(self) -> None:
        for made in tuple(self._prepared):
            made.release()
        for found in self._known.values():
            if found is not None:
                found.close()
        self._known.clear()
        self._close()


def _ready(shape: LibraryShape, trials: Trials, only: int | None = None) -> dict[int, LibraryWay]:
    """Make the ways ready that work, by their number; or one alone."""
    ways: dict[int, LibraryWay] = {}
    until = time.monotonic() + min(PLANNING_S, trials.left_s())
    with contextlib.suppress(DeviceFault):  # those that were proposed before are as good
        for number, make in shape.ways():
            way = make() if only in (None, number) else None
            if way is not None:
                ways[number] = way
            if number == only or len(ways) == MOST_WAYS:
                break
            if ways and time.monotonic() > until:
                break
    return ways


def _launch(
    way: LibraryWay, offsets: Mapping[str, int], workspace_bytes: int
) -> Callable[[Sequence[int]], None]:
    def launch(addresses: Sequence[int]) -> None:
        *operands, workspace = addresses
        at = {
            name: address + offset
            for (name, offset), address in zip(offsets.items(), operands, strict=True)
        }
        made = way.prepare(at, (workspace, workspace_bytes))
        try:
            made.call(*made.arguments)
        finally:
            made.release()

    return launch


def _key(call: ConvolutionCall) -> Key:
    """All that a way depends on."""
    parts = tuple((name, part.offset_bytes % ALIGNMENT_BYTES) for name, part in operand_calls(call))
    in_place = call.addend is not None and call.addend.buffer == call.out.buffer
    return (
        call.batch, call.channels, call.filters, call.size, call.kernel, call.stride,
        call.padding, call.dilation, call.groups, call.layout.value, call.dtype.value,
        call.compute.value, call.activation.value, parts, in_place,
    )  # fmt: skip
