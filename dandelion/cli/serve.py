"""``dandelion serve``: a node with its HTTP frontend, until SIGINT or SIGTERM.

When the node accepts connections, it prints its address on standard output: a line of text, or with
``--json`` an object with ``url``, ``host``, ``port`` and ``pid``. Logs are JSON lines on standard
error.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path

import uvloop

from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments
from dandelion.cli.settings import load_settings, unknown_variables
from dandelion.frontend.server import serve, url_of
from dandelion.node import Node, Settings

_logger = logging.getLogger("dandelion.settings")
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonLines(logging.Formatter):
    """Writes a log record as one line of JSON, with all its extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {k: v for k, v in vars(record).items() if k not in _PLAIN}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def run(arguments: Arguments, out: Output) -> int:
    """Serve until a signal arrives."""
    flags = {
        name.removeprefix("setting_"): given
        for name, given in vars(arguments).items()
        if name.startswith("setting_") and given is not None
    }
    file = arguments.settings or os.environ.get("DANDELION_SETTINGS")
    settings = load_settings(Path(file) if file else None, os.environ, flags)
    _log_to_stderr(arguments.log_level)
    for sentence in unknown_variables(os.environ):
        _logger.warning(sentence)
    uvloop.run(_serve(settings, arguments.drain, out))
    return 0


async def _serve(settings: Settings, drain_s: int, out: Output) -> None:
    def ready(host: str, port: int) -> None:
        url = url_of(host, port)
        if out.as_json:
            place = {"url": url, "host": host, "port": port, "pid": os.getpid()}
            out.raw(json.dumps(place).encode() + b"\n")
        else:
            out.raw(
                f"Dandelion listens on {url}; its interface is described at {url}/docs\n".encode()
            )

    async with Node(settings) as node:
        await serve(node, settings.host, settings.port, ready, drain_s=drain_s)


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
