"""Files that gateways need of a model (tokenizer, template), fetched once per content."""

import asyncio
import hashlib
import logging
from collections.abc import Iterable

import msgspec

from turing_gateway.fleet.sockets import Connection
from turing_gateway.fleet.view import EngineView
from turing_protocol.errors import TuringError

log = logging.getLogger(__name__)


class AssetSet(msgspec.Struct, frozen=True):
    """The files of one model by name; ``key`` is the same exactly for the same files."""

    key: str
    files: dict[str, bytes]


class Assets:
    """Asset bytes by SHA-256, whichever engine they came from."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._asked: set[str] = set()

    def of(self, view: EngineView) -> AssetSet | None:
        """Return an engine's files; ``None`` while any is missing."""
        files, named = self._files, sorted(view.assets.items())
        if any(digest not in files for _, digest in named):
            return None
        key = hashlib.sha256(repr(named).encode()).hexdigest()
        return AssetSet(key, {name: files[digest] for name, digest in named})

    def missing(self, view: EngineView) -> dict[str, str]:
        """Return the names and hashes that nobody was asked for yet."""
        known = self._files.keys() | self._asked
        return {name: digest for name, digest in view.assets.items() if digest not in known}

    def keep_only(self, views: Iterable[EngineView]) -> None:
        """Forget files that no engine names any more."""
        named = {digest for view in views for digest in view.assets.values()}
        self._files = {digest: data for digest, data in self._files.items() if digest in named}

    async def fetch(self, connection: Connection) -> bool:
        """Get what is missing from one engine; ``False`` when it was lost meanwhile."""
        wanted = self.missing(connection.view)
        self._asked.update(wanted.values())
        try:
            files = await connection.fetch(list(wanted)) if wanted else {}
            for name, data in files.items():
                await self._accept(name, wanted.get(name), data)
        except TuringError as error:
            log.warning("assets of %s not fetched: %s", connection.view.endpoint, error.message)
        finally:
            self._asked.difference_update(wanted.values())
        return connection.view.alive

    async def _accept(self, name: str, wanted: str | None, data: bytes) -> None:
        digest = (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()
        if digest == wanted:
            self._files[digest] = data
        else:
            log.error("asset %s does not match its hash %s: dropped", name, wanted)
