"""The format of recordings.

A file is the line `MAGIC` and a `Recording` in MessagePack. All data is in one table by digest, so
what several calls read is stored once.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import msgspec

from dandelion.data import Bytes, Item, ItemSet, Origin
from dandelion.documents import RegistrationDocument
from dandelion.errors import ErrorRecord, InvalidInput
from dandelion.function import Digest, FunctionSpec, digest_of
from dandelion.memory.joining import joined

MAGIC = b"dandelion recording 1\n"


class RecordedItem(msgspec.Struct, frozen=True, array_like=True):
    """An item, with its data by digest; see `dandelion.data.Item`."""

    name: str
    key: int
    digest: Digest
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


class RecordedSet(msgspec.Struct, frozen=True, array_like=True):
    """A set; see `dandelion.data.ItemSet`."""

    name: str
    items: tuple[RecordedItem, ...]
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


RecordedSets: TypeAlias = tuple[RecordedSet | None, ...]


class RecordedCall(msgspec.Struct, frozen=True):
    """One call.

    Attributes:
        function: its name.
        application, number: which instance of which application it was.
        kind: of the function, ``compute`` or ``io``.
        inputs: by position; static sets are absent.
        outputs: by position; None if it failed.
        error: why it failed; None if it did not.
        engine: that ran it; empty if the result was kept from an earlier call.
        started_us, duration_us: in microseconds, from the start of the invocation.
        origin: the item that it was made for.
    """

    function: str
    application: str
    number: int
    kind: str
    inputs: RecordedSets
    outputs: RecordedSets | None
    error: ErrorRecord | None = None
    engine: str = ""
    started_us: int = 0
    duration_us: int = 0
    origin: Origin | None = None

    @property
    def label(self) -> str:
        """``application[number]``, for people."""
        return f"{self.application}[{self.number}]"

    def identity(self) -> bytes:
        """Name the call by its function and the content of its inputs."""
        return call_identity(self.function, self.inputs, self.origin)


class Recording(msgspec.Struct, frozen=True):
    """One invocation.

    Attributes:
        name: of the function or composition that was invoked.
        invocation: its id.
        made: when it was recorded, seconds since 1970.
        engine_version: of the engine that recorded it.
        document: all functions and compositions that it could use.
        platform: the platform's functions among them.
        input_names: names of the sets that it was invoked with.
        inputs: these sets, by position.
        outputs: its result; None if it failed.
        error: why it failed.
        calls: in the order of their ends.
        blobs: the data of items, by digest.
        omitted_calls: how many calls of compute functions are not in it, since it has a limit.
        partitioning: the node's setting for ``any`` shardings.
    """

    name: str
    invocation: str
    made: float
    engine_version: str
    document: RegistrationDocument
    platform: tuple[FunctionSpec, ...]
    input_names: tuple[str, ...]
    inputs: RecordedSets
    outputs: RecordedSets | None
    error: ErrorRecord | None
    calls: tuple[RecordedCall, ...]
    blobs: dict[Digest, memoryview]
    omitted_calls: int = 0
    partitioning: str = "auto"

    def encode(self) -> Bytes:
        """Write the file. Large data is copied once, without the interpreter's lock."""
        pieces: list[Bytes] = [MAGIC]
        text = bytearray([_SHORT_MAP_BYTE + len(self.__struct_fields__)])
        for name in self.__struct_fields__:
            text += _encoder.encode(name)
            if name != "blobs":
                text += _encoder.encode(getattr(self, name))
                continue
            text += _LONG.pack(_MAP_BYTE, len(self.blobs))
            for digest, blob in self.blobs.items():
                text += _encoder.encode(digest) + _LONG.pack(_BYTES_BYTE, len(blob))
                pieces += (bytes(text), blob)
                text.clear()
        return joined([*pieces, bytes(text)])

    def restored(self, recorded: RecordedSet | None) -> ItemSet | None:
        """Make a set of this recording, with its data.

        Raises:
            InvalidInput: its data is not in the recording, which is damaged.
        """
        if recorded is None:
            return None
        items = tuple([self._item(item) for item in recorded.items])
        return ItemSet(recorded.name, items, recorded.dtype, recorded.shape)

    def _item(self, recorded: RecordedItem) -> Item:
        data = self.blobs.get(recorded.digest)
        if data is None:
            message = f"the file is damaged: data of item '{recorded.name}' is missing"
            raise InvalidInput("recording", message)
        return Item(recorded.name, recorded.key, data, recorded.dtype, recorded.shape)


_SHORT_MAP_BYTE = 0x80  # MessagePack: a map; the number of its pairs, up to 15, is added
_LONG = struct.Struct(">BI")
_MAP_BYTE = 0xDF  # a map, whose number of pairs follows in four bytes
_BYTES_BYTE = 0xC6  # bytes, likewise
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Recording)
_identities = msgspec.msgpack.Encoder()


def decode_recording(data: Bytes) -> Recording:
    """Read a file.

    Raises:
        InvalidInput: it is not a recording, is damaged, or has another version of the format.
    """
    view = memoryview(data)
    if bytes(view[: len(MAGIC)]) != MAGIC:
        hint = "make one with 'dandelion record'"
        raise InvalidInput("recording", "this is not a recording of this version", hint)
    try:
        recording = _decoder.decode(view[len(MAGIC) :])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput("recording", f"the file is damaged: {error}") from None
    if not _is_whole(recording):
        raise InvalidInput("recording", "the file is damaged: a call lacks sets, or has others")
    for digest, blob in recording.blobs.items():
        if digest_of(blob) != digest:
            raise InvalidInput("recording", f"the file is damaged: data of {digest[:12]} differs")
    return recording


def _is_whole(recording: Recording) -> bool:
    """Tell whether the invocation and each call has a value for each of its sets."""
    if len(recording.input_names) != len(recording.inputs):
        return False
    functions = {f.name: (len(f.inputs), len(f.outputs)) for f in recording.document.functions}
    functions |= {f.name: (len(f.inputs), len(f.outputs)) for f in recording.platform}
    for call in recording.calls:
        sets = functions.get(call.function)
        if sets is None:
            continue
        if len(call.inputs) != sets[0] or len(call.outputs or sets[1] * (None,)) != sets[1]:
            return False
    return True


def recorded_set(
    given: ItemSet | None, blobs: dict[Digest, memoryview] | None = None
) -> RecordedSet | None:
    """Write a set down; its data is added to `blobs`, if they are given."""
    if given is None:
        return None
    items = []
    for item in given.items:
        digest = digest_of(item.data)
        if blobs is not None and digest not in blobs:
            blobs[digest] = memoryview(item.data).cast("B")
        items.append(RecordedItem(item.name, item.key, digest, item.dtype, item.shape))
    return RecordedSet(given.name, tuple(items), given.dtype, given.shape)


def call_identity(function: str, inputs: RecordedSets, origin: Origin | None) -> bytes:
    """Name a call by its function and the content of its inputs."""
    return _identities.encode((function, origin, inputs))
