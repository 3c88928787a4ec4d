"""One log for us and our libraries, on standard error: a fixed phrase in the past tense, facts as fields; no secrets.

    log = get(__name__)
    log.info("job claimed", job=17, lane="claude")

ERROR: a person must act. WARNING: failed, will be tried again. INFO: a state changed. Context (job, attempt, issue,
lane, runner) comes from `structlog.contextvars.bound_contextvars`.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import stamina.instrumentation
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from tireless.errors import ConfigError
from tireless.redact import Redactor

_QUIET = ("uvicorn", "uvicorn.error", "uvicorn.access", "httpx", "httpcore", "apscheduler", "psycopg", "psycopg.pool")
"""Libraries whose INFO is our DEBUG."""


def configure(
    level: str = "INFO", *, json: bool | None = None, redactor: Redactor, stream: TextIO | None = None
) -> None:
    """Set up the log of this process; again with other values if need be.

    `json` None: JSON lines unless the stream is a terminal. Start uvicorn with `log_config=None`, or it brings its own.
    """
    out = stream or sys.stderr
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(f"the log level {level!r} is none of DEBUG, INFO, WARNING, ERROR")
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # loggers made at import time follow a later configure
    )
    handler = OurHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _renderer(json=not out.isatty() if json is None else json, colors=out.isatty()),
                _Redact(redactor),
            ],
        )
    )
    _install(handler, number)
    stamina.instrumentation.set_on_retry_hooks([_repeated])


def get(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module: `log = get(__name__)` at its head."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def _repeated(details: stamina.instrumentation.RetryDetails) -> None:
    get("stamina").warning("call repeated", error=str(details.caused_by), again_in_s=round(details.wait_for, 1))


class OurHandler(logging.StreamHandler[TextIO]):
    """Told apart from handlers that others put on the root logger."""


class _Redact:
    """Runs on the finished line, so that nothing slips past: field, traceback or name."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def __call__(self, _logger: WrappedLogger, _method: str, line: EventDict | str | bytes) -> str:
        return self._redactor.text(str(line))


def _renderer(*, json: bool, colors: bool) -> Processor:
    if json:
        return structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
    return structlog.dev.ConsoleRenderer(
        colors=colors, timestamp_key="at", exception_formatter=structlog.dev.plain_traceback
    )


def _install(handler: logging.Handler, level: int) -> None:
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, OurHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for name in _QUIET:
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
        library.setLevel(level if level <= logging.DEBUG else max(level, logging.WARNING))
