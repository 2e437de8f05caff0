"""Compositions with native and WebAssembly code: equal to their oracles, and to each other."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import dandelion.compositions as compositions
import numpy as np
import pytest
from dandelion.compositions.compression import bundle as compression
from dandelion.compositions.compression import compress, oracle
from dandelion.compositions.matmul import bundle as matmul

from dandelion.data import Item, ItemSet
from dandelion.driver import Engine, load_driver
from dandelion.errors import BackendUnavailable, Exited
from dandelion.function import Function
from dandelion.node import Node, Settings

from .native_functions import MIB, compiler, engine_of, first, function, run

FOLDER = Path(compositions.__file__).parent
SHAPES = [(1, 1, 3), (1, 1, 4), (1, 300, 3), (300, 1, 4), (7, 5, 4), (64, 61, 3), (90, 301, 4)]


@pytest.fixture(scope="module", params=["elf", "wasm"])
def compiled(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, str]]:
    backend = {"elf": "native", "wasm": "wasm"}[request.param]
    try:
        load_driver(backend).factory().probe()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    with engine_of(backend) as engine:
        yield engine, request.param


@pytest.fixture(scope="module")
def native() -> Iterator[Engine]:
    try:
        load_driver("native").factory().probe()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    with engine_of("native") as engine:
        yield engine


def compressor(kind: str, data: bytes | None = None) -> Function:
    main = data or (FOLDER / "compression" / f"compress.{kind}").read_bytes()
    return function(main, kind=kind, inputs=("qoi",), outputs=("png",), memory_bytes=64 * MIB)


def images(seed: int) -> ItemSet:
    rng = np.random.default_rng(seed)
    drawn = [oracle.to_qoi(oracle.draw(rng, w, h, c)) for h, w, c in SHAPES]
    return ItemSet("qoi", tuple(Item(f"image {n}", n, data) for n, data in enumerate(drawn)))


def test_the_oracle_reads_what_it_writes() -> None:
    rng = np.random.default_rng(0)
    tags = set()
    for height, width, channels in SHAPES:
        image = oracle.draw(rng, width, height, channels)
        data = oracle.to_qoi(image)
        assert np.array_equal(oracle.from_qoi(data), image)
        tags |= {tag if tag >= 0xFE else tag >> 6 for tag in data[14:-8]}
    assert tags >= {0, 1, 2, 3, 0xFE, 0xFF}


def test_python_gives_png_files_that_others_read() -> None:
    pillow = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(1)
    for height, width, channels in SHAPES:
        image = oracle.draw(rng, width, height, channels)
        png = compress.to_png(oracle.to_qoi(image))
        assert np.array_equal(oracle.from_png(png), image)
        with pillow.open(io.BytesIO(png)) as opened:
            assert np.array_equal(np.asarray(opened), image)


def test_images_get_smaller() -> None:
    image = oracle.draw(np.random.default_rng(2), 256, 64, 3)
    assert len(compress.to_png(oracle.to_qoi(image))) < image.nbytes / 2


def test_three_programs_give_the_same_bytes(compiled: tuple[Engine, str]) -> None:
    engine, kind = compiled
    for seed in (1, 2):
        qoi = images(seed)
        got = first(run(engine, compressor(kind), qoi))
        wanted = compress.compress(qoi)["png"]
        assert [(i.name, i.key, i.bytes()) for i in got] == [
            (i.name, i.key, i.bytes()) for i in wanted
        ]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", 2),
        (b"qoif", 2),
        (b"qoif" + bytes(10), 2),
        (b"qoif\0\0\0\1\0\0\0\1\5\0", 2),
        (b"qoif\0\0\0\2\0\0\0\2\3\0\xfe\1", 3),
        (b"qoif\0\1\0\0\0\0\0\1\3\0", 4),
    ],
)
def test_what_is_no_image(compiled: tuple[Engine, str], data: bytes, code: int) -> None:
    engine, kind = compiled
    with pytest.raises(Exited) as caught:
        run(engine, compressor(kind), data)
    assert caught.value.code == code
    with pytest.raises(ValueError, match="image"):
        compress.to_png(data)


def test_random_bytes_are_no_danger(compiled: tuple[Engine, str]) -> None:
    engine, kind = compiled
    rng = np.random.default_rng(4)
    head = b"qoif\0\0\0\x20\0\0\0\x20\4\0"
    for _ in range(30):
        data = head + rng.bytes(int(rng.integers(0, 6000)))
        try:
            wanted = compress.to_png(data)
        except ValueError:
            with pytest.raises(Exited):
                run(engine, compressor(kind), data)
        else:
            assert first(run(engine, compressor(kind), data)).bytes() == wanted


def test_the_stored_executables_match_their_sources(tmp_path: Path) -> None:
    """Compilers differ in bytes, so a new build is compared by its results."""
    compiler()
    wasm = shutil.which("clang") and shutil.which("wasm-ld")
    environment = dict(os.environ) | ({} if wasm else {"NO_WASM": "1"})
    for script in ("compression/build.sh", "matmul/native/build.sh"):
        command = [str(FOLDER / script), str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    qoi = images(5)
    wanted = [i.bytes() for i in compress.compress(qoi)["png"]]
    with engine_of("native") as engine:
        built = compressor("elf", (tmp_path / "compress.elf").read_bytes())
        assert [i.bytes() for i in first(run(engine, built, qoi))] == wanted
        a = np.arange(49, dtype=np.int64).reshape(7, 7)
        multiply = function((tmp_path / "matmul.elf").read_bytes(), inputs=("cfg", "A"))
        result = first(run(engine, multiply, None, a)).numpy("int64", (7, 7))
        assert np.array_equal(result, a @ a.T)
    if wasm:
        with engine_of("wasm") as engine:
            built = compressor("wasm", (tmp_path / "compress.wasm").read_bytes())
            assert [i.bytes() for i in first(run(engine, built, qoi))] == wanted


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = Settings(
        backends=("native", "wasm", "process", "opencl"),
        options={"opencl": {"pool_bytes": "16M", "threads": "1"}},
        engines={"native": 1, "wasm": 1, "process": 1},
        arena_bytes=64 * MIB,
    )
    with Node(settings) as started:
        assert started.wait_ready(60)
        yield started


@pytest.mark.parametrize("formats", [("elf",), ("wasm",), ("python",), ("elf", "wasm", "python")])
def test_compression_through_a_node(node: Node, formats: tuple[str, ...]) -> None:
    running = {"elf": "native", "wasm": "wasm", "python": "process"}
    broken = [e.reason for e in node.engines() if e.reason and e.backend == running[formats[0]]]
    if broken:
        pytest.skip(broken[0])
    node.register(compression.document(formats))
    inputs = compression.example_inputs(7)
    results = compression.results(node.invoke("compression", **inputs))
    assert compression.agrees(results, compression.expected(inputs))


def test_matmul_on_a_cpu_beside_its_blueprint(node: Node) -> None:
    node.register(matmul.document(native=True))
    for seed in (1, 2, 3):
        inputs = matmul.example_inputs(seed)
        results = matmul.results(node.invoke("matmul", **inputs))
        assert matmul.agrees(results, matmul.expected(inputs))


@pytest.mark.parametrize("side", [1, 2, 31, 32, 33, 100])
def test_native_matmul_equals_numpy(native: Engine, side: int) -> None:
    a = np.random.default_rng(side).integers(-(2**63), 2**63 - 1, (side, side), np.int64)
    fn = function((FOLDER / "matmul" / "native" / "matmul.elf").read_bytes(), inputs=("cfg", "A"))
    item = first(run(native, fn, {"blocks": b"\4"}, a)).only()
    assert item.name == "blocks"
    assert np.array_equal(item.numpy("int64", (side, side)), a @ a.T)
    with pytest.raises(Exited):
        run(native, fn, None, a.tobytes() + b"8 bytes.")
