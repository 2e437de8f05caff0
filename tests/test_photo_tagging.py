"""The composition `photo_tagging`: a function exported from torch, run without torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from dandelion.compositions.digits.file_server import serve_files
from dandelion.compositions.photo_tagging import bundle, decode_photo, pictures

from dandelion.blueprint import Access, parse_blueprint
from dandelion.data import Item, ItemSet
from dandelion.documents import content
from dandelion.node import Node, Settings
from dandelion.set_values import item_set

ERROR = 1e-4
TAG_LIMIT_BYTES = 200_000


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    backends = ("null", "process", "http", "cuda|hip|opencl")
    options = {"http": {"allow": "127.0.0.1"}}
    settings = Settings(backends=backends, options=options, arena_bytes=64 << 20)
    with Node(settings) as made:
        made.register(bundle.document())
        yield made


def test_scores_are_those_of_torch(node: Node) -> None:
    drawn, _ = pictures.draw(bundle.EXAMPLE_COUNT, bundle.EXAMPLE_SEED)
    inputs = pictures.network_input(drawn)
    expected = bundle.expected_scores()
    for index in range(0, bundle.EXAMPLE_COUNT, 6):
        image = item_set("image", inputs[index : index + 1])
        found = node.invoke_sets("tag", {"image": image}).sets["scores"]
        assert found is not None
        difference = np.abs(found.numpy() - expected[index])
        assert difference.max() <= ERROR * np.abs(expected[index]).max()


def test_photos_are_fetched_and_tagged(node: Node) -> None:
    with serve_files(bundle.png_files()) as url:
        inputs = bundle.example_inputs(3, url, 12)
        results = bundle.results(node.invoke("photo_tagging", **inputs))
    assert len(results["report"]) == 12
    assert bundle.agrees(results, bundle.expected(inputs))


def test_the_stored_scores_are_right() -> None:
    _, labels = pictures.draw(bundle.EXAMPLE_COUNT, bundle.EXAMPLE_SEED)
    assert (bundle.expected_scores().argmax(1) == labels).mean() > 0.95


def test_the_document_is_small_and_readable() -> None:
    path = bundle.HERE / "data" / "tag.json"
    assert path.stat().st_size < TAG_LIMIT_BYTES
    (code,) = bundle.tag().code
    config = parse_blueprint(content(code.main).bytes())
    assert config.blueprint.weights == ("weights_float32",)
    for kernel in config.kernels:
        assert kernel.access[0] is Access.WRITE
        assert Access.BOTH not in kernel.access


def test_pictures_are_decoded() -> None:
    drawn, _ = pictures.draw(3, 1)
    for pixels in drawn:
        assert decode_photo.decoded(pictures.encode(pixels)) == pixels.tobytes()


def test_all_row_filters() -> None:
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 256, (decode_photo.SIDE, 1 + 3 * decode_photo.SIDE), np.uint8)
    rows[:, 0] = np.arange(decode_photo.SIDE) % 5
    found = np.frombuffer(decode_photo.unfiltered(rows.tobytes()), np.uint8)
    assert found.reshape(-1, 3 * decode_photo.SIDE)[0].tolist() == rows[0, 1:].tolist()
    with pytest.raises(ValueError, match="row filter 7"):
        decode_photo.unfiltered(bytes([7]) + rows.tobytes()[1:])


@pytest.mark.parametrize("damage", [b"GIF89a", b"", b"cut", b"chunk"])
def test_damaged_files_are_refused(damage: bytes) -> None:
    file = pictures.encode(pictures.draw(1, 1)[0][0])
    broken = {b"cut": file[:-20], b"chunk": file[:40] + b"x" + file[41:]}.get(damage, damage)
    page = ItemSet("page", (Item("a.png", data=broken),))
    with pytest.raises(ValueError, match=r"PNG|damaged"):
        decode_photo.decode_photo(page)
