"""How log records become lines: for people, or one JSON object a line for what collects logs.

Whatever text a record holds, also from requests, it stays within its line.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from enum import Enum

_OWN_ATTRIBUTES = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
"""What every record has; the rest came by `extra`."""


class LogFormat(str, Enum):
    """How a line looks."""

    TEXT = "text"
    JSON = "json"


class LogLevel(str, Enum):
    """The least severe that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class TextLines(logging.Formatter):
    """Time, level, logger and message. Lines of a traceback are indented, so that none can pass for a record."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without its traceback."""
        return _printable(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        """The traceback, indented."""
        lines = super().formatException(ei).splitlines()  # type: ignore[arg-type]  # as the base class has it
        return "\n".join(f"  {_printable(line)}" for line in lines)


class JsonLines(logging.Formatter):
    """One object a line: time (RFC 3339), level, logger, message, the fields given by `extra`, and exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        fields = {name: value for name, value in vars(record).items() if name not in _OWN_ATTRIBUTES}
        line = {
            **fields,
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def set_up_logging(log_format: LogFormat, level: LogLevel) -> None:
    """Writes the records of the whole process, its libraries' and Python's warnings too, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format is LogFormat.JSON else TextLines())
    logging.basicConfig(level=level.name, handlers=[handler], force=True)
    logging.captureWarnings(True)


def _printable(text: str) -> str:
    """Text with everything escaped that could end its line or hide in it."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
