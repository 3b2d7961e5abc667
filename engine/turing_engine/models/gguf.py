"""A bounded, torch-free reader of GGUF files.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
Every count, length, type and offset is checked before anything is allocated for it, so a truncated
or hostile file costs one error and no memory.
"""

import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turing_protocol.errors import Code, TuringError

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MAX_TENSORS: Final = 1 << 16
MAX_KEYS: Final = 1 << 16
MAX_NAME: Final = 1 << 16
MAX_DIMS: Final = 4
MAX_ALIGNMENT: Final = 1 << 16
HEADER_LIMIT: Final = 64 << 20
"""Most bytes of metadata and tensor descriptions; a 262k vocabulary needs about 16 MB."""

ARRAY_TYPE: Final = 9
STRING_TYPE: Final = 8
BOOL_TYPE: Final = 7

_SCALARS: Final[dict[int, str]] = {
    0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4",
    7: "u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip


class BlockType(NamedTuple):
    """A storage type of tensors: ``size`` elements are stored in ``nbytes`` bytes."""

    kind: str
    size: int
    nbytes: int


BLOCK_TYPES: Final[dict[int, BlockType]] = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    30: BlockType("BF16", 1, 2),
}
"""GGML type number to storage type, for every type this engine can de-quantise."""


class TensorInfo(NamedTuple):
    """Where one tensor lies.

    ``shape`` is in row-major (numpy) order, ``offset`` counts from the start of the file.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class GgufFile:
    """A GGUF file mapped into memory: ``metadata`` (arrays as lists), ``tensors``, and their bytes.

    Raises ``TuringError`` (``Code.INVALID``, param ``model``) that says what is wrong with a file
    which is not a sound GGUF file, and ``OSError`` when it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with self.path.open("rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            if self.size < 24:
                raise self._error("is too short to be a GGUF file")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._cursor = _Cursor(self._map, min(self.size, HEADER_LIMIT), self._error)
        tensor_count, key_count = self._read_counts()
        self.metadata: dict[str, Any] = self._read_metadata(key_count)
        self.tensors: dict[str, TensorInfo] = self._read_tensors(tensor_count)

    def data(self, name: str) -> NDArray[np.uint8]:
        """Return the stored bytes of tensor ``name`` as a read-only view; unknown: ``KeyError``."""
        info = self.tensors[name]
        return np.frombuffer(self._map, np.uint8, info.nbytes, info.offset)

    def _error(self, what: str) -> TuringError:
        return TuringError(Code.INVALID, f"{self.path.name}: {what}", param="model")

    def _read_counts(self) -> tuple[int, int]:
        cursor = self._cursor
        if cursor.take(4, "the magic") != MAGIC:
            raise self._error("is not a GGUF file (no GGUF magic)")
        version = cursor.number("<I", "the version")
        if version not in VERSIONS:
            raise self._error(f"has GGUF version {version}; supported: 2 and 3, little-endian")
        tensors = cursor.number("<Q", "the tensor count")
        keys = cursor.number("<Q", "the metadata count")
        for what, count, most in (("tensors", tensors, MAX_TENSORS), ("keys", keys, MAX_KEYS)):
            if count > most:
                raise self._error(f"declares {count} {what}; at most {most} are allowed")
        return tensors, keys

    def _read_metadata(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for index in range(count):
            key = self._cursor.name(f"metadata key {index}")
            if key in metadata:
                raise self._error(f"has metadata key {key!r} twice")
            metadata[key] = self._read_value(key)
        return metadata

    def _read_value(self, key: str) -> Any:
        kind = self._cursor.number("<I", f"the type of {key!r}")
        if kind == ARRAY_TYPE:
            item = self._cursor.number("<I", f"the item type of {key!r}")
            count = self._cursor.number("<Q", f"the length of {key!r}")
            return self._read_items(key, item, count)
        return self._read_items(key, kind, 1)[0]

    def _read_items(self, key: str, kind: int, count: int) -> list[Any]:
        if kind == STRING_TYPE:
            return self._cursor.strings(count, key)
        if kind not in _SCALARS:
            raise self._error(f"metadata {key!r} has type {kind}, which is not supported")
        items = self._cursor.numbers(_SCALARS[kind], count, key)
        return [bool(item) for item in items] if kind == BOOL_TYPE else items

    def _read_tensors(self, count: int) -> dict[str, TensorInfo]:
        infos = [self._read_info(index) for index in range(count)]
        start = self._align(self._cursor.position)
        tensors = {info.name: info._replace(offset=start + info.offset) for info in infos}
        if len(tensors) != count:
            raise self._error("describes a tensor twice")
        self._check_extents(tensors)
        return tensors

    def _read_info(self, index: int) -> TensorInfo:
        cursor = self._cursor
        name = cursor.name(f"the name of tensor {index}")
        dims = cursor.number("<I", f"the dimensions of {name!r}")
        if not 1 <= dims <= MAX_DIMS:
            raise self._error(f"tensor {name!r} has {dims} dimensions; 1 to {MAX_DIMS} are allowed")
        shape = tuple(cursor.numbers("<u8", dims, name))
        kind = cursor.number("<I", f"the type of {name!r}")
        offset = cursor.number("<Q", f"the offset of {name!r}")
        block = BLOCK_TYPES.get(kind)
        if block is None:
            known = ", ".join(known.kind for known in BLOCK_TYPES.values())
            raise self._error(f"tensor {name!r} has GGML type {kind}; supported: {known}")
        return TensorInfo(name, block.kind, shape[::-1], offset, self._nbytes(name, shape, block))

    def _nbytes(self, name: str, shape: tuple[int, ...], block: BlockType) -> int:
        elements = 1
        for dim in shape:
            elements *= dim
        if elements == 0 or shape[0] % block.size:
            raise self._error(
                f"tensor {name!r} has shape {shape}, which is not whole {block.kind} blocks"
            )
        return elements // block.size * block.nbytes

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        valid = isinstance(alignment, int) and 8 <= alignment <= MAX_ALIGNMENT
        if not valid or alignment & (alignment - 1):
            raise self._error(f"general.alignment is {alignment!r}, not a power of two from 8 on")
        return int(alignment)

    def _align(self, position: int) -> int:
        alignment = self._alignment()
        return (position + alignment - 1) // alignment * alignment

    def _check_extents(self, tensors: dict[str, TensorInfo]) -> None:
        end, before = 0, ""
        for info in sorted(tensors.values(), key=lambda info: info.offset):
            if info.offset != self._align(info.offset):
                raise self._error(f"tensor {info.name!r} is not aligned")
            if info.offset < end:
                raise self._error(f"tensors {before!r} and {info.name!r} overlap")
            end, before = info.offset + info.nbytes, info.name
            if end > self.size:
                raise self._error(
                    f"tensor {info.name!r} ends at byte {end}, behind the end of the file"
                    f" ({self.size} bytes): the file is truncated"
                )


class _Cursor:
    """Reads values one after the other from ``buffer`` and never behind ``end``."""

    def __init__(self, buffer: mmap.mmap, end: int, error: Callable[[str], TuringError]) -> None:
        self.position = 0
        self._buffer = buffer
        self._end = end
        self._error = error

    def _advance(self, nbytes: int, what: str) -> int:
        start = self.position
        if nbytes > self._end - start:
            raise self._error(
                f"{what} needs {nbytes} bytes at byte {start}, but the header ends at {self._end}:"
                " the file is truncated or its counts are wrong"
            )
        self.position = start + nbytes
        return start

    def take(self, nbytes: int, what: str) -> bytes:
        start = self._advance(nbytes, what)
        return self._buffer[start : start + nbytes]

    def number(self, layout: str, what: str) -> int:
        start = self._advance(struct.calcsize(layout), what)
        return int(struct.unpack_from(layout, self._buffer, start)[0])

    def numbers(self, dtype: str, count: int, what: str) -> list[Any]:
        start = self._advance(count * np.dtype(dtype).itemsize, f"{count} items of {what!r}")
        items: list[Any] = np.frombuffer(self._buffer, dtype, count, start).tolist()
        return items

    def name(self, what: str) -> str:
        length = self.number("<Q", what)
        if not 0 < length < MAX_NAME:
            raise self._error(f"{what} is {length} bytes long")
        return self._text(self.take(length, what), what)

    def strings(self, count: int, what: str) -> list[str]:
        if count * 8 > self._end - self.position:
            raise self._error(f"{count} strings of {what!r} do not fit into the file")
        buffer, end, position = self._buffer, self._end, self.position
        items: list[bytes] = []
        for _ in range(count):  # a vocabulary has 10^5 of these: no calls in here
            start = position + 8
            position = start + int.from_bytes(buffer[start - 8 : start], "little")
            if position > end:
                raise self._error(f"string {len(items)} of {what!r} ends behind the file's header")
            items.append(buffer[start:position])
        self.position = position
        return [self._text(item, what) for item in items]

    def _text(self, data: bytes, what: str) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self._error(f"{what!r} holds bytes that are not UTF-8") from None
