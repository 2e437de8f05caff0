"""The names of the package itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import dandelion
from dandelion import errors

REFERENCE = (Path(__file__).parent.parent / "docs" / "api.md").read_text()


def test_the_base_of_all_errors_is_there() -> None:
    with pytest.raises(dandelion.DandelionError):
        raise errors.Overloaded(1, 1)


@pytest.mark.parametrize("name", sorted(dandelion._HOME_OF))
def test_every_name_can_be_loaded_and_is_in_the_reference(name: str) -> None:
    assert getattr(dandelion, name) is not None
    assert name in dir(dandelion)
    assert f"`dd.{name}`" in REFERENCE
