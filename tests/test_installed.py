"""Backends are found only by their entry points."""

from pathlib import Path

import pytest

from dandelion.driver import (
    Checker,
    backend_names,
    backends_of_functions,
    load_driver,
    needed_backends,
)
from dandelion.errors import BackendUnavailable, InvalidInput
from dandelion.node.loaded_backends import Backend, Checkers

MODULE = """
from dandelion.testing import ScriptedDriver

def driver():
    return ScriptedDriver("third")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package of a third party with three backends, one of which works."""
    (tmp_path / "third_party_backend.py").write_text(MODULE)
    (tmp_path / "no_driver_here.py").write_text("driver = None")
    facts = tmp_path / "third_party-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        "[dandelion.backends]\nthird = third_party_backend\n"
        "lost = no_such_module\nempty = no_driver_here\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
def test_a_backend_of_a_third_party_is_found() -> None:
    assert {"third", "lost", "empty", "null", "cuda"} <= set(backend_names())
    assert load_driver("third").name == "third"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("name", "missing"), [("lost", "no_such_module"), ("empty", "'driver'")])
def test_a_backend_that_cannot_be_loaded_says_why(name: str, missing: str) -> None:
    with pytest.raises(BackendUnavailable) as caught:
        load_driver(name)
    assert missing in caught.value.missing


@pytest.mark.usefixtures("installed")
def test_the_first_of_the_search_path_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "before" / "other_party-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: other-party\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[dandelion.backends]\nlost = third_party_backend\n")
    monkeypatch.syspath_prepend(str(tmp_path / "before"))
    assert load_driver("lost").name == "third"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("formats", "needed"),
    [
        (set(), {"http", "lost"}),
        ({"python"}, {"http", "lost", "process"}),
        ({"blueprint"}, {"http", "lost", "cuda|hip|opencl", "null|hip"}),
        ({"python", "wasm"}, {"http", "lost", "process", "wasm"}),
    ],
)
def test_backends_of_other_formats_are_not_needed(formats: set[str], needed: set[str]) -> None:
    given = ("process", "wasm", "native", "http", "cuda|hip|opencl", "null|hip", "lost")
    assert set(needed_backends(given, formats)) == needed


@pytest.mark.parametrize("name", ["third", "gpu", "os", "null.x", ""])
def test_a_module_without_an_entry_point_is_no_backend(name: str) -> None:
    with pytest.raises(InvalidInput):
        load_driver(name)


@pytest.mark.parametrize("name", ["cuda", "hip", "http", "native", "null", "opencl", "process"])
def test_what_a_driver_gives_is_made_once(name: str) -> None:
    driver = load_driver(name)
    assert driver.checker() is driver.checker()
    assert driver.planner() is driver.planner()
    assert driver.factory() is driver.factory()
    assert driver.sharing() is driver.sharing()


def test_a_checker_does_nothing_by_default() -> None:
    checker = Checker()
    checker.check(())
    assert checker.references(b"x") == ()
    checker.close()


def test_functions_of_backends_are_known_without_their_drivers() -> None:
    provided = {f.name: n for n in backend_names() for f in load_driver(n).platform_functions}
    assert backends_of_functions() == provided


@pytest.mark.usefixtures("installed")
def test_checkers_of_all_backends_are_found() -> None:
    started = load_driver("native")
    checkers = Checkers([Backend("native", ("native",), started)])
    assert checkers["elf"] is started.checker()
    assert checkers.loaded() == [started.checker()]
    assert checkers["python"].takes_packages
    assert checkers["elf"] is started.checker()
    assert {"blueprint", "elf", "wasm"} <= set(checkers)
    assert checkers.get("cobol") is None
    assert checkers["python"] in checkers.loaded()
