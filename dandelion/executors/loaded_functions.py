"""Which functions an engine process has, for whom, and which constants it keeps."""

from __future__ import annotations

from dataclasses import dataclass

from dandelion.data import Item
from dandelion.engine_process.messages import Evict, Forget, Load, WireItem, wire_item, wire_set
from dandelion.executors.kept_constants import KeptConstants
from dandelion.function import Function
from dandelion.memory import ArenaMap
from dandelion.scheduler import Flow


@dataclass(slots=True, eq=False)
class _Loaded:
    """A function that the process has, and its users. It keeps the memory of its static sets."""

    function: Function
    flows: set[Flow]


class LoadedFunctions:
    """The functions of one engine process, as it was told.

    Attributes:
        constants: of these functions, kept on its device.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, _Loaded] = {}
        self.constants = KeptConstants()

    def has(self, function: Function) -> bool:
        """Tell whether the process has a function, or is about to get it."""
        return function.identity in self._loaded

    def used(self, flow: Flow, function: Function) -> bool:
        """Note that a flow uses a function. False if the process lacks it."""
        loaded = self._loaded.get(function.identity)
        if loaded is None:
            return False
        loaded.flows.add(flow)
        return True

    def add(self, flow: Flow, function: Function) -> None:
        """The process is told to load a function, for a flow."""
        self._loaded[function.identity] = _Loaded(function, {flow})

    def forget(self, flow: Flow) -> list[Forget | Evict]:
        """Return the orders to drop what only a flow used."""
        orders: list[Forget | Evict] = []
        for function in flow.functions.values():
            loaded = self._loaded.get(function.identity)
            if loaded is None:
                continue
            loaded.flows.discard(flow)
            was_last = self.constants.dropped(flow, function)
            if not loaded.flows:
                del self._loaded[function.identity]
                orders.append(Forget(function.identity))
            elif was_last:
                orders.append(Evict(function.identity))
        return orders

    def memory(self) -> object:
        """Return what keeps the memory that the process may read."""
        return tuple(self._loaded.values())

    def clear(self) -> None:
        """The process is lost, with everything."""
        self._loaded.clear()
        self.constants.clear()


def load_message(function: Function, arena: ArenaMap) -> Load:
    """Return what makes a process that maps the arena load a function."""
    files = function.files.items()
    code: dict[str, bytes | WireItem] = {
        name: wire_item(Item(name, 0, data), arena) for name, data in files
    }
    static = {name: wire_set(s, arena) for name, s in function.static.items()}
    main = wire_item(Item("main", 0, function.main), arena)
    return Load(function.identity, function.spec, function.code, main, code, static, function.scope)
