"""Plans of an engine's calls with the alternatives that were chosen, see `.candidates`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dandelion.data import Item
from dandelion.driver import Call
from dandelion.errors import DeviceFull

from .candidates import Attempt, Chooser
from .constants import DeviceConstants, ResidentConstants
from .device import Device, Handle
from .draft_records import Choices
from .modules import Modules
from .plan import Plan
from .plan_cache import PlanCache
from .pool import BufferPool
from .program import Program, plan_call
from .sections import WordReader


@dataclass(frozen=True, slots=True)
class ChosenPlans:
    """Chooses alternatives, with an engine's device, memory and caches."""

    device: Device
    pool: BufferPool
    modules: Modules
    constants: DeviceConstants
    plans: PlanCache
    words: WordReader
    chooser: Chooser

    def plan(
        self,
        program: Program,
        call: Call,
        items: Mapping[str, Item],
        plan: Plan,
        resident: ResidentConstants | None,
        check: Callable[[], None],
    ) -> tuple[Plan, str]:
        """Give the plan with the alternatives that a call takes.

        Args:
            program: of the function.
            call: whose inputs and time may be used for measuring.
            items: of its inputs.
            plan: with the first alternatives.
            resident: constants on the device.
            check: raises if the call must end.

        Returns:
            The plan; the key of its candidates if a later call is to measure, else nothing.
        """
        slots = None if resident is None else resident.slots

        def attempt(choices: Choices) -> Attempt:
            self.modules.expire()
            made = plan_call(self.plans, program, items, slots, choices)
            if made.used_bytes > self.pool.size_bytes:
                raise DeviceFull(self.device.name, made.used_bytes, self.pool.size_bytes)
            values = program.values(made.open_arguments, call.inputs)
            ready = self.modules.ready(program, made, call.function.files, resident, values)
            return Attempt(
                made, ready.steps, ready.times, lambda: begin(made, ready.restored),
                self.words.read, self.pool.clean,
            )  # fmt: skip

        def begin(made: Plan, restored: tuple[Handle, ...]) -> None:
            self.constants.grant_access(resident)
            self.pool.clean()
            self.pool.begin(made, restored)
            for name, item in items.items():
                if name in made.slots:
                    self.device.copy_in(made.slots[name].offset_bytes, item.data)

        key = f"candidates {program.identity} {program.signature(call.inputs)}"
        choices = self.chooser.choices(plan, key, attempt, check, call.left_s())
        self.modules.expire()
        chosen = plan_call(self.plans, program, items, slots, choices)
        fits = chosen.used_bytes <= self.pool.size_bytes
        return chosen if fits else plan, key if self.chooser.is_open(key) else ""
