"""Logs of a process that serves: on standard error, JSON lines, or text on a terminal."""

from __future__ import annotations

import json
import logging
import sys
import time

from dandelion.call_logs import shown

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


class TextLines(logging.Formatter):
    """Writes a log record for people, with its extra fields; a terminal shows no JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        more = [f"{k}={v}" for k, v in vars(record).items() if k not in _PLAIN]
        line = " ".join([clock, record.levelname.lower(), shown(record.getMessage()), *more])
        traceback = self.formatException(record.exc_info) if record.exc_info else ""
        return f"{line}\n{traceback}" if traceback else line


def log_to_stderr(level: int | str) -> None:
    """Write what is logged from that level on, and every change of the catalogue."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines() if sys.stderr.isatty() else JsonLines())
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("dandelion.audit").setLevel(logging.INFO)
