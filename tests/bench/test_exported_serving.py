"""Serving of exported models: torch's server joins and divides rightly, and answers are judged."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from dandelion.bench.experiments.exported_serving import TORCH_JOINED, _check, _compare
from dandelion.bench.records import Row
from dandelion.bench.systems.names import ASGI_TORCH, DANDELION
from dandelion.bench.systems.served_networks import network
from dandelion.bench.systems.torch_serving import Batches, joined, single

ANSWER = np.array([1, 2, 3], np.float32)


def test_torch_gives_each_request_its_answer() -> None:
    torch = pytest.importorskip("torch", reason="the extra 'export' is not installed")
    threads = torch.get_num_threads()
    try:
        served = network("images", "small")
        compute = Batches(served, tf32=False, sizes=(1, 4))
        bodies = [served.request(number).tobytes() for number in range(3)]
        with torch.inference_mode():
            wanted = [served.module(torch.from_numpy(served.request(n))).numpy() for n in range(3)]
        found = [np.frombuffer(answer, np.float32) for answer in compute(bodies)]
        np.testing.assert_allclose(np.stack(found), np.concatenate(wanted), rtol=1e-3, atol=1e-5)
        _, alone = asyncio.run(single(compute)("/", bodies[1]))
        np.testing.assert_allclose(np.frombuffer(alone, np.float32), found[1], rtol=1e-3, atol=1e-5)
    finally:
        torch.set_num_threads(threads)


def test_requests_that_wait_are_joined_and_divided() -> None:
    sizes: list[int] = []
    first = threading.Event()

    def compute(bodies: list[bytes]) -> list[bytes]:
        sizes.append(len(bodies))
        first.wait()
        return [body * 2 for body in bodies]

    async def main() -> list[tuple[int, bytes]]:
        reply = joined(compute, 4)
        calls = [asyncio.create_task(reply("/", b"%d" % number)) for number in range(10)]
        while not sizes:
            await asyncio.sleep(0)
        first.set()
        return await asyncio.gather(*calls)

    answers = asyncio.run(main())
    assert answers == [(200, b"%d" % number * 2) for number in range(10)]
    assert max(sizes) == 4
    assert sum(sizes) == 10


def test_other_answers_than_those_of_torch_are_refused() -> None:
    _check({ASGI_TORCH: ANSWER, DANDELION: ANSWER * np.float32(1.00001)}, 1e-4)
    _check({DANDELION: ANSWER}, 1e-4)
    for wrong in (ANSWER * np.float32(1.1), ANSWER * np.float32("nan")):
        with pytest.raises(ValueError, match="other answers"):
            _check({ASGI_TORCH: ANSWER, DANDELION: wrong}, 1e-4)


def test_ratios_are_those_to_torch_with_single_requests() -> None:
    rows = [
        Row(ASGI_TORCH, "one", {"achieved_per_s": 100.0, "p99": 10.0}),
        Row(TORCH_JOINED, "one", {}),
        Row(DANDELION, "one", {"achieved_per_s": 250.0, "p99": 5.0}),
    ]
    _compare(rows)
    assert rows[0].values["rate_ratio"] == 1
    assert rows[2].values["rate_ratio"] == 2.5
    assert rows[2].values["p99_ratio"] == 0.5
    assert "rate_ratio" not in rows[1].values
