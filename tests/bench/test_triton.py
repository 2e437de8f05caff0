"""Triton as a peer, against the stand-in of `triton_stand_in`."""

from __future__ import annotations

import json
import os
import signal
import sysconfig
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from dandelion.bench.experiment import Bench
from dandelion.bench.http_client import HttpFailed, fetch
from dandelion.bench.load import HttpRequest, closed_loop
from dandelion.bench.processes import ServerFailed, ServerProcess
from dandelion.bench.records import Skip
from dandelion.bench.systems import names, steps
from dandelion.bench.systems.contenders import Contender, Lineup, network_contenders
from dandelion.bench.systems.functions import network, vector_addition
from dandelion.bench.systems.triton import (
    TritonEnsembles,
    TritonServer,
    inference_outputs,
    inference_request,
    no_op_model,
)
from dandelion.bench.systems.triton_install import PROGRAM, VARIABLE, TritonMissing

from tests.bench.triton_stand_in import FLAW, LONGEST, SHARED, script
from tests.processes import lives

QUICK = Bench(quick=True, backend="opencl")
ABSENT = Skip(names.TRITON, str(TritonMissing(f"no {PROGRAM} on the PATH")))


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the stand-in; its folder is given."""
    folder = tmp_path_factory.mktemp("bin")
    place = folder / PROGRAM
    place.write_text(script(sysconfig.get_path("purelib")))
    place.chmod(0o755)
    return folder


@pytest.fixture
def repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder where repositories are written."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def installed(program: Path, repositories: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-in on the PATH; the folder where repositories are written is given."""
    monkeypatch.setenv("PATH", f"{program}{os.pathsep}{os.environ['PATH']}")
    return repositories


@pytest.fixture
def absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_installed", lambda name: False)


def triton() -> Contender:
    return next(c for c in network_contenders(QUICK, network()) if c.name == names.TRITON)


def steps_run(server: ServerProcess) -> int:
    found = fetch(server.port, HttpRequest("/v2/models/no_op/stats", method="GET"))
    return int(json.loads(found)["model_stats"][0]["inference_count"])


@pytest.mark.usefixtures("absent", "no_others")
def test_without_the_program_it_is_skipped_everywhere() -> None:
    skips: list[Skip] = []
    with Lineup(QUICK, [triton()]) as lineup:
        assert lineup.running == []
        assert lineup.skips == [ABSENT]
    with steps.step_runners(False, skips) as others:
        assert others == []
    assert skips[-1] == ABSENT
    with pytest.raises(TritonMissing, match=PROGRAM):
        TritonServer([no_op_model()])


def test_the_network_is_served_and_another_answer_is_wrong(installed: Path) -> None:
    chain = network()
    with Lineup(QUICK, [triton()]) as lineup:
        lineup.check("network", chain.body, chain.expected)
        (running,) = lineup.running
        pid = running.server.pid
        assert lives(pid)
        assert len(list(installed.glob("triton-*/models/network/1/model.py"))) == 1
        request = running.checked("network", chain.body, chain.expected)
        load = closed_loop(running.server.port, request, callers=2, seconds=0.1, warm_up_s=0.0)
        assert load.count > 0
        assert load.errors == {}
        running.requests.clear()
        lineup.check("network", chain.body, vector_addition().expected)
        assert lineup.running == []
        assert "wrong result" in lineup.skips[0].reason
    assert not lives(pid)
    assert list(installed.glob("triton-*")) == []


@pytest.mark.usefixtures("no_others")
def test_ensembles_run_every_step(installed: Path) -> None:
    skips: list[Skip] = []
    with steps.step_runners(False, skips) as found:
        (peer,) = found
        assert isinstance(peer, TritonEnsembles)
        server = peer._server
        chain, fan = peer.chain(7), peer.fan(5)
        assert chain is not None
        assert fan is not None
        before = steps_run(server)
        assert inference_outputs(bytes(chain())) == {"s7": b"x"}
        assert steps_run(server) == before + 7
        assert inference_outputs(bytes(fan())) == {f"y{i}": b"x" for i in range(5)}
        assert steps_run(server) == before + 12
        assert peer.chain(LONGEST + 1) is None
        assert peer.chain(7) is not None  # described and loaded anew
    assert [skip.what for skip in skips] == ["Dask", "Ray"]
    assert not lives(server.pid)
    assert list(installed.glob("triton-*")) == []


@pytest.mark.usefixtures("no_others")
@pytest.mark.parametrize(
    ("flaw", "reason"),
    [
        ("ends", "creating server: failed to load"),
        ("wrong", "wrong result"),
        ("empty", "pip install 'numpy<2'"),
    ],
)
def test_one_that_does_not_work_is_skipped(
    installed: Path, monkeypatch: pytest.MonkeyPatch, flaw: str, reason: str
) -> None:
    monkeypatch.setenv(FLAW, flaw)
    skips: list[Skip] = []
    with steps.step_runners(False, skips) as found:
        assert found == []
    assert skips[-1].what == names.TRITON
    assert reason in skips[-1].reason
    assert list(installed.glob("triton-*")) == []


def test_only_why_it_ended_is_told(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FLAW, "ends")
    with pytest.raises(ServerFailed) as caught:
        TritonServer([no_op_model()])
    assert caught.value.wrote == "creating server: failed to load"
    assert list(installed.glob("triton-*")) == []


def test_a_model_that_fails_to_load_is_told(installed: Path) -> None:
    broken = replace(no_op_model(), name="broken", program="import a_module_that_is_nowhere")
    with TritonServer([no_op_model()]) as server:
        with pytest.raises(ServerFailed, match="a_module_that_is_nowhere"):
            server.load(broken)
        with pytest.raises(HttpFailed, match="404"):
            fetch(server.port, inference_request(broken, b"x"))


def regions(installed: Path) -> list[Path]:
    """List the regions of shared memory of the server that is up."""
    (folder,) = installed.glob("triton-*")
    return list(SHARED.glob(f"{folder.name}*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_it_stays_in_shared_memory(installed: Path, number: signal.Signals) -> None:
    with TritonServer([no_op_model()]) as server:
        (region,) = regions(installed)
        os.kill(server.pid, number)
    assert not lives(server.pid)
    assert not region.exists()
    assert list(installed.glob("triton-*")) == []


def test_a_quick_run_starts_none(
    installed: Path, no_others: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    skips: list[Skip] = []
    with steps.step_runners(True, skips) as found:
        assert found == []
    assert "--quick" in skips[-1].reason


def test_one_that_is_never_ready_is_ended(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FLAW, "unready")
    ended: list[int] = []
    stop = TritonServer.stop

    def stop_and_tell(server: TritonServer) -> None:
        stop(server)
        ended.append(server.pid)

    monkeypatch.setattr(TritonServer, "stop", stop_and_tell)
    with pytest.raises(ServerFailed):
        TritonServer([no_op_model()], wait_s=0.9)
    assert ended
    assert not lives(ended[0])
    assert list(installed.glob("triton-*")) == []


def test_a_request_is_json_and_then_raw_bytes() -> None:
    request = inference_request(no_op_model(), b"x")
    ((name, length),) = request.headers
    head = json.loads(request.body[: int(length)])
    assert name == "inference-header-content-length"
    assert request.body[int(length) :] == b"x"
    assert request.path == "/v2/models/no_op/infer"
    assert head["inputs"] == [
        {"name": "a", "shape": [1], "datatype": "UINT8", "parameters": {"binary_data_size": 1}}
    ]


def reply(*sizes: object, shapes: list[list[object]] | None = None) -> bytes:
    described = [
        {"name": f"y{i}", "shape": shape, "parameters": {"binary_data_size": size}}
        for i, (size, shape) in enumerate(zip(sizes, shapes or [[n] for n in sizes], strict=True))
    ]
    return json.dumps({"model_name": "ü}", "outputs": described}, ensure_ascii=False).encode()


def test_outputs_are_cut_from_an_answer() -> None:
    assert inference_outputs(reply(2, 0, 3) + b"ab{}\xff") == {
        "y0": b"ab",
        "y1": b"",
        "y2": b"{}\xff",
    }


def test_an_output_without_its_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="numpy<2"):
        inference_outputs(reply(2, 0, shapes=[[2], [4]]) + b"ab")


@pytest.mark.parametrize(
    "bad",
    [b"", b"none", b"[]", b"{}", b'{"outputs": [{"name": "y", "data": [1]}]}', reply(2) + b"a",
     reply(2) + b"abc", reply(None)],
)  # fmt: skip
def test_an_answer_of_another_form_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError):
        inference_outputs(bad)
