"""A model's facts as a file."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.samples import MODEL
from turing_protocol.errors import Code, TuringError
from turing_protocol.folder import info_from_json, info_to_json
from turing_protocol.messages import ModelInfo

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NUMBER = st.integers(0, 2**53)
INFOS = st.builds(
    ModelInfo,
    name=TEXT,
    digest=TEXT,
    architecture=TEXT,
    context=NUMBER,
    vocab_size=NUMBER,
    eos_ids=st.lists(NUMBER, max_size=3).map(tuple),
    bos_id=st.none() | NUMBER,
    add_bos=st.booleans(),
    parameters=NUMBER,
    size_bytes=NUMBER,
    quantization=TEXT,
    kv_bytes_per_token=NUMBER,
    modified=st.floats(0, 1e12),
    aliases=st.lists(TEXT, max_size=2).map(tuple),
    embedding_length=NUMBER,
    format=TEXT,
)


@given(INFOS)
def test_facts_come_back_as_they_were(info: ModelInfo) -> None:
    assert info_from_json(info_to_json(info)) == info


def test_the_file_names_every_field() -> None:
    named = json.loads(info_to_json(MODEL))
    assert tuple(named) == ModelInfo.__struct_fields__
    assert named["eos_ids"] == [2, 0]


def test_fields_that_an_older_file_lacks_have_their_defaults() -> None:
    named = json.loads(info_to_json(MODEL))
    del named["aliases"], named["format"]
    older = info_from_json(json.dumps(named | {"later": 1}).encode())
    assert older == msgspec.structs.replace(MODEL, aliases=(), format="")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "truncated"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing required field `name`"),
        (info_to_json(MODEL).replace(b"8192", b"1.5"), "context"),
        (b"\xff", "malformed"),
        (b'{"x":' + b"[" * 200_000, "recursion"),
    ],
)
def test_what_is_no_such_file_is_invalid(data: bytes, words: str) -> None:
    with pytest.raises(TuringError, match=words) as caught:
        info_from_json(data)
    assert caught.value.code is Code.INVALID
    assert caught.value.message.startswith("model.json is not valid: ")
