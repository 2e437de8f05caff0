"""The gRPC frontend as a process: crashes, limits, tokens and TLS."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from dandelion.errors import BackendUnavailable, InvalidInput
from dandelion.frontend_process import supervisor as supervisor_module
from dandelion.frontend_process.grpc_frontend.server import SERVICE
from dandelion.testing import wait_until
from dandelion.tokens.file import write_tokens
from tests.node.kserve_requests import INFER, ONE, given, infer, request_of

from .frontend_processes import Processes
from .guarded import RECORDS, token
from .kserve_served import KSERVE, KServed, kserved


@pytest.fixture(scope="module")
def served() -> Iterator[KServed]:
    with kserved(1, with_grpc=True) as opened:
        yield opened


@pytest.fixture
def client(served: KServed) -> Iterator[triton.InferenceServerClient]:
    with contextlib.closing(triton.InferenceServerClient(served.grpc_address)) as opened:
        yield opened
    served.check_no_leak()


@pytest.fixture
def channel(served: KServed) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.grpc_address) as opened:
        yield opened
    served.check_no_leak()


def grpc_pid(processes: Processes) -> int:
    place = processes.supervisor._places[-1]
    assert place.program == supervisor_module.GRPC
    return place.process.pid if place.process is not None and place.is_ready else 0


def test_a_crash_loses_its_own_calls_only() -> None:
    with kserved(1, with_grpc=True) as served:
        assert served.processes is not None
        with contextlib.closing(triton.InferenceServerClient(served.grpc_address)) as client:
            calls: queue.Queue[Any] = queue.Queue()
            tensor = given("a", np.zeros(100_000, np.int8), "INT8")
            client.async_infer("wait", [tensor], lambda result, error: calls.put(error))
            wait_until(lambda: served.node.info().running == 1)
            killed = grpc_pid(served.processes)
            os.kill(killed, signal.SIGKILL)
            assert "UNAVAILABLE" in str(calls.get(timeout=20).status())
            assert served.ask("GET", "/v2/health/live")[0] == 200
            assert served.processes is not None
            wait_until(lambda: grpc_pid(served.processes) not in (0, killed))
        with contextlib.closing(triton.InferenceServerClient(served.grpc_address)) as client:
            assert client.infer("echo", [given("a", ONE, "INT8")]).as_numpy("b").tolist() == [1]
        wait_until(lambda: served.node.info().running == 0)
        served.check_no_leak()


def test_calls_end_before_the_server_does() -> None:
    with kserved(1, with_grpc=True) as served:
        assert served.processes is not None
        client = triton.InferenceServerClient(served.grpc_address)
        answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("wait", [given("a", ONE, "INT8")])
        wait_until(lambda: served.node.info().running == 1)
        served.processes.loop.call_soon_threadsafe(served.processes.left.set)
        served.held.let_go()
        result, error = answers.get(timeout=20)
        assert error is None
        assert result.as_numpy("b").tolist() == [1]
    client.close()


def test_the_number_of_calls_is_limited() -> None:
    with (
        kserved(1, with_grpc=True, grpc_max_calls=2) as served,
        grpc.insecure_channel(served.grpc_address) as channel,
    ):
        call = channel.unary_unary(INFER)
        request = request_of("INT8", [1], [b"1"])
        request.model_name = "wait"
        calls = [call.future(request.SerializeToString()) for _ in range(2)]
        wait_until(lambda: served.node.info().running == 2)
        with pytest.raises(grpc.RpcError) as caught:
            infer(channel, request_of("INT8", [1], [b"1"]))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        served.held.let_go()
        assert all(one.result(timeout=20) for one in calls)


def test_tokens_of_two_tenants(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    write_tokens(path, RECORDS)
    with kserved(1, with_grpc=True, tokens=str(path)) as served:
        served.node.register(
            "function echo(a) => (b); composition plan(a) => (b) { echo(a = all a) => (b = b); }"
        )
        with contextlib.closing(triton.InferenceServerClient(served.grpc_address)) as client:
            assert client.is_server_live()

            def ask(name: str, caller: str | None) -> str:
                headers = {"authorization": f"Bearer {token(caller)}"} if caller else {}
                try:
                    client.infer(name, [given("a", ONE, "INT8")], headers=headers)
                except InferenceServerException as error:
                    return str(error.status()).removeprefix("StatusCode.")
                return "OK"

            assert ask("plan", "default") == "OK"
            assert ask("plan", "acme") == "NOT_FOUND"
            for caller in (None, "unknown", "expired"):
                assert ask("plan", caller) == "UNAUTHENTICATED"
            assert ask("plan", "only-read") == "PERMISSION_DENIED"
            slow = [ask("nothing", "slow") for _ in range(4)]
            assert slow == ["NOT_FOUND"] * 3 + ["RESOURCE_EXHAUSTED"]
            with pytest.raises(InferenceServerException, match="token"):
                client.get_model_repository_index()
            too_large = np.zeros(2 * KSERVE.body_limit_bytes, np.int8)
            with pytest.raises(InferenceServerException, match="token"):  # it is not read
                client.infer("plan", [given("a", too_large, "INT8")])
            headers = {"authorization": f"Bearer {token('acme')}"}
            index = client.get_model_repository_index(headers=headers)
            assert "plan" not in {one.name for one in index.models}

            # A stream is no way around the removal of its token.
            answers: queue.Queue[Any] = queue.Queue()
            headers = {"authorization": f"Bearer {token('default')}"}
            client.start_stream(lambda result, error: answers.put(error), headers=headers)
            client.async_stream_infer("plan", [given("a", ONE, "INT8")])
            assert answers.get(timeout=20) is None
            with grpc.insecure_channel(served.grpc_address) as channel:  # nor a late message
                requests: queue.Queue[Any] = queue.Queue()
                late = channel.stream_unary(f"/{SERVICE}/ModelMetadata")
                metadata = (("authorization", headers["authorization"]),)
                call = late.future(iter(requests.get, None), timeout=20, metadata=metadata)
                assert ask("plan", "default") == "OK"
                write_tokens(path, [one for one in RECORDS if one.name != "default"])
                wait_until(lambda: ask("plan", "default") == "UNAUTHENTICATED", 20)
                requests.put(b"\x0a\x04plan")
                requests.put(None)
                assert call.code() is grpc.StatusCode.UNAUTHENTICATED
            client.async_stream_infer("plan", [given("a", ONE, "INT8")])
            assert "token" in str(answers.get(timeout=20))
            client.stop_stream()


def test_tls_and_a_certificate_that_is_replaced(tmp_path: Path) -> None:
    def certify(name: str) -> bytes:
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        command += f" -days 1 -subj /CN={name} -addext subjectAltName=IP:127.0.0.1"
        files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
        subprocess.run([*command.split(), *files], check=True, capture_output=True)
        return (tmp_path / "cert.pem").read_bytes()

    def live(trusted: bytes) -> bool:
        credentials = grpc.ssl_channel_credentials(trusted)
        with grpc.secure_channel(served.grpc_address, credentials) as channel:
            call = channel.unary_unary(f"/{SERVICE}/ServerLive").future(b"", timeout=20)
            return call.code() is grpc.StatusCode.OK

    first = certify("first")
    files = {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
    with kserved(1, with_grpc=True, **files) as served:
        assert live(first)
        second = certify("second")
        assert not live(second)
        assert served.processes is not None
        served.processes.loop.call_soon_threadsafe(served.processes.supervisor.reload)
        wait_until(lambda: live(second))
        assert not live(first)


def test_a_port_that_is_taken_or_public_is_refused(
    served: KServed, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = msgspec.structs.replace(KSERVE, grpc_port=served.grpc_port)
    with pytest.raises(InvalidInput, match="cannot listen"):
        Processes(taken, [], 1)
    monkeypatch.setattr(supervisor_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable, match=r"dandelion-engine\[grpc\]"):
        Processes(msgspec.structs.replace(KSERVE, grpc_port=0), [], 1)


def test_the_program_says_where_it_listens() -> None:
    command = [sys.executable, "-m", "dandelion", "serve", "--port", "0", "--json", "--backends"]
    command += ["null", "--protocols", "kserve", "--grpc-port", "0", "--arena-bytes", "64MiB"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout is not None
        place = json.loads(program.stdout.readline())
        with contextlib.closing(
            triton.InferenceServerClient(f"127.0.0.1:{place['grpc_port']}")
        ) as client:
            assert client.is_server_ready()
        program.terminate()
        assert program.wait(20) == 0
