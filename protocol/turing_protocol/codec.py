"""Bytes ⇄ messages, packed token ids, and the version rule."""

import sys
from array import array
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import (
    MAJOR,
    FromEngine,
    StateMessage,
    ToEngine,
)

M = TypeVar("M")

if sys.byteorder != "little":
    raise ImportError("the wire packs ids in little-endian order; this machine is big-endian")

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
_state: msgspec.msgpack.Decoder[StateMessage] = msgspec.msgpack.Decoder(StateMessage)


def encode(message: ToEngine | FromEngine | StateMessage) -> bytes:
    """Return the one frame that carries ``message``."""
    return _encoder.encode(message)


def decode_to_engine(frame: bytes) -> ToEngine:
    """Decode what a gateway sent; anything else is ``Code.VERSION``."""
    return _decode(_to_engine, frame)


def decode_from_engine(frame: bytes) -> FromEngine:
    """Decode what an engine sent; anything else is ``Code.VERSION``."""
    return _decode(_from_engine, frame)


def decode_state(frame: bytes) -> StateMessage:
    """Decode what an engine published; anything else is ``Code.VERSION``."""
    return _decode(_state, frame)


def _decode(decoder: "msgspec.msgpack.Decoder[M]", frame: bytes) -> M:
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise TuringError(Code.VERSION, f"not a message of this wire: {error}") from None


def pack(ids: Iterable[int]) -> bytes:
    """Return ids as little-endian int32 bytes."""
    return array("i", ids).tobytes()


def unpack(data: bytes) -> list[int]:
    """Return the ids packed in ``data``; a broken length is ``Code.VERSION``."""
    ids: list[int] = _unpack("i", data)
    return ids


def pack_floats(values: Iterable[float]) -> bytes:
    """Return values as little-endian float32 bytes."""
    return array("f", values).tobytes()


def unpack_floats(data: bytes) -> list[float]:
    """Return the float32 values packed in ``data``; a broken length is ``Code.VERSION``."""
    values: list[float] = _unpack("f", data)
    return values


def _unpack(kind: str, data: bytes) -> list[Any]:
    packed: array[Any] = array(kind)
    try:
        packed.frombytes(data)
    except ValueError:
        raise TuringError(Code.VERSION, "packed values must be a multiple of 4 bytes") from None
    return packed.tolist()


def compatible(major: int) -> bool:
    """Whether a peer that speaks ``major`` can be talked to; minors never matter."""
    return major == MAJOR
