"""The control flow of a blueprint with all sizes evaluated, before its buffers have a place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dandelion.blueprint import (
    Absolute,
    Access,
    Action,
    Argument,
    Candidates,
    Choose,
    Conv2d,
    CopyBuffer,
    ExecKernel,
    Gemm,
    GpuConfig,
    Ptr,
    Raw,
    Repeat,
    RepeatWhile,
    Scalar,
    Size,
    Sizeof,
    ZeroBuffer,
)
from dandelion.blueprint.numbers import constant, launch_numbers, pack
from dandelion.blueprint.operation_calls import (
    Impossible,
    covers,
    evaluated,
    misplaced,
)
from dandelion.blueprint.operation_parts import operands, sizes
from dandelion.blueprint.records import (
    BLOCK_THREADS,
    GRID_LIMITS,
    MAX_BYTES,
    MAX_LAUNCHES,
    WORD_BYTES,
)
from dandelion.blueprint.uses import integers_in, integers_open
from dandelion.errors import DandelionError, InvalidInput

from .draft_records import (
    CandidateGroup,
    Choices,
    CopyDraft,
    Draft,
    LaunchDraft,
    Loop,
    OperationDraft,
    PlaceDraft,
    Program,
    ZeroDraft,
)
from .lowering import Lowering, accesses
from .open_arguments import OpenArgument
from .sizes import Sizes
from .templates import TemplateLaunch


class Drafts:
    """Evaluates the control flow of a blueprint.

    Args:
        config: checked.
        sizes: of its buffers; the memory of library operations is added.
        lowering: how the device carries out library operations.
        choices: of candidates.

    Attributes:
        all: each launch, copy and zeroing of the blueprint once, and each step of its operations.
        program: their order.
        launches: how many they are at most, loops unrolled.
        groups: the candidates.
        loops: first and last draft and number of iterations of each loop; inner ones first.
        words: buffers with words that loops look at, and the last draft of each loop.
    """

    def __init__(
        self,
        config: GpuConfig,
        sizes: Sizes,
        lowering: Lowering,
        choices: Choices | None = None,
    ) -> None:
        self._lowering = lowering
        self._choices = choices or {}
        self.groups: list[CandidateGroup] = []
        self.all: list[Draft] = []
        self.loops: list[tuple[int, int, int]] = []
        self.words: list[tuple[str, int]] = []
        self._sizes = sizes
        self._access = {k.name: k.access for k in config.kernels}
        self._open = frozenset(integers_open(config))
        where = "blueprint.control_flow"
        self.program, self.launches = self._actions(where, config.blueprint.control_flow)
        if self.launches > MAX_LAUNCHES:
            message = f"{self.launches} launches are more than {MAX_LAUNCHES}"
            raise InvalidInput(where, message)

    def _actions(self, where: str, actions: tuple[Action, ...]) -> tuple[Program, int]:
        program: list[int | Loop] = []
        launches = 0
        for index, action in enumerate(actions):
            at = f"{where}[{index}]"
            if isinstance(action, Gemm | Conv2d):
                steps = self._operation(at, action)
                program += range(len(self.all), len(self.all) + len(steps))
                self.all += steps
                launches += len(steps)
                continue
            if isinstance(action, Candidates | Choose):
                if isinstance(action, Choose):
                    inner, count = self._chosen(at, action)
                else:
                    inner, count = self._candidates(at, action)
                program += inner
                launches += count
                continue
            if not isinstance(action, Repeat | RepeatWhile):
                program.append(len(self.all))
                self.all.append(self._draft(at, action))
                launches += 1
                continue
            word = ""
            if isinstance(action, RepeatWhile):
                word = action.word
                check_word(f"{at}.word", word, self._sizes)
            times = self._sizes.number(f"{at}.times", action.times, bool(word), MAX_LAUNCHES)
            if times == 0:
                continue
            first = len(self.all)
            inner, count = self._actions(f"{at}.actions", action.actions)
            launches += times * count
            if times == 1:
                program += inner
            elif inner:
                program.append(Loop(times, inner, word))
                self.loops.append((first, len(self.all) - 1, times))
                if word:
                    self.words.append((word, len(self.all) - 1))
        return tuple(program), launches

    def _candidates(self, where: str, action: Candidates) -> tuple[Program, int]:
        """The actions of the alternative that was chosen."""
        count = len(action.alternatives)
        chosen = min(self._choices.get(where, 0), count - 1)
        first = len(self.all)
        inner, launches = self._actions(f"{where}[{chosen}]", action.alternatives[chosen])
        self.groups.append(CandidateGroup(where, count, first, len(self.all)))
        return inner, launches

    def _chosen(self, where: str, action: Choose) -> tuple[Program, int]:
        """The actions of the case that a size chooses; its buffers are padded."""
        values = [
            self._sizes.number(f"{where}.sizes[{at}]", size, 0, MAX_BYTES)
            for at, size in enumerate(action.sizes)
        ]
        if len(set(values)) != 1:
            shown = ", ".join(map(str, values))
            raise InvalidInput(f"{where}.sizes", f"the sizes differ: {shown}")
        for at, case in enumerate(action.cases):
            if values[0] <= case.up_to:
                for name, size in case.padded.items():
                    self._pad(f"{where}.cases[{at}].padded.{name}", name, size)
                return self._actions(f"{where}.cases[{at}].actions", case.actions)
        largest = action.cases[-1].up_to
        raise self._sizes.error(
            f"{where}.sizes",
            action.sizes[0],
            f"it comes to {values[0]}, at most {largest} is possible",
        )

    def _pad(self, where: str, name: str, size: Size) -> None:
        """Give a buffer more memory; what wrote it before did not fill that."""
        before = self._sizes.room(name)
        self._sizes.pad(where, name, size)
        if self._sizes.room(name) == before:
            return
        for index, draft in enumerate(self.all):
            if isinstance(draft, LaunchDraft | OperationDraft) and name in draft.access:
                self.all[index] = replace(draft, access=_partly(draft.access, name))

    def _draft(self, where: str, action: Action) -> Draft:
        if isinstance(action, ExecKernel):
            return self._launch(where, action)
        if isinstance(action, CopyBuffer):
            return self._copy(where, action)
        assert isinstance(action, ZeroBuffer), "others have drafts of their own"
        return ZeroDraft(action.buffer)

    def _operation(self, where: str, action: Gemm | Conv2d) -> list[OperationDraft]:
        given = {field: size for field, size, _, _ in sizes(action)}

        def fail(field: str, message: str) -> DandelionError:
            varying = next((s for s in given.values() if constant(s) is None), None)
            buffer = next((o.buffer for name, o in operands(action) if name == field), "")
            if varying is None and buffer:
                varying = Sizeof(buffer)
            at = given.get(field, Absolute(0)) if varying is None else varying
            return self._sizes.error(f"{where}.{field}", at, message)

        def evaluate(field: str, size: Size, smallest: int, largest: int) -> int:
            return self._sizes.number(f"{where}.{field}", size, smallest, largest)

        try:
            call = evaluated(action, evaluate)
        except Impossible as error:
            raise fail(error.field, str(error)) from None
        for field, message in misplaced(call, self._sizes.room):
            raise fail(field, message)
        is_filled = covers(call, self._sizes.room(call.out.buffer))
        lowered = self._lowering.lowered(call, len(self.all))
        for name, size_bytes in lowered.memory.items():
            self._sizes.reserve(name, size_bytes)
        made = []
        for step in lowered.steps:
            if isinstance(step, TemplateLaunch) and step.grid[0] > GRID_LIMITS[0]:
                raise fail("out", f"it takes {step.grid[0]} blocks, at most {GRID_LIMITS[0]}")
            made.append(OperationDraft(step, accesses(step, is_filled, call)))
        return made

    def _copy(self, where: str, action: CopyBuffer) -> CopyDraft:
        sizes = self._sizes.buffer(action.target), self._sizes.buffer(action.source)
        if sizes[0] != sizes[1]:
            message = f"'{action.target}' has {sizes[0]} bytes, '{action.source}' {sizes[1]}"
            raise InvalidInput(where, message, "only buffers of the same size can be copied")
        return CopyDraft(action.target, action.source)

    def _launch(self, where: str, action: ExecKernel) -> LaunchDraft:
        numbers = [
            size.value
            if type(size) is Absolute and smallest <= size.value <= largest
            else self._sizes.number(f"{where}.launch.{name}", size, smallest, largest)
            for name, size, smallest, largest in launch_numbers(action.launch)
        ]
        gx, gy, gz, bx, by, bz, shared = numbers
        if bx * by * bz > BLOCK_THREADS:
            message = f"a block of {bx * by * bz} threads, at most {BLOCK_THREADS} are possible"
            sizes = (action.launch.block_dim_x, action.launch.block_dim_y)
            free = next((s for s in sizes if constant(s) is None), action.launch.block_dim_z)
            raise self._sizes.error(f"{where}.launch", free, message)
        args = tuple(self._argument(where, i, a) for i, a in enumerate(action.args))
        accesses = self._accesses(action)
        return LaunchDraft(action.kernel, args, (gx, gy, gz), (bx, by, bz), shared, accesses)

    def _argument(
        self, where: str, index: int, argument: Argument
    ) -> PlaceDraft | OpenArgument | bytes:
        at = f"{where}.args[{index}]"
        if isinstance(argument, Ptr):
            return self._place(at, argument)
        if isinstance(argument, Raw):
            return argument.data
        if self._open and self._is_open(argument):
            return OpenArgument(self._reduced(at, argument), at)
        size = Absolute(0) if isinstance(argument.value, int | float) else argument.value
        value = (
            argument.value
            if isinstance(argument.value, int | float)
            else self._sizes.value(at, argument.value)
        )
        packed = pack(argument, value)
        if packed is None:
            message = f"it comes to {value}, which is no {argument.dtype.value}"
            raise self._sizes.error(at, size, message)
        return packed

    def _is_open(self, argument: Scalar) -> bool:
        """Tell whether an argument reads an integer that plans do not depend on."""
        if isinstance(argument.value, int | float):
            return False
        return not self._open.isdisjoint(integers_in(argument.value))

    def _reduced(self, where: str, argument: Scalar) -> Scalar:
        assert not isinstance(argument.value, int | float)
        size = self._sizes.reduced(where, argument.value, self._open)
        return Scalar(argument.dtype, size)

    def _place(self, where: str, argument: Ptr) -> PlaceDraft:
        if argument.offset == Absolute(0):
            return PlaceDraft(argument.buffer, 0)
        offset = self._sizes.number(f"{where}.offset", argument.offset, 0, MAX_BYTES)
        size_bytes = self._sizes.room(argument.buffer)
        if offset >= max(size_bytes, 1):  # that of an empty buffer may be passed, too
            message = f"byte {offset} is outside of '{argument.buffer}', which has {size_bytes}"
            raise self._sizes.error(f"{where}.offset", argument.offset, message)
        return PlaceDraft(argument.buffer, offset)

    def _accesses(self, action: ExecKernel) -> dict[str, Access]:
        """What a launch does with each buffer; BOTH where nothing is declared."""
        ways = self._access.get(action.kernel, ())
        found: dict[str, Access] = {}
        for index, argument in enumerate(action.args):
            if isinstance(argument, Ptr):
                way = ways[index] if index < len(ways) else Access.BOTH
                if way is Access.WRITE and argument.offset != Absolute(0):
                    way = Access.BOTH  # what lies before the place stays as it was
                same = found.setdefault(argument.buffer, way) is way
                found[argument.buffer] = way if same else Access.BOTH
        return found


def _partly(access: Mapping[str, Access], name: str) -> dict[str, Access]:
    """What a step does if it does not write all of a buffer."""
    way = access[name]
    return {**access, name: Access.BOTH if way is Access.WRITE else way}


def check_word(where: str, buffer: str, sizes: Sizes) -> None:
    """Check that a buffer has room for a word.

    Raises:
        InvalidInput: it has not.
    """
    size_bytes = sizes.buffer(buffer)
    if size_bytes < WORD_BYTES:
        message = f"'{buffer}' has {size_bytes} bytes, its word takes {WORD_BYTES}"
        raise InvalidInput(where, message)
