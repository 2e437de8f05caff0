"""The flagship composition: its data, its sandboxed functions, the whole, its demonstration."""

from __future__ import annotations

import json
import random
import struct
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dandelion.compositions as compositions
import numpy as np
import numpy.typing as npt
import pytest
from dandelion.compositions.digits import bundle as digits
from dandelion.compositions.digits import decode, demo, png, show, tally
from dandelion.compositions.digits import oracle as digit_oracle
from dandelion.compositions.digits import train as training
from dandelion.compositions.digits.described import digits as described
from dandelion.compositions.digits.file_server import serve_files
from dandelion.compositions.digits.node_process import node_process
from dandelion.compositions.digits.trace import engines_of, read_trace, rows

from dandelion.data import Item, ItemSet
from dandelion.errors import ApplicationFailed, Raised
from dandelion.frontend.client import Client
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.set_values import item_set

FOLDERS = Path(compositions.__file__).parent
Array = npt.NDArray[Any]


# --- digits: data, decoder, report ----------------------------------------------------------


def test_recorded_accuracy_is_that_of_the_weights() -> None:
    held_out = digits.held_out()
    images = digit_oracle.pixels_to_images(held_out.pixels)
    guesses = digit_oracle.logits(images, digits.weights()).argmax(axis=1)
    assert len(guesses) == 200
    accuracy = float((guesses == held_out.labels).mean())
    assert accuracy >= 0.97
    assert accuracy == digits.recorded_accuracy()


def test_gradients_are_the_slope_of_the_loss() -> None:
    rng = np.random.default_rng(1)
    candidate = training.Candidate(2, 4)
    weights = training.initial(candidate, rng)
    images, labels = rng.random((6, 8, 8)), rng.integers(0, 10, 6).astype(np.uint8)

    def loss() -> float:
        chances = digit_oracle.softmax(digit_oracle.logits(images, weights))
        return float(-np.log(chances[np.arange(6), labels]).mean())

    slopes = training.gradients(images, labels, weights)
    for name, tensor in weights.items():
        place = tuple(rng.integers(0, size) for size in tensor.shape)
        before = tensor[place]
        tensor[place] = before + 1e-6
        above = loss()
        tensor[place] = before - 1e-6
        slope = (above - loss()) / 2e-6
        tensor[place] = before
        assert slopes[name][place] == pytest.approx(slope, abs=1e-7)


def test_split_is_disjoint_and_balanced() -> None:
    labels = np.repeat(np.arange(10, dtype=np.uint8), 180)[:1797]
    pixels = np.arange(1797, dtype=np.uint16).view(np.uint8).reshape(1797, 2)
    parts = training.split(training.Part(pixels, labels), np.random.default_rng(0))
    assert [len(p.labels) for p in parts] == [1297, 300, 200]
    seen = np.concatenate([p.pixels.reshape(-1).view(np.uint16) for p in parts])
    assert sorted(seen.tolist()) == list(range(1797))
    assert max(abs(np.bincount(parts[2].labels) - 20)) <= 1


def page(data: bytes, name: str = "x.png") -> ItemSet:
    return ItemSet("page", (Item(name, 0, data),))


def test_decode_gives_the_pixels_back_under_the_same_name() -> None:
    for name, data in list(digits.png_files().items())[:20]:
        ((made, values),) = decode.decode(page(data, name))["image"].items()
        assert made == name
        pixels = digits.held_out().pixels[digits.index_of(name)]
        wanted = digit_oracle.pixels_to_images(pixels)
        assert np.array_equal(np.frombuffer(values, np.float32).reshape(8, 8), wanted)


def filtered(pixels: Array, kinds: Sequence[int]) -> bytes:
    """Filter rows as a PNG writer does, straight from the definition of the five filters."""
    rows = bytearray()
    wide = np.pad(pixels.astype(int), ((1, 0), (1, 0)))
    for y, kind in enumerate(kinds, start=1):
        rows.append(kind)
        for x in range(1, wide.shape[1]):
            left, up, corner = wide[y, x - 1], wide[y - 1, x], wide[y - 1, x - 1]
            guess = left + up - corner
            paeth = min((left, up, corner), key=lambda value: abs(guess - value))
            rows.append((wide[y, x] - (0, left, up, (left + up) // 2, paeth)[kind]) % 256)
    return bytes(rows)


def assemble(width: int, height: int, rows: bytes, **header: int) -> bytes:
    fields = {"depth": 8, "colour": 0, "compression": 0, "filter": 0, "interlace": 0} | header
    head = struct.pack(">2I5B", width, height, *fields.values())
    data = zlib.compress(rows)
    pieces = [(b"IHDR", head), (b"tEXt", b"a\0b"), (b"IDAT", data[:9]), (b"IDAT", data[9:])]
    return png.SIGNATURE + b"".join(png.chunk(*p) for p in [*pieces, (b"IEND", b"")])


@pytest.mark.parametrize("kind", range(5))
def test_decoder_undoes_each_row_filter(kind: int) -> None:
    pixels = np.random.default_rng(kind).integers(0, 256, (9, 13), np.uint8)
    kinds = [0, *[kind] * 4, 1, 4, 2, 3]
    width, height, grey = decode.grey_pixels(assemble(13, 9, filtered(pixels, kinds)))
    assert (width, height, grey) == (13, 9, pixels.tobytes())


def test_decoder_agrees_with_pillow(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = (np.add.outer(np.arange(40), np.arange(30)) * 3 % 256).astype(np.uint8)
    path = tmp_path / "x.png"
    image.fromarray(pixels).save(path)  # Pillow chooses row filters of its own
    assert decode.grey_pixels(path.read_bytes()) == (30, 40, pixels.tobytes())
    path.write_bytes(png.encode(pixels))
    with image.open(path) as read:
        assert np.array_equal(np.asarray(read), pixels)


def test_decoder_refuses_other_files() -> None:
    good = assemble(8, 8, bytes(72))
    bad = {
        "not a PNG": b"<html>not found</html>",
        "ends": good[:-12],
        "within a chunk": good[:-5],
        "damaged": good.replace(b"a\0b", b"a\0c"),
        "8-bit": assemble(8, 8, bytes(72), colour=2),
        "interlacing": assemble(8, 8, bytes(72), interlace=1),
        "outside": assemble(0, 8, bytes(72)),
        "size in the header": assemble(8, 8, bytes(71)),
        "the header": assemble(8, 8, bytes(73)),
        "filter 5": assemble(8, 8, bytes([5]) + bytes(71)),
        "the network takes": assemble(9, 8, bytes(80)),
        "starts with IHDR": png.SIGNATURE + png.chunk(b"IEND", b""),
        "PLTE": png.encode(np.zeros((8, 8), np.uint8))[:33] + png.chunk(b"PLTE", b""),
    }
    for words, data in bad.items():
        with pytest.raises(ValueError, match=words):
            decode.decode(page(data))


def test_decoder_survives_noise() -> None:
    rng = random.Random(7)
    good = assemble(8, 8, bytes(72))
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = data[: rng.randint(0, len(data))]
        with pytest.raises((ValueError, zlib.error)):
            decode.decode(page(bytes(data)))


def test_a_small_file_cannot_grow() -> None:
    bomb = zlib.compress(bytes(50_000_000))
    head = struct.pack(">2I5B", 8, 8, 8, 0, 0, 0, 0)
    pieces = [(b"IHDR", head), (b"IDAT", bomb), (b"IEND", b"")]
    data = png.SIGNATURE + b"".join(png.chunk(*p) for p in pieces)
    with pytest.raises(ValueError, match="size in the header"):
        decode.grey_pixels(data)


def scores_of(*digit_of: int) -> ItemSet:
    rows = np.zeros((len(digit_of), 10), np.float32)
    rows[np.arange(len(digit_of)), digit_of] = 2.5
    names = [digits.file_name(i) for i in range(len(digit_of))]
    made = item_set("logits", dict(zip(names, rows, strict=True)))
    assert made is not None
    return made


def test_tally_reports_all_items_by_name() -> None:
    scores = scores_of(7, 1, 7)
    shuffled = ItemSet("logits", scores.items[::-1])
    made = item_set("report", tally.tally(shuffled)["report"])
    report = digits.read_report({"report": made})
    assert [p.digit for p in report.predictions] == [7, 1, 7]
    assert [p.name for p in report.predictions] == sorted(p.name for p in report.predictions)
    assert report.digits == {str(d): {7: 2, 1: 1}.get(d, 0) for d in range(10)}
    wanted = digit_oracle.softmax(scores[0].numpy("float32")).max()
    assert report.predictions[0].confidence == pytest.approx(wanted, rel=1e-6)


def test_tally_refuses_scores_that_are_no_numbers() -> None:
    with pytest.raises(ValueError, match="not finite"):
        tally.tally(item_set("logits", np.full(10, np.nan, np.float32)))


def test_files_are_served() -> None:
    with serve_files({"a.png": b"abc"}) as url:
        with urllib.request.urlopen(f"{url}/a.png", timeout=20) as reply:
            assert (reply.status, reply.read()) == (200, b"abc")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{url}/b.png", timeout=20)
        caught.value.close()
        assert caught.value.code == 404
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/a.png", timeout=20)


def test_weights_file_states_how_it_came_about() -> None:
    record = json.loads((FOLDERS / "digits" / "data" / "weights.json").read_text())
    assert record["images"] == {"training": 1297, "validation": 300, "held_out": 200}
    assert {n: tuple(t["shape"]) for n, t in record["tensors"].items()} == {
        n: t.shape for n, t in digits.weights().items()
    }


# --- through a node -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = Settings(
        backends=("process", "http", "opencl"),
        options={"http": {"allow": "127.0.0.1"}, "opencl": {"pool_bytes": "64M", "threads": "1"}},
        engines={"process": 1},
        arena_bytes=128 * 2**20,
    )
    with Node(settings) as started:
        assert started.wait_ready(60)
        broken = [e.reason for e in started.engines() if e.backend == "opencl" and e.reason]
        if broken:
            pytest.skip(broken[0])
        yield started


def test_digits_from_files_to_report(node: Node) -> None:
    node.register(digits.document())
    with serve_files(digits.png_files()) as url:
        inputs = digits.example_inputs(5, url, count=12)
        outputs = node.invoke("digits", **inputs)
    assert digits.agrees(digits.results(outputs), digits.expected(inputs))


def test_the_described_composition_is_enough(node: Node) -> None:
    registered = node.register(described)
    assert [r.name for r in registered] == ["decode", "classify", "tally", "digits"]
    with serve_files(digits.png_files()) as url:
        inputs = digits.example_inputs(6, url, count=5)
        outputs = node.invoke("digits", **inputs)
    assert digits.agrees(digits.results(outputs), digits.expected(inputs))


def test_a_missing_file_is_decodes_failure(node: Node) -> None:
    node.register(digits.document())
    with serve_files({}) as url, pytest.raises(ApplicationFailed) as caught:
        node.invoke("digits", requests=[digits.request("digit-000.png", url)])
    assert caught.value.application == "decode"
    assert isinstance(caught.value.__cause__, Raised)
    assert "not a PNG file" in caught.value.__cause__.exception


# --- the demonstration ----------------------------------------------------------------------


def run_demo(node: Node, folder: Path, count: int = 5) -> int:
    with BackgroundServer(node) as server:
        return demo.main(["--url", server.url, "--count", str(count), "--out", str(folder)])


def test_demonstration_shows_and_leaves_its_files(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_demo(node, tmp_path) == 0
    shown = capsys.readouterr().out
    assert "5 of 5 right" in shown
    assert "FAIL" not in shown
    assert (tmp_path / "digits.svg").read_text().startswith("<svg")
    trace = read_trace((tmp_path / "digits.trace.json").read_bytes())
    assert engines_of(trace, "classify")[0].startswith("opencl:")
    counts = {(row.name, row.track): row.count for row in rows(trace)}
    assert counts["decode", "process"] == counts["classify", "opencl"] == 5
    assert counts["tally", "process"] == 1


def test_demonstration_fails_if_answers_are_wrong(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(digits.png_files())
    swapped = dict(zip(names, reversed(digits.png_files().values()), strict=True))
    monkeypatch.setattr(digits, "png_files", lambda: swapped)
    assert run_demo(node, tmp_path) == 1
    assert "FAIL every answer equals numpy's" in capsys.readouterr().out


def test_demonstration_fails_if_a_function_fails(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits, "png_files", dict)
    assert run_demo(node, tmp_path) == 1
    assert "ApplicationFailed" in capsys.readouterr().out


def test_demonstration_refuses_counts_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    for count in ("0", "201", "x"):
        with pytest.raises(SystemExit):
            demo.main(["--count", count])
    assert "1..200" in capsys.readouterr().err


def test_node_process_ends_with_its_context() -> None:
    with node_process("null") as url, Client(url) as client:
        assert client.ready(60)
        assert {engine.backend for engine in client.engines()} == {"process", "http", "null"}
    with Client(url) as client:
        assert not client.ready()


def test_picture_of_an_image() -> None:
    pixels = np.array([[0, 255], [128, 0]], np.uint8)
    assert show.picture(pixels) == "  ██\n▒▒"
