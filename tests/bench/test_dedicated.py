"""The dedicated server over HTTP: right replies, several at once, errors that tell why."""

from __future__ import annotations

import http.client
import importlib.util
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from dandelion.bench.processes import ServerFailed, ServerProcess
from dandelion.bench.systems.bare import Workload, agrees, example_body, inference_work, matmul_work
from dandelion.bench.systems.dedicated import DedicatedOrder, dedicated_server

from tests.fake_driver import build

WORKS = (matmul_work(), inference_work(2))


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with dedicated_server("opencl", WORKS) as started:
        yield started


def post(server: ServerProcess, path: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_requests_at_once_get_their_own_results(server: ServerProcess, work: Workload) -> None:
    def ask(seed: int) -> bool:
        body = example_body(work, seed)
        status, reply = post(server, f"/{work.name}", body)
        return status == 200 and agrees(work, body, reply)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(ask, range(12)))


def test_a_bad_request_gets_an_error_and_the_next_is_served(server: ServerProcess) -> None:
    assert post(server, "/nothing", b"")[0] == 404
    for _ in range(4):  # on every stream
        assert post(server, "/matmul", b"too short")[0] == 400
    body = example_body(WORKS[0])
    assert agrees(WORKS[0], body, post(server, "/matmul", body)[1])


def test_a_server_without_graphs_says_so() -> None:
    with pytest.raises(ServerFailed, match="no graphs"):
        dedicated_server("opencl", WORKS[:1], graph=True)


ON_THE_FAKE = """
import sys
from pathlib import Path
from tests.fake_driver import build
from tests.fake_driver.fake import Fake
fake = Fake("cuda", build.load("cuda", Path(sys.argv[1])), Path(sys.argv[1]))
from dandelion.bench.systems.dedicated import main
main()
"""


def _missing() -> str:
    if importlib.util.find_spec("cuda") is None or not importlib.util.find_spec("cuda.bindings"):
        return "cuda-bindings"
    return build.missing()


@pytest.mark.skipif(bool(_missing()), reason=f"without {_missing()}")
@pytest.mark.parametrize("graph", [False, True])
def test_cuda_over_a_fake_driver(tmp_path: Path, graph: bool) -> None:
    order = msgspec.msgpack.encode(DedicatedOrder("cuda", WORKS, graph, lanes=1))
    command = [sys.executable, "-c", ON_THE_FAKE, str(tmp_path)]
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with ServerProcess("fake", command, standard_input=order, environment=cache) as server:
        for work in WORKS:
            for seed in (1, 2):
                body = example_body(work, seed)
                status, reply = post(server, f"/{work.name}", body)
                assert status == 200, reply
                assert agrees(work, body, reply)
