"""Sets that are given on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dandelion.cli.invoke import read_sets
from dandelion.cli.output import WrongUsage
from dandelion.data import Item
from dandelion.frontend.outgoing import Plain


def test_one_text_has_the_name_of_its_set() -> None:
    assert read_sets(["page=to be"]) == {"page": Item("page", 0, b"to be")}


def test_several_items_have_different_names(tmp_path: Path) -> None:
    file = tmp_path / "hamlet.txt"
    file.write_bytes(b"not")
    found = read_sets(["page=to be", "to=x", "page=or", f"page=@{file}", "page="])
    assert found == {
        "page": [
            Item("0", 0, b"to be"),
            Item("1", 0, b"or"),
            Item("hamlet.txt", 0, b"not"),
            Item("3", 0, b""),
        ],
        "to": Item("to", 0, b"x"),
    }


@pytest.mark.parametrize("arguments", [["a:=1", "a=2"], ["a=1", "a:=2"], ["a:=1", "a:=2"]])
def test_json_is_given_once(arguments: list[str]) -> None:
    assert read_sets(["a:=1", "b=2"]) == {"a": Plain(1), "b": Item("b", 0, b"2")}
    with pytest.raises(WrongUsage, match="give a JSON set only once"):
        read_sets(arguments)
