"""Functions with packages on a node: registered, called, kept, kept apart."""

from __future__ import annotations

import importlib.machinery
import os
import signal
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

import dandelion as dd
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.errors import BackendUnavailable, DeadlineExceeded, InvalidFunction
from dandelion.frontend.server import BackgroundServer
from dandelion.packages import preparing
from dandelion.packages.environment_folder import remove
from dandelion.recording.compare import differences
from dandelion.recording.records import decode_recording
from dandelion.replay.run import replay
from dandelion.scheduler.records import Presence
from dandelion.testing import wait_until
from tests.packages.wheels import wheel
from tests.processes import children

SETTINGS = dd.Settings(
    backends=("process", "null"), engines={"process": 1}, options={"process": {"ahead": "1"}}
)


def function(name: str, body: str, *packages: str, imports: str = "") -> FunctionDocument:
    options = {"entry": "f"} | ({"imports": imports} if imports else {})
    source = f"def f():\n    {body}\n"
    code = CodeDocument("python", source, options=options, packages=packages)
    return FunctionDocument(name, (), ("y",), code=(code,))


VERSION = "import a; return a.VERSION"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    wheel(folder, "a", "1.0")
    wheel(folder, "a", "2.0")
    return folder


@pytest.fixture(scope="module")
def node(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dd.Node]:
    cache = tmp_path_factory.mktemp("cache")
    settings = msgspec.structs.replace(
        SETTINGS, packages_folder=str(wheels), packages_cache=str(cache)
    )
    before = children()
    with dd.Node(settings) as node:
        yield node
    assert children() <= before


def called(node: dd.Node, name: str, tenant: str = "default") -> str:
    return node.invoke(name, tenant=tenant).y.text()


def refused(node: dd.Node, document: FunctionDocument) -> tuple[str, str]:
    with pytest.raises(InvalidFunction) as caught:
        node.register(document)
    return caught.value.problems[0].code, str(caught.value)


def test_a_decorated_function_has_its_packages(node: dd.Node) -> None:
    @dd.function(packages="a<2")
    def old() -> str:
        import a

        return str(a.VERSION)

    @dd.function(packages=["a"])
    def new() -> str:
        import a

        return str(a.VERSION)

    @dd.composition
    def both() -> dict[str, object]:
        return {"old": old(), "new": new()}

    node.register(both)
    result = node.invoke("both")
    assert (result.old.text(), result.new.text()) == ("1.0", "2.0")


def test_functions_without_packages_do_not_see_them(node: dd.Node) -> None:
    code, text = refused(node, function("without", VERSION, imports="a"))
    assert code == "unknown-import"
    assert "packages=" in text


def test_over_http(node: dd.Node) -> None:
    with BackgroundServer(node) as server, dd.Client(server.url) as client:
        document = RegistrationDocument((function("remote", VERSION, "a", imports="a"),))
        client.register(document)
        assert client.compare(document)[0].change == "same"
        record = client.describe("remote").record
        assert record["code"][0]["packages"] == ["a"]
        assert list(record["code"][0]["wheels"]) == ["a-2.0-py3-none-any.whl"]
        recording = decode_recording(node.record("remote", {}))
        again = replay(recording, backends=("process",), here=node.settings)
        assert differences(recording, again) == []
        assert again.document.functions[0].code[0].wheels == record["code"][0]["wheels"]
        with pytest.raises(InvalidFunction, match="nothing"):
            client.register(RegistrationDocument((function("bad", VERSION, "nothing"),)))


def test_a_package_with_an_extension(node: dd.Node, wheels: Path) -> None:
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    folder = Path(sysconfig.get_path("stdlib")) / "lib-dynload"
    extension = next(iter(sorted(folder.glob(f"_bisect*{suffix}"))), None)
    if extension is None:
        pytest.skip("this interpreter has its extensions built in")
    files: dict[str, str | bytes] = {
        "native/__init__.py": "from native._bisect import bisect_right",
        f"native/_bisect{suffix}": extension.read_bytes(),
    }
    wheel(wheels, "native", "1.0", files)
    body = "from native import bisect_right as b; return f'{b([1, 2, 3], 2)} {b.__module__}'"
    node.register(function("bisect", body, "native", imports="native"))
    assert called(node, "bisect") == "2 native._bisect"


def test_what_the_node_has_needs_no_environment(node: dd.Node) -> None:
    node.register(function("array", "import numpy; return numpy.__version__", "numpy"))
    assert called(node, "array") == __import__("numpy").__version__
    assert node.describe("array").code[0].wheels == {}


def test_faults_are_found_at_registration(node: dd.Node, wheels: Path) -> None:
    wheel(wheels, "dies", "1.0", {"dies.py": "import os; os.abort()"})
    wheel(wheels, "lasts", "1.0", {"lasts.py": "import threading, time\n"
          "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()"})  # fmt: skip
    for name, text in (("dies", "-6"), ("lasts", "threads")):
        code, shown = refused(node, function(name, "return ''", name, imports=name))
        assert (code, text in shown) == ("import-failed", True), shown
    assert refused(node, function("f", "return ''", "a", imports="b"))[0] == "unknown-import"
    code, text = refused(node, FunctionDocument("n", code=(CodeDocument("null", packages=("a",)),)))
    assert code == "no-packages"
    assert "null" in text


def test_the_import_of_a_package_may_write_temporary_files(node: dd.Node, wheels: Path) -> None:
    text = "import tempfile\nwith tempfile.NamedTemporaryFile() as f: f.write(b'x')\nFINE = 'yes'"
    wheel(wheels, "temporary", "1.0", {"temporary.py": text})
    body = "import temporary; return temporary.FINE"
    node.register(function("temporary", body, "temporary", imports="temporary"))
    assert called(node, "temporary") == "yes"


def test_without_a_source(tmp_path: Path) -> None:
    with dd.Node(msgspec.structs.replace(SETTINGS, packages_cache=f"{tmp_path}/no")) as other:
        with pytest.raises(BackendUnavailable, match="--wheels DIR"):
            other.register(function("f", VERSION, "a"))
        assert other.register(function("array", "return ''", "numpy"))
        assert not (tmp_path / "no").exists()
        assert "f" not in [record.name for record in other.records()]


def test_tenants_share_files_but_no_interpreter(node: dd.Node, wheels: Path) -> None:
    """A module that counts in memory which it shares with its forks must not count for others."""
    text = "import os\nPID = os.getpid()"
    wheel(wheels, "where", "1.0", {"where.py": text})
    document = function("f", "import where; return str(where.PID)", "where", imports="where")
    for tenant in ("one", "two"):
        node.register(document, tenant=tenant)
    codes = [node.describe("f", tenant=t).code[0] for t in ("one", "two")]
    assert codes[0].wheels == codes[1].wheels
    zygotes = [called(node, "f", t) for t in ("one", "two", "one")]
    assert zygotes[0] == zygotes[2] != zygotes[1]


def test_the_same_versions_come_back_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    wheel(folder, "a", "1.0")
    settings = msgspec.structs.replace(
        SETTINGS, packages_folder=str(folder), catalog=f"sqlite:{tmp_path / 'data'}"
    )
    with dd.Node(settings) as node:
        node.register(function("f", VERSION, "a", imports="a"))
        site = Path(node._parts.packages._environments.place(node.describe("f").code[0]))
    assert site.is_relative_to(tmp_path / "data")
    wheel(folder, "a", "2.0")
    remove(site.parent)
    with dd.Node(settings) as node:
        assert called(node, "f") == "1.0"  # made again
        assert node.register(function("f", VERSION, "a", imports="a"))[0].version == 2
        assert "2.0" in str(node.describe("f").code[0].wheels)


@pytest.mark.parametrize("what", ["all", "a module"])
def test_packages_that_were_deleted_meanwhile_are_prepared_again(
    what: str, tmp_path: Path, wheels: Path
) -> None:
    settings = msgspec.structs.replace(
        SETTINGS, packages_folder=str(wheels), packages_cache=str(tmp_path)
    )
    before = children()
    with dd.Node(settings) as node:
        node.register(function("f", VERSION, "a", imports="a"))
        assert called(node, "f") == "2.0"
        site = Path(node._parts.packages._environments.place(node.describe("f").code[0]))
        if what == "all":
            remove(site.parent)
        else:
            site.chmod(0o755)
            (site / "a.py").unlink()
        for zygote in children() - before:
            os.kill(zygote, signal.SIGKILL)
        with ThreadPoolExecutor(8) as callers:
            assert list(callers.map(lambda _: called(node, "f"), range(8))) == ["2.0"] * 8
        assert called(node, "f") == "2.0"


def test_calls_wait_while_others_prepare_their_packages(tmp_path: Path, wheels: Path) -> None:
    settings = msgspec.structs.replace(
        SETTINGS, packages_folder=str(wheels), catalog=f"sqlite:{tmp_path / 'data'}"
    )
    with dd.Node(settings) as node:
        node.register(function("f", VERSION, "a", imports="a"))
        site = Path(node._parts.packages._environments.place(node.describe("f").code[0]))
    remove(site.parent)
    with ExitStack() as others:
        while preparing._places.acquire(blocking=False):
            others.callback(preparing._places.release)
        with dd.Node(settings) as node:
            with pytest.raises(DeadlineExceeded):
                node.invoke("f", deadline_s=0.1)
            (flow,) = node._parts.runtime.scheduler.calls.flows.values()
            wait_until(lambda: flow.presence is Presence.ABSENT)  # nothing needs it any more
            others.close()
            assert called(node, "f") == "2.0"
