"""A model's assets read from a folder, for a gateway that renders without an engine."""

import hashlib
from pathlib import Path

from turing_gateway.fleet.assets import AssetSet
from turing_protocol.errors import Code, TuringError
from turing_protocol.folder import ASSET_FILES, INFO_FILE, info_from_json
from turing_protocol.messages import ModelInfo


class Folder:
    """The one model whose assets ``turing-engine --write-assets`` wrote into ``path``.

    It is read once. A file that is missing or broken is ``Code.INVALID`` on ``assets``.
    """

    def __init__(self, path: Path) -> None:
        self._info = info_from_json(_read(path / INFO_FILE))
        files = {name: _read(path / name) for name in ASSET_FILES}
        digests = [hashlib.sha256(data).hexdigest() for data in files.values()]
        self._assets = AssetSet(hashlib.sha256(repr(digests).encode()).hexdigest(), files)

    def models(self) -> list[ModelInfo]:
        """Return the model."""
        return [self._info]

    def adapters(self, info: ModelInfo) -> set[str]:
        """Return nothing: adapters are loaded into engines."""
        return set()

    async def assets(self, info: ModelInfo) -> AssetSet:
        """Return its files."""
        return self._assets


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        words = f"cannot read {path}: {error.strerror}; turing-engine --write-assets writes it"
        raise TuringError(Code.INVALID, words, param="assets") from None
