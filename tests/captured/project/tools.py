"""A module of a project, with decorated functions of its own."""

from typing import TYPE_CHECKING

import dandelion as dd

from . import inner

if TYPE_CHECKING:
    import a_module_that_does_not_exist  # noqa: F401


@dd.function
def twice(text: str) -> str:
    return text * 2


@dd.composition
def both(x):
    return twice(x)


def answer():
    if inner.DEEP != 40:
        raise ValueError(inner.DEEP)
    return inner.DEEP + 2


def fails():
    raise ValueError("in the project")
