"""GGML storage types to float32, vectorised in numpy.

The block layouts are those of ggml-quants.c. Every decoder takes blocks ``[n, bytes per block]``
(uint8) and returns ``[n, elements per block]`` (float32). The arithmetic is done in the order of
the reference, so results agree with it bit for bit.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from turing_engine.models.gguf import BLOCK_TYPES, BlockType

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

SUPER_BLOCK: Final = 256
STRIP: Final = 1 << 20
"""Elements decoded at a time: temporaries of one strip stay in the cache."""

_BLOCKS: Final[dict[str, BlockType]] = {block.kind: block for block in BLOCK_TYPES.values()}


def dequantize(data: Bytes, kind: str, shape: tuple[int, ...]) -> Floats:
    """Return the tensor of storage type ``kind`` and ``shape`` that ``data`` holds, as float32.

    An unknown kind is a ``KeyError``; a wrong number of bytes is a ``ValueError``.
    """
    block = _BLOCKS[kind]
    decode = _DECODERS[kind]
    blocks = data.reshape(-1, block.nbytes)
    values = np.empty((len(blocks), block.size), np.float32)
    step = STRIP // block.size
    for start in range(0, len(blocks), step):
        values[start : start + step] = decode(blocks[start : start + step])
    return values.reshape(shape)


def _half(data: Bytes) -> Floats:
    """Read little-endian fp16 values: ``[n, 2k]`` bytes to ``[n, k]`` floats."""
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def _nibbles(data: Bytes, width: int) -> Bytes:
    """Split bytes into low nibbles, then high ones, per group of ``width`` bytes."""
    groups = data.reshape(len(data), -1, 1, width)
    shifts = np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    return ((groups >> shifts) & np.uint8(15)).reshape(len(data), -1)


def _bits(data: Bytes) -> Bytes:
    """Return the bits of ``data`` as 0 or 1, lowest first: ``[n, k]`` to ``[n, 8k]``."""
    return np.unpackbits(data, axis=1, bitorder="little")


def _plain(dtype: Any) -> Callable[[Bytes], Floats]:
    def decode(blocks: Bytes) -> Floats:
        values: Floats = blocks.view(dtype).astype(np.float32)
        return values

    return decode


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    quants = _nibbles(blocks[:, 2:], 16).astype(np.int8) - np.int8(8)
    return _half(blocks[:, :2]) * quants.astype(np.float32)


def _q4_1(blocks: Bytes) -> Floats:
    scale, low = _half(blocks[:, :2]), _half(blocks[:, 2:4])
    return scale * _nibbles(blocks[:, 4:], 16).astype(np.float32) + low


def _q5_0(blocks: Bytes) -> Floats:
    quants = _nibbles(blocks[:, 6:], 16) | (_bits(blocks[:, 2:6]) << np.uint8(4))
    return _half(blocks[:, :2]) * (quants.astype(np.int8) - np.int8(16)).astype(np.float32)


def _q5_1(blocks: Bytes) -> Floats:
    quants = _nibbles(blocks[:, 8:], 16) | (_bits(blocks[:, 4:8]) << np.uint8(4))
    return _half(blocks[:, :2]) * quants.astype(np.float32) + _half(blocks[:, 2:4])


def _q8_0(blocks: Bytes) -> Floats:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks[:, :2])


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Return scales and minimums ``[n, 8, 1]`` of the eight sub-blocks of Q4_K and Q5_K.

    Twelve bytes hold 2 x 8 six-bit numbers: the first four of each in the low bits of bytes 0-3 and
    4-7, the last four in nibbles of bytes 8-11, completed by the high bits of bytes 0-7.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = [first & 63, (third & 15) | ((first >> 2) & 48)]
    lows = [second & 63, (third >> 4) | ((second >> 2) & 48)]
    scale = _half(blocks[:, :2]) * np.concatenate(scales, axis=1).astype(np.float32)
    low = _half(blocks[:, 2:4]) * np.concatenate(lows, axis=1).astype(np.float32)
    return scale[:, :, None], low[:, :, None]


def _q4_k(blocks: Bytes) -> Floats:
    scale, low = _k_scales(blocks)
    quants = _nibbles(blocks[:, 16:], 32).reshape(-1, 8, 32).astype(np.float32)
    return (scale * quants - low).reshape(-1, SUPER_BLOCK)


def _q5_k(blocks: Bytes) -> Floats:
    scale, low = _k_scales(blocks)
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    high = (blocks[:, None, 16:48] >> shifts) & np.uint8(1)
    quants = _nibbles(blocks[:, 48:], 32).reshape(-1, 8, 32) | (high << np.uint8(4))
    return (scale * quants.astype(np.float32) - low).reshape(-1, SUPER_BLOCK)


def _q6_k(blocks: Bytes) -> Floats:
    scale = _half(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)
    low = _nibbles(blocks[:, :128], 64).reshape(-1, 2, 4, 32)
    quants = (low | (high << np.uint8(4))).astype(np.int8) - np.int8(32)
    values = scale[:, :, None] * quants.reshape(-1, 16, 16).astype(np.float32)
    return values.reshape(-1, SUPER_BLOCK)


_DECODERS: Final[dict[str, Callable[[Bytes], Floats]]] = {
    "F32": _plain(np.float32),
    "F16": _plain(np.float16),
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
