"""Standard output, standard error and `logging` of a sandbox: one pipe, with marks between.

A function that logs its first line makes the kernel copy all pages with code and objects of
`logging` that take part in it, about 120 of 4 KiB, which takes longer than most functions. So the
zygote makes the handler of ``logging.basicConfig()`` ahead, and a line whose text depends on
nothing but its logger, level and message is written without a record. All other lines (with
handlers, filters, formats, record factories, classes or streams of the function's own, with
exceptions, stacks or further fields) take the library's way.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import Any

from . import wire


class _StandardOutput(io.FileIO):
    """Standard output. What does not fit into the pipe is dropped, without waiting.

    Writing is the method of `io.FileIO`: each Python function that a sandbox runs for the first
    time makes the kernel copy pages, which takes longer than the function. So lines have no mark,
    and everything else that is written is followed by `wire.STDOUT_MARK`.
    """

    def isatty(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


class _StandardError(_StandardOutput):
    """Standard error: what is written is between marks."""

    def write(self, data: Any) -> int:  # Any: memoryview does not accept typeshed's Buffer
        _write_or_drop(b"%b%b%b" % (wire.STDERR_MARK, data, wire.STDOUT_MARK))
        return memoryview(data).nbytes


def _write_or_drop(data: bytes) -> None:
    try:
        os.write(2, data)
    except BlockingIOError:
        return


_LEVEL_MARKS = (
    (logging.CRITICAL, b"\0c"),
    (logging.ERROR, b"\0r"),
    (logging.WARNING, b"\0w"),
    (logging.INFO, b"\0i"),
)
_emit = logging.StreamHandler.emit
_log = logging.Logger._log
_basic_config = logging.basicConfig
_LIBRARY = (logging.Logger.makeRecord, logging.Logger.handle, logging.Logger.callHandlers)
_LOGGERS = (logging.Logger, logging.RootLogger)
_PLAIN = (str, int, float)


def _mark(level: int) -> bytes:
    for least, mark in _LEVEL_MARKS:
        if level >= least:
            return mark
    return b"\0d"


def _write_marked(level: int, text: str) -> None:
    marked = _mark(level) + text.encode("utf-8", "backslashreplace") + wire.STDOUT_MARK
    _write_or_drop(marked)


def _emit_marked(handler: logging.StreamHandler[Any], record: logging.LogRecord) -> None:
    """Write a record of `logging` with its level, if it goes to one of the two streams."""
    if not isinstance(getattr(handler.stream, "buffer", None), _StandardOutput):
        _emit(handler, record)
        return
    try:
        _write_marked(record.levelno, handler.format(record) + handler.terminator)
    except RecursionError:
        raise
    except Exception:  # as the method that this replaces
        handler.handleError(record)


class _Defaults:
    """What `logging` uses if a function configures nothing."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self.stream = stream
        self.last_resort = logging.lastResort
        self.handler = logging.StreamHandler(stream)
        self.formatter = logging.Formatter(logging.BASIC_FORMAT)
        self.handler.setFormatter(self.formatter)

    def text(self, logger: logging.Logger, level: int, message: object, args: Any) -> str | None:
        """Return the line that the library would write; None if only the library can tell.

        Raises:
            Exception: the message cannot be formatted.
        """
        source: logging.Logger | None = logger
        while source is not None and not source.handlers and source.propagate:
            source = source.parent
        if source is None:
            handler, formatter = self.last_resort, None
        elif source.handlers == [self.handler] and source.parent is None:
            handler, formatter = self.handler, self.formatter
        else:
            return None
        if (
            handler is None
            or handler.formatter is not formatter
            or handler.filters
            or level < handler.level
            or (formatter is None and logging.lastResort is not handler)
            or (formatter is not None and self.handler.stream is not self.stream)
            or (len(args) == 1 and not isinstance(args[0], _PLAIN))  # a dict has a meaning
        ):
            return None
        text = str(message)
        if args:
            text %= args
        return text if formatter is None else f"{logging.getLevelName(level)}:{logger.name}:{text}"


def _log_directly(
    logger: logging.Logger,
    level: int,
    msg: object,
    args: Any,
    exc_info: Any = None,
    extra: Any = None,
    stack_info: bool = False,
    stacklevel: int = 1,
) -> None:
    """Write a line as `logging.Logger._log` does, which this replaces."""
    text = None
    if (
        exc_info is None
        and extra is None
        and not stack_info
        and sys.stderr is _defaults.stream
        and type(logger) in _LOGGERS
        and not logger.filters
        and not logger.disabled
        and logging.StreamHandler.emit is _emit_marked
        and logging.getLogRecordFactory() is logging.LogRecord
        and (type(logger).makeRecord, type(logger).handle, type(logger).callHandlers) == _LIBRARY
    ):
        try:
            text = _defaults.text(logger, level, msg, args)
        except Exception:  # the library reports it
            text = None
    if text is None:
        _log(logger, level, msg, args, exc_info, extra, stack_info, stacklevel + 1)
    else:
        _write_marked(level, f"{text}\n")


def _configure(**how: Any) -> None:
    """Do as ``logging.basicConfig``, which this replaces, with a handler that exists already."""
    if how.keys() - {"level"} or logging.root.handlers or sys.stderr is not _defaults.stream:
        _basic_config(**how)
        return
    logging.root.addHandler(_defaults.handler)
    level = how.get("level")
    if level is not None:
        logging.root.setLevel(level)


def _text_stream(stream: io.FileIO) -> io.TextIOWrapper:
    binary: Any = stream  # typeshed asks for a buffered stream
    return io.TextIOWrapper(binary, "utf-8", "backslashreplace", write_through=True)


def prepare() -> None:
    """Give this process the standard streams and the `logging` of a sandbox."""
    global _defaults
    sys.stdout = _text_stream(_StandardOutput(1, "wb", closefd=False))
    sys.stderr = errors = _text_stream(_StandardError(2, "wb", closefd=False))
    _defaults = _Defaults(errors)
    logging.StreamHandler.emit = _emit_marked  # type: ignore[method-assign,assignment]
    logging.Logger._log = _log_directly  # type: ignore[method-assign,assignment]
    logging.basicConfig = _configure


_defaults: _Defaults


def warm_up(count: int) -> None:
    """Write to the standard streams and to `logging` as functions do, into a pipe of its own."""
    kept = os.dup(1), os.dup(2)
    source, sink = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    root = logging.getLogger()
    handlers, known = root.handlers[:], root.manager.loggerDict.copy()
    try:
        for at in range(count):
            root.handlers.clear()
            print("warm-up")
            print("warm-up", file=sys.stderr)
            logging.getLogger(f"warm-up {at}").warning("warm-up")
            logging.warning("warm-up %s", 1)
            root.warning("warm-up", extra={})
            os.read(source, 4096)
    except Exception:  # an import changed print or logging; calls are slower then, and work
        pass
    finally:
        root.handlers[:] = handlers
        root.manager.loggerDict.clear()
        root.manager.loggerDict.update(known)
        for number, file in enumerate(kept, 1):
            os.dup2(file, number)
            os.close(file)
        os.close(source)
        os.close(sink)
