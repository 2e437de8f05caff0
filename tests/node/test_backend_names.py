"""Settings that name backends or options which do not exist keep a node from starting."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dandelion.driver import Driver
from dandelion.errors import InvalidInput
from dandelion.node import Node, Settings
from tests.node.served import GateDriver

NULL = Settings(backends=("null",), arena_bytes=1 << 20)


@pytest.mark.parametrize(
    ("changes", "where", "said"),
    [
        ({"backends": ("bogus",)}, "backends", "'bogus'"),
        ({"backends": ("proces",)}, "backends", "did you mean 'process'"),
        ({"backends": ("null", "cuda|hop|opencl")}, "backends", "did you mean 'hip'"),
        ({"backends": ("",)}, "backends", "''"),
        ({"backends": ("null||wasm",)}, "backends", "''"),
        ({"backends": ("gpu",)}, "backends", "'gpu'"),  # a package that backends share
        ({"backends": ("../null",)}, "backends", "'../null'"),
        ({"options": {"htp": {"allow": "1"}}}, "options.htp", "did you mean 'http'"),
        ({"options": {"http": {"alow": "1"}}}, "options.http.alow", "did you mean 'allow'"),
        ({"options": {"http": {"retries": "-1"}}}, "options.http.retries", "-1"),
        ({"options": {"null": {"x": "1"}}}, "options.null.x", "no options"),
        ({"options": {"wasm": {"memory": "1"}}}, "options.wasm.memory", "no options"),
        ({"options": {"native": {"ahaed": "1"}}}, "options.native.ahaed", "'ahead'"),
        ({"options": {"process": {"": "1"}}}, "options.process.", "ahead"),
        ({"options": {"opencl": {"worker": "1"}}}, "opencl.worker", "'workers'"),
        ({"engines": {"proces": 2}}, "engines.proces", "did you mean 'process'"),
        ({"engines": {"null|wasm": 2}}, "engines.null|wasm", "'null|wasm'"),
        ({"engines": {"null": -1}}, "engines.null", "-1"),
    ],
)
def test_names_that_do_not_exist(changes: dict[str, Any], where: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Node(msgspec.structs.replace(NULL, **changes)).close()
    assert caught.value.where == where
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"backends": ("null", "cuda|hip")},  # their libraries may be missing here
        {"options": {"http": {"allow": "a.org"}}},  # installed and not started
        {"engines": {"process": 1, "cuda|hip": 1}, "backends": ("cuda|hip",)},
        {"engines": {"hip": 1}, "backends": ("cuda|hip",)},
        {"engines": {"gate": 1}},  # brought along by the program
        {"options": {"gate": {"any": "x"}}},
    ],
)
def test_names_that_exist(changes: dict[str, Any]) -> None:
    drivers: list[Driver] = [GateDriver()]
    Node(msgspec.structs.replace(NULL, **changes), drivers).close()
