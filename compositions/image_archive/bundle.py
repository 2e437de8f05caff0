"""Register and call `image_archive`; see `dandelion.compositions.Bundle`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from dandelion.data import Item, ItemSet, Value
from dandelion.documents import FunctionDocument, RegistrationDocument, python_function

from . import oracle

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

HERE = Path(__file__).parent
NAME = "image_archive"
DEFAULT_URL = "http://127.0.0.1:8000"
SIDE = 24


class Row(msgspec.Struct, frozen=True):
    """The result of one picture; see ``report.py``."""

    id: int
    name: str
    outcome: str
    versions: int
    bytes: int
    detail: str


class Report(msgspec.Struct, frozen=True):
    """The report: a row for each picture, ordered by id."""

    pictures: tuple[Row, ...]


def document(archive: str = DEFAULT_URL) -> RegistrationDocument:
    """Describe all functions and the composition.

    Args:
        archive: URL of the archive, without a slash at the end.
    """
    # Their names are long because functions of all compositions share one namespace.
    functions = (
        _function("classify_picture", "classify", ("picture",), ("kept", "rejected")),
        _request("notify_archive", "notify", "rejected", archive),
        _request("lookup_entries", "lookup", "pictures", archive),
        _function("existing_entry", "existing", ("headers", "body"), ("archived",)),
        _function("compress_versions", "compress", ("picture", "archived"), ("entry", "outcome")),
        _request("store_entries", "store", "entries", archive),
        _function("report_pictures", "report", ("rejected", "outcomes", "replies"), ("report",)),
    )
    text = (HERE / "image_archive.dandelion").read_text()
    return RegistrationDocument(functions=functions, compositions=(text,))


def _function(
    name: str, entry: str, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> FunctionDocument:
    """Describe a function in a file with the name of the entry."""
    return python_function(
        HERE / f"{entry}.py", name=name, entry=entry, inputs=inputs, outputs=outputs
    )


def _request(name: str, entry: str, input_set: str, archive: str) -> FunctionDocument:
    """Describe one of the functions that write requests to the archive."""
    return python_function(
        HERE / "requests.py",
        name=name,
        entry=entry,
        inputs=(input_set, "archive"),
        outputs=("requests",),
        static={"archive": {"archive": archive}},
    )


def pgm(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Write an 8-bit greyscale picture [height, width] as a binary PGM file."""
    height, width = pixels.shape
    return f"P5\n{width} {height}\n255\n".encode() + pixels.tobytes()


def pictures(seed: int, run: int = 1, count: int = 8) -> tuple[Item, ...]:
    """Make pictures of all kinds, in random order.

    A quarter each is dark, is bright, stays the same, and changes from run to run. The key of a
    picture is its id.

    Args:
        seed: of pixels and order.
        run: when the pictures were taken, from 1.
        count: how many.
    """
    rng = np.random.default_rng(seed)
    kinds = ("dark", "bright", "still", "moving")
    ramp = np.add.outer(np.arange(SIDE), np.arange(SIDE))
    made = []
    for index in range(count):
        kind = kinds[index % len(kinds)]
        noise = rng.integers(0, 20, (SIDE, SIDE))
        grey = {"dark": noise, "bright": 255 - noise}.get(kind, 90 + ramp + noise)
        if kind == "moving":
            grey = np.roll(grey, run, axis=1)
        id_ = 7 * index + 3
        made.append(Item(f"{kind}-{id_:03}.pgm", id_, pgm(grey.astype(np.uint8))))
    return tuple(made[int(place)] for place in rng.permutation(count))


def example_inputs(seed: int, run: int = 1) -> dict[str, Value]:
    """Make the pictures of one run."""
    return {"pictures": ItemSet("pictures", pictures(seed, run))}


def expected(inputs: Mapping[str, Value], archive: oracle.Model | None = None) -> Arrays:
    """Return `report`: [pictures, 4] int64, see `oracle.Model.run`.

    Args:
        inputs: of the invocation.
        archive: earlier content of the archive, empty by default; the pictures are added to it.
    """
    items: Iterable[Item] = inputs["pictures"]
    return {"report": (oracle.Model() if archive is None else archive).run(items)}


def read_report(outputs: Mapping[str, ItemSet | None]) -> Report:
    """Read the report of an invocation.

    Raises:
        InvalidInput: there are several.
        msgspec.ValidationError: there is none, or it is not one.
    """
    found = outputs["report"]
    return msgspec.json.decode(found.bytes() if found else b"null", type=Report)


def results(outputs: Mapping[str, ItemSet | None]) -> Arrays:
    """Read the report in the form of `expected`."""
    rows = [
        (row.id, oracle.OUTCOMES.index(row.outcome), row.versions, row.bytes)
        for row in read_report(outputs).pictures
    ]
    return {"report": np.array(rows, np.int64).reshape(-1, 4)}


def agrees(results: Arrays, expected: Arrays) -> bool:
    """Compare every number."""
    return np.array_equal(results["report"], expected["report"])
