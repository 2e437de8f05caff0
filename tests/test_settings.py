"""Settings that a program makes are checked as those of files and flags are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dandelion as dd
from dandelion.errors import InvalidInput
from dandelion.settings import checked_settings


@pytest.mark.parametrize(
    ("given", "where", "message"),
    [
        ({"tenants": {"a": {"weihgt": 3}}}, "settings.tenants.a.weihgt", "did you mean 'weight'"),
        ({"tenants": {"a": dd.TenantSettings(weight=-1)}}, "settings.tenants.a", "weight"),
        ({"tenants": {"a": 3}}, "settings.tenants.a", "found an integer"),
        ({"tenants": ["a"]}, "settings.tenants", "found a list"),
        ({"arena_bytes": "1 GiBi"}, "settings.arena_bytes", "'1 GiBi' is not a size"),
        ({"arena_bytes": 1.5}, "settings.arena_bytes", "expected an integer"),
        ({"engines": {"process": "2"}}, "settings.engines", "process: expected an integer"),
        ({"port": 99_999}, "settings.port", "at most 65535"),
        ({"max_wall_s": float("nan")}, "settings.max_wall_s", "more than 0"),
        ({"default_deadline_s": float("inf")}, "settings.default_deadline_s", "at most 1"),
        ({"keep_traces": 2**63}, "settings.keep_traces", "at most"),
        ({"engines": {"null": 1, "a.b": True}}, "settings.engines", "a.b: expected an integer"),
        ({"engines": {1: 1}}, "settings.engines", "the name 1 is not a text"),
        ({"cluster_reserve": {"gpu": "all"}}, "settings.cluster_reserve", "gpu: expected a number"),
        (
            {"engines": {"process": 10**6}},
            "settings.engines",
            "process: expected an integer, at most 4096",
        ),
        ({"secrets": b"/a"}, "settings.secrets", "expected a text"),
        ({"packages_folder": "a\0"}, "settings.packages_folder", "it has a NUL"),
        ({"host": "\ud800"}, "settings.host", "is not valid Unicode"),
        ({"options": {"process": 4}}, "settings.options.process", "is not a table"),
        ({"host": object()}, "settings", "is not a value of a setting"),
    ],
)
def test_what_is_not_valid_is_named(given: dict[str, Any], where: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught, dd.Node(dd.Settings(**given)):
        pass
    assert caught.value.where == where
    assert message in str(caught.value)


def test_an_address_is_no_settings() -> None:
    with pytest.raises(InvalidInput, match=r"a str is no Settings.*dd\.Client\(URL\)"):
        dd.Node("http://127.0.0.1:8080")  # type: ignore[arg-type]


def test_they_may_be_written_as_in_a_file(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "backends": ["null"],
        "catalog": tmp_path,
        "arena_bytes": "64MiB",
        "options": {"process": {"ahead": 4, "x": {"y": True}}},
        "tenants": {"a": {"weight": 3, "arena_bytes": "1MiB"}, "b": dd.TenantSettings(calls=2)},
    }
    found = checked_settings(dd.Settings(**given))
    assert (found.backends, found.catalog) == (("null",), str(tmp_path))
    assert found.arena_bytes == 64 * 2**20
    assert found.options == {"process": {"ahead": "4", "x.y": "yes"}}
    a = dd.TenantSettings(weight=3, arena_bytes=2**20)
    assert found.tenants == {"a": a, "b": dd.TenantSettings(calls=2)}
    assert checked_settings(found) == found
    assert checked_settings(dd.Settings(port=np.int64(7))).port == 7  # type: ignore[arg-type]


def test_quotas_of_a_running_node_are_checked() -> None:
    with dd.Node(dd.Settings(backends=("null",))) as node:
        for wrong in (dd.TenantSettings(weight=0), dd.TenantSettings(calls="2")):  # type: ignore[arg-type]
            with pytest.raises(InvalidInput, match=r"settings\.tenants\.a"):
                node.set_tenant("a", wrong)
        node.set_tenant("a", dd.TenantSettings(arena_bytes="2MiB"))  # type: ignore[arg-type]
        (quota,) = (one.quota for one in node.capacity().tenants if one.name == "a")
        assert quota == dd.TenantSettings(arena_bytes=2 * 2**20)
