"""Runs the command `dandelion` in forks of one process, to save the imports of each command.

As a program, ``command_server.py SOCKET`` serves until its standard input ends. `command_server`
writes the program that calls it: with its arguments, folder, environment and standard streams.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_LIMIT_BYTES = 1 << 18
_CLIENT = """#!{python} -SEs
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({path!r})
call = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [call], [0, 1, 2])
sys.exit(int(server.recv(16) or b"70"))
"""


@contextlib.contextmanager
def command_server(folder: Path) -> Iterator[Path]:
    """Start a server; yield a folder for ``PATH`` that has the command."""
    path = folder / "server"
    program = [sys.executable, str(Path(__file__).resolve()), str(path)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        programs = folder / "bin"
        programs.mkdir()
        command = programs / "dandelion"
        command.write_text(_CLIENT.format(python=sys.executable, path=str(path)))
        command.chmod(0o755)
        yield programs
        assert process.stdin is not None
        process.stdin.close()


def serve(path: str) -> None:
    """Fork for each call."""
    package = importlib.import_module("dandelion.cli")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in {"bench", "replay"}:  # what they load is large and used rarely
            importlib.import_module(f"dandelion.cli.{module.name}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
        selectors.DefaultSelector() as selector,
    ):
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while all(key.fd != 0 for key, _ in selector.select()):
            call, _ = listener.accept()
            with call:
                if os.fork() == 0:
                    _run(call)


def _run(call: socket.socket) -> None:
    """Run one command in this process, which then ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 70
    try:
        data, streams, _, _ = socket.recv_fds(call, _LIMIT_BYTES, 3)
        arguments, folder, environment = json.loads(data)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        code = importlib.import_module("dandelion.cli.main").main(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        call.send(b"%d" % code)
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
