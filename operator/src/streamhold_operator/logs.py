"""How log lines look: plain text for people, or one JSON object a line for collectors."""

from __future__ import annotations

import datetime
import json
import logging

_OURS = "streamhold_operator"
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and whatever was passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        entry: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in _PLAIN and name not in entry}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure(log_format: str, level: str) -> None:
    """Send all log lines to standard error; other packages only from warnings on, unless debugging."""
    handler = logging.StreamHandler()
    if log_format == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    number = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(number if level == "debug" else max(number, logging.WARNING))
    logging.getLogger(_OURS).setLevel(number)
