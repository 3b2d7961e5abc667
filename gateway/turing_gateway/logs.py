"""Log lines on stderr, for people or as JSON. Prompts and answers are never among them."""

import logging
import sys

import structlog


def configure(level: str, *, json: bool) -> None:
    """Send log lines of ``level`` and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _render(json)],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _render(json: bool) -> structlog.typing.Processor:
    if json:
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
