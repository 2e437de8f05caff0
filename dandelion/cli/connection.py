"""The client of the verbs that need a node."""

from __future__ import annotations

import os
from pathlib import Path

from dandelion.cli.parser import Arguments
from dandelion.errors import InvalidInput
from dandelion.frontend.client import Client


def connect(arguments: Arguments) -> Client:
    """Make the client that the options and the environment describe.

    Raises:
        InvalidInput: the URL, the token, its file or the file of certificates is not valid.
        OSError: the file of the token cannot be read.
    """
    return Client(arguments.url, token=token_of(arguments), tls=arguments.ca or True)


def token_of(arguments: Arguments) -> str | None:
    """Give the token of the options and the environment; None without one.

    Raises:
        InvalidInput, OSError: its file cannot be read.
    """
    token = arguments.token or os.environ.get("DANDELION_TOKEN") or None
    if token is not None and token.startswith("@"):
        try:
            token = Path(token[1:]).read_text("utf-8").strip()
        except UnicodeDecodeError:
            raise InvalidInput("--token", f"{token[1:]} is not a text file") from None
    return token
