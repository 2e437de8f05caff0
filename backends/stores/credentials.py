"""Credentials: read from where the operator says, and kept from being shown."""

from __future__ import annotations

import os
from typing import NoReturn

from dandelion.errors import BackendUnavailable, InvalidInput

_LIMIT_BYTES = 64 * 1024


class Secret:
    """A text that does not show itself: not in repr, str, formats, pickles or comparisons."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the text, for the client library alone."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret stays in its process")


def read_secret(where: str, backend: str, file: str, variable: str) -> Secret | None:
    """Read a secret from a file or a variable of the environment; None if neither is named.

    Args:
        where: the option without its suffix ``_file`` or ``_env``, for errors.
        backend: that needs it.
        file: path of a file that has only the secret; white space around it is dropped.
        variable: name of a variable.

    Raises:
        InvalidInput: both are named.
        BackendUnavailable: what is named is missing, empty or too long.
    """
    if file and variable:
        raise InvalidInput(f"{where}_file", f"{where}_env is given too", "give one of them")
    if file:
        text, source = _from_file(where, backend, file), f"the file of {where}_file"
    elif variable:
        text, source = os.environ.get(variable, ""), f"the variable of {where}_env"
    else:
        return None
    if not text.strip():
        raise BackendUnavailable(backend, f"{source} is missing or empty", "write the secret there")
    return Secret(text.strip())


def _from_file(where: str, backend: str, path: str) -> str:
    missing = f"the file of {where}_file"
    try:
        with open(path, "rb") as file:
            data = file.read(_LIMIT_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BackendUnavailable(
            backend, f"{missing} cannot be read: {reason}", "let the node's user read it"
        ) from None
    if len(data) > _LIMIT_BYTES:
        raise BackendUnavailable(backend, f"{missing} has more than {_LIMIT_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BackendUnavailable(backend, f"{missing} is not UTF-8") from None
