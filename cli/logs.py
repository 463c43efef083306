"""structlog as a broker process uses it: lines on stderr, for people (console) or machines (JSON), one object a line.

Messages of other libraries and asyncio, which use `logging`, come out in the same form.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from io import StringIO
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from amq.cli.text import raw, visible, visible_json, visible_lines
from amq.config.schema import BrokerConfig

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Logger(structlog.WriteLogger):
    """Writes to stderr, with the name of a part of the program. Each line is one write, so that the lines of the
    processes of a node do not mix. A line that cannot be written is lost: the caller must not take a full disk under
    the log, or a reader that has gone, for a fault of the store.
    """

    def __init__(self, name: str = "amq", file: TextIO | None = None) -> None:
        super().__init__(file or raw(sys.stderr))
        self.name = name

    def msg(self, message: str) -> None:
        with suppress(OSError, ValueError):  # ValueError: it is closed
            super().msg(message)

    log = debug = info = warning = error = critical = msg


class _Bridge(logging.Handler):
    """Hands records of `logging` to structlog, except one of watchdog that is no error: a watch ended while an event
    arrived.
    """

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(lambda record: "called when the thread is inactive" not in record.getMessage())

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        info = record.exc_info if record.exc_info and record.exc_info[0] is not None else None
        log.log(record.levelno, record.getMessage(), exc_info=info)


def _shown(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Names and reasons come from clients, and may be for the terminal of the reader."""
    return {key: visible(value) if isinstance(value, str) else value for key, value in event.items()}


def _traceback(file: TextIO, info: ExcInfo) -> None:
    text = StringIO()
    structlog.dev.plain_traceback(text, info)
    file.write(visible_lines(text.getvalue()))


def _json(event: EventDict, **options: Any) -> str:
    return visible_json(json.dumps(event, ensure_ascii=False, **options))


def configure(config: BrokerConfig, store: str = "") -> None:
    """Set format and level from `config`. Called again when the level changes. `store` = its name in a cluster, which
    each line then has."""
    console = config.log_format == "console" or (config.log_format == "auto" and sys.stderr.isatty())

    def add_broker(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event.setdefault("broker", config.name)
        if store:
            event["in_store"] = store
        return event

    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper("iso", utc=not console),
        add_broker,
    ]
    if console:
        colors = sys.stderr.isatty()
        processors += [_shown, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_traceback)]
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_json)]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[config.log_level]),
        logger_factory=_Logger,
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[_Bridge()], level=LEVELS[config.log_level], force=True)
    # At DEBUG it logs each event of each file in a watched directory. If the log is such a file, that never ends.
    logging.getLogger("watchdog").setLevel(logging.INFO)
