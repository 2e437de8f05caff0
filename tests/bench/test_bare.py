"""Bare work: right on OpenCL, and on CUDA over a fake driver, where nothing may be left alive."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from dandelion.bench.systems.bare import (
    BareDevice,
    Workload,
    agrees,
    bare_device,
    example_body,
    inference_work,
    matmul_work,
    ticks_work,
)

from dandelion.errors import BackendUnavailable
from tests.fake_driver import build

ROOT = Path(__file__).resolve().parents[2]
WORKS = [matmul_work(), inference_work(2), inference_work(1, 3)]


@pytest.fixture(scope="module")
def device() -> Iterator[BareDevice]:
    with bare_device("opencl") as opened:
        yield opened


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_a_lane_gives_what_numpy_gives_again_and_again(device: BareDevice, work: Workload) -> None:
    with device.stream(work) as stream:
        for seed in (1, 2, 1):
            body = example_body(work, seed)
            assert agrees(work, body, stream.run(body))


def test_a_wrong_reply_does_not_agree() -> None:
    work = inference_work(1)
    reply = np.zeros(work.buffers["pooled"] // 4, np.float32).tobytes()
    assert not agrees(work, example_body(work), reply)
    assert not agrees(matmul_work(), example_body(matmul_work()), bytes(128 * 128 * 8))


def test_every_repetition_is_launched(device: BareDevice) -> None:
    assert len(inference_work(7).steps) * inference_work(7).times == 21
    with device.stream(ticks_work(7)) as stream:
        assert np.frombuffer(stream.run(bytes(8)), np.int64)[0] == 7
        assert np.frombuffer(stream.run(np.int64(5).tobytes()), np.int64)[0] == 12


def test_a_body_of_another_size_is_refused(device: BareDevice) -> None:
    with device.stream(matmul_work()) as stream, pytest.raises(ValueError, match="structure"):
        stream.run(b"too short")


def test_opencl_has_no_graphs(device: BareDevice) -> None:
    assert not device.graphs
    with pytest.raises(BackendUnavailable):
        device.stream(matmul_work(), graph=True)


ON_THE_FAKE = """
import sys
from pathlib import Path
from tests.fake_driver import build
from tests.fake_driver.fake import Fake
fake = Fake("cuda", build.load("cuda", Path(sys.argv[1])), Path(sys.argv[1]))
import numpy as np
from dandelion.bench.systems.bare import *
with bare_device("cuda") as device:
    for work in (matmul_work(), inference_work(2), inference_work(1, 2)):
        for graph in (False, True):
            with device.stream(work, graph=graph) as stream:
                for seed in (1, 2):
                    body = example_body(work, seed)
                    assert agrees(work, body, stream.run(body)), (work.name, graph)
    with device.stream(ticks_work(50), graph=True) as stream:
        before = fake.calls()
        assert np.frombuffer(stream.run(bytes(8)), np.int64)[0] == 50
        assert fake.calls() - before == 4, "copy in, one graph, copy out, one wait"
        stream.zero()
        stream.wait()
assert fake.live() == {}, fake.live()
print("ok")
"""


def _missing() -> str:
    if importlib.util.find_spec("cuda") is None or not importlib.util.find_spec("cuda.bindings"):
        return "cuda-bindings"
    return build.missing()


@pytest.mark.skipif(bool(_missing()), reason=f"without {_missing()}")
def test_cuda_over_a_fake_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = [sys.executable, "-W", "error", "-c", ON_THE_FAKE, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stderr
