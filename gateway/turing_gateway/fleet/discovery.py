"""Engine addresses from ``tcp://host:port``, ``ipc://path`` and ``dns://name:port``."""

import asyncio
import logging
import re
import socket
from collections.abc import Sequence
from typing import Protocol

from turing_protocol.errors import Code, TuringError
from turing_protocol.registry import Registry

INTERVAL = 5.0
"""Seconds between two looks at a source that can change."""

log = logging.getLogger(__name__)

_HOST_PORT = re.compile(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[^\[\]/:@\s]+):(?P<port>\d{1,5})")


class Source(Protocol):
    """Where addresses come from; ``changes`` tells whether to ask again."""

    changes: bool

    async def addresses(self) -> list[str]:
        """Return what to dial now; ``OSError`` when the source cannot tell."""
        ...


DISCOVERY: Registry[Source] = Registry("discovery")


@DISCOVERY.add("tcp")
@DISCOVERY.add("ipc")
class Static:
    """One fixed address, dialled as it is written."""

    changes = False

    def __init__(self, spec: str) -> None:
        scheme, _, rest = spec.partition("://")
        if scheme == "tcp":
            _host_port(spec)
        elif not rest:
            raise _bad(spec, "ipc:// needs a path")
        self._address = spec

    async def addresses(self) -> list[str]:
        """Return the one address."""
        return [self._address]


@DISCOVERY.add("dns")
class Dns:
    """Every address that a name resolves to is one engine."""

    changes = True

    def __init__(self, spec: str) -> None:
        self._host, self._port = _host_port(spec)

    async def addresses(self) -> list[str]:
        """Resolve the name in a thread; ``OSError`` when that fails."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        hosts = {str(address[0]) for *_, address in found}
        return sorted(f"tcp://{_bracket(host)}:{self._port}" for host in hosts)


def sources(specs: Sequence[str]) -> list[Source]:
    """Return the source of each spec; an element may be a comma list. ``INVALID`` on a bad one."""
    parts = [part.strip() for spec in specs for part in spec.split(",") if part.strip()]
    return [_source(part) for part in dict.fromkeys(parts)]


async def look(source: Source, before: Sequence[str]) -> list[str]:
    """Return a source's addresses, or ``before`` while it cannot tell."""
    try:
        return await source.addresses()
    except OSError as error:
        log.warning("engines not resolved, keeping %d known: %s", len(before), error)
        return list(before)


def _source(spec: str) -> Source:
    scheme, mark, _ = spec.partition("://")
    if not mark or scheme not in DISCOVERY.names():
        known = ", ".join(f"{name}://" for name in DISCOVERY.names())
        raise _bad(spec, f"use one of {known}")
    return DISCOVERY.make(scheme, spec)


def _host_port(spec: str) -> tuple[str, int]:
    match = _HOST_PORT.fullmatch(spec.partition("://")[2])
    if match is None or not 0 < int(match["port"]) < 65536:
        raise _bad(spec, "expected host:port")
    return match["host"].strip("[]"), int(match["port"])


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _bad(spec: str, words: str) -> TuringError:
    return TuringError(Code.INVALID, f"engine address {spec!r}: {words}", param="engines")
