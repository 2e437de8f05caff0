"""Parsers of other protocols: loaded in advance, since a child of the converter has no files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from dandelion.data import Bytes
from dandelion.frontend.bson import requests
from dandelion.frontend.codecs import SetMap

Parser: TypeAlias = Callable[[Bytes, int], tuple[SetMap, bytes]]
"""Reads a body, with a limit, into sets and a document."""

PARSERS: dict[str, Parser] = {**requests.PARSERS}
