"""A node is killed while it registers: what it acknowledged is there, and nothing is broken."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.frontend.client import Client
from dandelion.node import Node, Settings

REGISTRATIONS = 200
KILLS = 5
ROOT = Path(__file__).resolve().parent.parent.parent


class Served:
    """A node in a process of its own, with its catalogue in a folder."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "dandelion", "serve", "--json", "--port", "0"),
                *("--backends", "null", "--catalog", f"sqlite:{folder}"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = line[line.index("http") :].split('"')[0].strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


def document(number: int) -> RegistrationDocument:
    """A function with a library of its own, and a composition that uses it."""
    name = f"f{number}"
    code = CodeDocument("null", f"code of {name}")
    text = f"function {name}(a)=>(b); composition c{number}(x)=>(y) {{ {name}(a=all x)=>(y=b); }}"
    function = FunctionDocument(name, ("a",), ("b",), code=(code,))
    return RegistrationDocument((function,), {f"library{number}": os.urandom(64).hex()}, (text,))


def register_until_killed(url: str, numbers: list[int], acknowledged: list[int]) -> None:
    with Client(url) as client:
        while numbers:
            try:
                client.register(document(numbers[-1]))
            except Exception:  # the node was killed under this call
                return
            acknowledged.append(numbers.pop())


@pytest.mark.timeout(180)
def test_kill_at_random_moments(tmp_path: Path) -> None:
    source = random.Random(7)
    numbers = list(range(REGISTRATIONS))
    acknowledged: list[int] = []
    for kill in range(KILLS + 1):
        served = Served(tmp_path)
        target = len(acknowledged) + REGISTRATIONS // (KILLS + 2)
        worker = threading.Thread(
            target=register_until_killed, args=(served.url, numbers, acknowledged)
        )
        worker.start()
        while kill < KILLS and len(acknowledged) < target and worker.is_alive():
            worker.join(source.random() / 500)
        if kill == KILLS:
            worker.join()
        served.kill()
        worker.join()
        check(tmp_path, acknowledged)
    assert sorted(acknowledged) == list(range(REGISTRATIONS))


def check(folder: Path, acknowledged: list[int]) -> None:
    """Open what is left: every acknowledged name is whole, and every name that is there works."""
    with Node(Settings(backends=("null",), catalog=f"sqlite:{folder}")) as node:
        names = {r.name for r in node.records()}
        for number in acknowledged:
            assert {f"f{number}", f"c{number}", f"library{number}"} <= names
        for name in names:
            if name.startswith("c"):
                assert f"f{name[1:]}" in names
                assert f"library{name[1:]}" in names
                assert node.invoke(name, x=b"whole").y.bytes() == b"whole"
