"""The examples of docs/kserve.md, as they stand."""

from __future__ import annotations

import http.client
import json
import re
import uuid
from pathlib import Path

import pytest

from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "kserve.md").read_text()
ADDRESS = "127.0.0.1:8080"


def test_the_examples_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = f"/kserve_{uuid.uuid4().hex}"
    settings = Settings(
        backends=("process",),
        engines={"process": 1},
        protocols=("kserve",),
        shared_memory_prefix=prefix,
    )
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == 3
    with Node(settings) as node, BackgroundServer(node) as server:
        address = server.url.removeprefix("http://")
        for number, program in enumerate(programs):
            path = tmp_path / f"example{number}.py"  # the source of a function is read from it
            path.write_text(program.replace(ADDRESS, address).replace("/kserve_numbers", prefix))
            names: dict[str, object] = {"__name__": "example"}
            exec(compile(path.read_text(), str(path), "exec"), names)
            for name in ("client", "node"):
                if name in names:
                    names[name].close()  # type: ignore[attr-defined]  # whichever it is
        assert capsys.readouterr().out == "[[2. 4.]\n [6. 8.]]\n[2. 4.]\n"
        body, response = re.findall(r"-d '(.*?)'\n(.*?)\n", PAGE)[0]
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("POST", "/v2/models/double/infer", body)
        assert json.loads(connection.getresponse().read()) == json.loads(response)
        connection.close()
    assert not list(Path("/dev/shm").glob(f"{prefix[1:]}*"))
