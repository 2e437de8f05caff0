"""Nodes of a cluster in processes of their own: ``python -m tests.cluster.member FOLDER``.

For each line ``NAME ADDRESS PEER,...`` it forks a process with a node, which takes less time than
to start one, and prints the id of the process. A node has one engine ``work`` that takes 5 ms for a
call, and the pipes ``FOLDER/NAME.in`` and ``FOLDER/NAME.out``: there it writes a line when it is
ready, and carries out commands, one a line: ``register``, ``invoke NUMBER SIZE``, ``alive``,
``submit COUNT`` (asynchronously), ``results ID ...``, ``kept``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TextIO

from dandelion.cluster import Cluster, ClusterSettings
from dandelion.data import Item, ItemSet
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.errors import DandelionError
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import SECRET, alive, function, scripted, settings

FAN = "function work(x) => (y);\ncomposition fan(x) => (y) { work(x = each x) => (y = y); }\n"


def work(engine: Engine, call: Call) -> InstanceSets:
    """Give the text in capital letters, after 5 ms."""
    threading.Event().wait(0.005)
    given = call.inputs[0]
    assert given is not None
    items = tuple(Item(i.name, i.key, bytes(i.data).upper()) for i in given)
    return (ItemSet("y", items),)


def invoke(node: Node, number: int, size: int) -> dict[str, object]:
    """Invoke once; tell whether the answer is right."""
    items = tuple(Item(f"i{k}", k, b"text %d %d" % (number, k)) for k in range(size))
    try:
        found = node.invoke("fan", x=ItemSet("x", items), deadline_s=20)["y"]
    except DandelionError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    got = {(i.name, i.key, bytes(i.data)) for i in found or ()}
    right = got == {(i.name, i.key, bytes(i.data).upper()) for i in items}
    return {"right": right}


def submit(node: Node, number: int) -> str:
    """Submit asynchronously; return the id."""
    items = tuple(Item(f"i{k}", k, b"text %d %d" % (number, k)) for k in range(5))
    return node.submit("fan", x=ItemSet("x", items)).id


def result(node: Node, id_: str) -> list[object]:
    """Wait for a result; return its text, and when it ended."""
    handle = node.submitted(id_)
    try:
        found = handle.result(20)["y"]
    except DandelionError as error:
        return [f"{type(error).__name__}: {error}", 0]
    assert found is not None
    return [[bytes(item.data).decode() for item in found], handle.view().ended_s]


def main() -> None:
    """Fork a process for each line."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps them
    folder = Path(sys.argv[1])
    for line in sys.stdin:
        name, address, peers = line.split()
        process = os.fork()
        if not process:
            code = 1
            try:
                with (
                    (folder / f"{name}.in").open() as given,
                    (folder / f"{name}.out").open("w") as out,
                ):
                    serve(address, tuple(peers.split(",")), given, out)
                code = 0
            finally:
                os._exit(code)
        print(process, flush=True)


def serve(address: str, peers: tuple[str, ...], given: TextIO, out: TextIO) -> None:
    """Run a node until the end of the input."""
    cluster = Cluster(ClusterSettings(address, SECRET, peers=peers))
    with Node(settings(), [scripted(work)], cluster) as node:
        wait_until(lambda: alive(node) == len(peers) - 1, 30)
        node.wait_ready(20)
        print(json.dumps({"ready": True}), file=out, flush=True)
        for line in given:
            word, *rest = line.split()
            if word == "register":
                try:
                    node.register(FAN, function("work"))
                    answer: dict[str, object] = {"registered": True}
                except DandelionError as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
            elif word == "invoke":
                answer = invoke(node, int(rest[0]), int(rest[1]))
            elif word == "alive":
                answer = {"alive": alive(node), "records": len(node.records())}
            elif word == "submit":
                with ThreadPoolExecutor(16) as pool:
                    ids = list(pool.map(partial(submit, node), range(int(rest[0]))))
                ended = [node.submitted(id_).state().has_ended for id_ in ids]
                answer = {"ids": ids, "ended": sum(ended)}
            elif word == "results":
                with ThreadPoolExecutor(64) as pool:
                    answer = {"results": list(pool.map(partial(result, node), rest))}
            elif word == "kept":
                page = node.kept.blocking(node.kept.list(tenant="default", limit=1000))
                answer = {"kept": [view.id for view in page.invocations]}
            else:
                return
            print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
