"""Messages over the wire: every one whole, none that is not ours, old and new peers together."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.samples import DIRECTIONS, MESSAGES, SAMPLES, Decode, Message, decoder
from turing_protocol.codec import (
    compatible,
    encode,
    pack,
    pack_floats,
    unpack,
    unpack_floats,
)
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import MAJOR, MINOR, FromEngine, StateMessage, ToEngine

GOLDEN = Path(__file__).parents[1] / "golden"
CURRENT = json.loads((GOLDEN / f"wire-{MAJOR}.{MINOR}.json").read_text())
DECODERS = [decode for _, decode in DIRECTIONS]

HOSTILE = {
    "empty": b"",
    "not msgpack": b"\xc1",
    "a scalar": b"\x01",
    "a map": b"\x80",
    "no tag": b"\x90",
    "an unknown tag": msgspec.msgpack.encode([999, 1]),
    "a text tag": msgspec.msgpack.encode(["Abort", 1]),
    "a missing field": msgspec.msgpack.encode([2]),
    "nested 200,000 deep": b"\x91" * 200_000,
    "nested in an unknown field": msgspec.msgpack.encode([3, 7])[:0]
    + b"\x93\x03\x07"
    + b"\x91" * 200_000,
    "an array of four billion": b"\xdd\xff\xff\xff\xff",
    "a map of four billion": b"\xdf\xff\xff\xff\xff",
    "text of four billion bytes": b"\x92\x01\xdb\xff\xff\xff\xff",
    "bytes of four billion": b"\x95\x02\x07\x01\xc6\xff\xff\xff\xff",
    "text that is no UTF-8": b"\x94\x01\x01\x00\xa2\xff\xff",
    "infinity for an integer": b"\x92\x03\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",
    "a timestamp": b"\xd6\xff\x00\x00\x00\x00",
    "two messages": encode(SAMPLES["Abort"]) * 2,
    "a pickle": b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00\x8c\x01a\x94.",
}


def refused(decode: Decode, frame: bytes) -> bool:
    try:
        decode(frame)
    except TuringError as error:
        assert error.code is Code.VERSION
        return True
    return False


@pytest.mark.parametrize("name", SAMPLES)
def test_the_bytes_of_this_minor_are_frozen(name: str) -> None:
    assert encode(SAMPLES[name]).hex() == CURRENT[name]
    assert decoder(SAMPLES[name])(bytes.fromhex(CURRENT[name])) == SAMPLES[name]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("wire-*.json")), ids=lambda path: path.stem)
def test_messages_of_every_earlier_minor_are_understood(path: Path) -> None:
    for name, frame in json.loads(path.read_text()).items():
        assert type(decoder(SAMPLES[name])(bytes.fromhex(frame))).__name__ == name


def test_there_is_a_sample_of_every_message() -> None:
    unions = [*ToEngine.__args__, *FromEngine.__args__, *StateMessage.__args__]
    assert {union.__name__ for union in unions} == set(SAMPLES) == set(CURRENT)


@given(MESSAGES)
def test_every_message_comes_through_whole(message: Message) -> None:
    assert decoder(message)(encode(message)) == message


@given(MESSAGES)
def test_a_message_is_refused_in_any_other_direction(message: Message) -> None:
    frame = encode(message)
    assert sum(not refused(decode, frame) for decode in DECODERS) == 1


def _appended(value: Any) -> Any:
    """Return a struct's array with a field of a later minor behind every nested struct."""
    if isinstance(value, msgspec.Struct):
        fields = [_appended(getattr(value, name)) for name in value.__struct_fields__]
        tag = value.__struct_config__.tag
        return ([] if tag is None else [tag]) + fields + [{"new": [1, None]}]
    if isinstance(value, list | tuple):
        return [_appended(item) for item in value]
    if isinstance(value, dict):
        return {key: _appended(item) for key, item in value.items()}
    return value


@given(MESSAGES)
def test_an_old_reader_skips_fields_that_a_new_writer_appended(message: Message) -> None:
    frame = msgspec.msgpack.encode(_appended(message))
    assert decoder(message)(frame) == message


@pytest.mark.parametrize("name", SAMPLES)
def test_a_new_reader_fills_in_what_an_old_writer_left_out(name: str) -> None:
    message = SAMPLES[name]
    fields = msgspec.structs.fields(message)
    required = [field for field in fields if field.required]
    values = msgspec.msgpack.decode(encode(message))[: 1 + len(required)]
    read = decoder(message)(msgspec.msgpack.encode(values))
    for field in fields:
        expected = message if field.required else type(message)(*values_of(message, required))
        assert getattr(read, field.name) == getattr(expected, field.name)


def values_of(message: Message, fields: list[msgspec.structs.FieldInfo]) -> list[Any]:
    return [getattr(message, field.name) for field in fields]


@pytest.mark.parametrize("decode", DECODERS, ids=["to_engine", "from_engine", "state"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_frame_is_refused(decode: Decode, name: str) -> None:
    assert refused(decode, HOSTILE[name])


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_refused(frame: bytes) -> None:
    for decode in DECODERS:
        refused(decode, frame)


@given(MESSAGES, st.data())
def test_a_damaged_message_is_a_message_or_refused(message: Message, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    refused(decoder(message), bytes(frame[: data.draw(st.integers(0, len(frame)))]))


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_ids_come_through_packing(ids: list[int]) -> None:
    assert unpack(pack(ids)) == ids


def test_ids_are_little_endian_int32() -> None:
    assert pack([1, -2]) == b"\x01\x00\x00\x00\xfe\xff\xff\xff"


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_floats_come_through_packing(values: list[float]) -> None:
    assert unpack_floats(pack_floats(values)) == values


@pytest.mark.parametrize("read", [unpack, unpack_floats])
@given(data=st.binary(max_size=16).filter(lambda data: len(data) % 4 != 0))
def test_packed_values_of_a_broken_length_are_refused(read: Any, data: bytes) -> None:
    with pytest.raises(TuringError) as caught:
        read(data)
    assert caught.value.code is Code.VERSION


def test_peers_talk_when_their_majors_match() -> None:
    assert compatible(MAJOR)
    assert not compatible(MAJOR + 1)
    assert not compatible(MAJOR - 1)
