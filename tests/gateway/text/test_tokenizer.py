"""Ids equal Hugging Face's, and a plain encoding has no control tokens."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Oracle

from fakes.vocabularies import byte_level, model_info, sentencepiece, token_id
from turing_gateway.text.tokenizer import Tokenizer
from turing_protocol.errors import Code, TuringError

MIXED = [
    "Hello, World! It's 12 o'clock   3",
    "  x\n\n\ty  = {'a': [1, 2]}\r\n ",
    "Schöne Grüße, 日本語 हिन्दी Привет 🫠🥹龜é e\u0301",
    "the end<|end|>of <think> the turn</s>",
    "",
]


def spec(oracle: Oracle, **changes: Any) -> bytes:
    return json.dumps(json.loads(oracle.to_str()) | changes).encode()


def tokenizer(oracle: Oracle, **facts: Any) -> Tokenizer:
    return Tokenizer(oracle.to_str().encode(), model_info(**facts))


ORACLES = {
    "byte-level": byte_level(["<|end|>"], ["<think>", "    "]),
    "sentencepiece": sentencepiece(["<|end|>"]),
    "metaspace": sentencepiece(["<|end|>"], metaspace=True),
}


@pytest.mark.parametrize("kind", ORACLES)
@pytest.mark.parametrize("text", MIXED)
def test_parsing_special_tokens_equals_the_library(kind: str, text: str) -> None:
    ours = tokenizer(ORACLES[kind]).encode(text, add_special=False, parse_special=True)
    assert ours == ORACLES[kind].encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", ORACLES)
@given(text=st.text(max_size=60))
def test_a_marked_prompt_equals_the_library_without_user_control_text(kind: str, text: str) -> None:
    ours = tokenizer_of(kind)
    for prompt in (text, f"<|end|>{text}", f"{text}<|end|>{text}<|end|>"):
        assert ours.encode_marked(prompt) == ORACLES[kind].encode(prompt).ids


_made: dict[str, Tokenizer] = {}


def tokenizer_of(kind: str) -> Tokenizer:
    return _made.setdefault(kind, tokenizer(ORACLES[kind]))


@pytest.mark.parametrize("kind", ORACLES)
@given(st.lists(st.sampled_from(["<|end|>", "</s>", "<think>", "<unk>", "<", "/s>", " a"])))
def test_a_plain_encoding_has_no_control_token(kind: str, pieces: list[str]) -> None:
    ours = tokenizer_of(kind)
    text = "x" + "".join(pieces)
    ids = ours.encode(text, add_special=False, parse_special=False)
    assert not set(ids) & set(ours.control.ids)
    assert ours.decode(ids, skip_special=False) == text


def test_plain_added_tokens_still_are_used() -> None:
    ours = tokenizer_of("byte-level")
    wide = token_id(ORACLES["byte-level"], "    ")
    assert wide in ours.encode("a    b", add_special=False, parse_special=False)


def test_merges_that_make_a_control_token_are_not_used() -> None:
    # A vocabulary in which merging plain characters gives the control token.
    vocabulary = {"<": 0, "s": 1, ">": 2, "<s": 3, "<s>": 4}
    added = {"id": 4, "content": "<s>", "special": True, "normalized": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    data = spec(
        sentencepiece(),
        added_tokens=[added | flags],
        normalizer=None,
        model={"type": "BPE", "vocab": vocabulary, "merges": [["<", "s"], ["<s", ">"]]},
    )
    ours = Tokenizer(data, model_info())
    assert ours.encode("<s>", add_special=False, parse_special=True) == [4]
    assert ours.encode("<s>", add_special=False, parse_special=False) == [3, 2]


def test_the_first_token_is_added_only_where_the_model_wants_it() -> None:
    with_bos = tokenizer(sentencepiece(), bos_id=1, add_bos=True)
    without = tokenizer(sentencepiece(), bos_id=1, add_bos=False)
    assert with_bos.encode("", add_special=True, parse_special=True) == [1]
    assert with_bos.encode("", add_special=False, parse_special=True) == []
    assert without.encode("", add_special=True, parse_special=True) == []


def test_the_bytes_of_a_text_are_the_bytes_of_its_tokens() -> None:
    ours = tokenizer_of("byte-level")
    for text in MIXED[:2]:
        ids = ours.encode(text, add_special=False, parse_special=False)
        assert b"".join(map(ours.token_bytes, ids)) == text.encode()


def test_bytes_of_single_tokens() -> None:
    ours = tokenizer_of("sentencepiece")
    oracle = ORACLES["sentencepiece"]
    assert ours.token_bytes(token_id(oracle, "<0x0A>")) == b"\n"
    assert ours.token_bytes(token_id(oracle, "<0xF0>")) == b"\xf0"
    assert ours.token_bytes(token_id(oracle, "▁the")) == b" the"
    assert ours.token_bytes(token_id(oracle, "<|end|>")) == b"<|end|>"
    assert ours.token_bytes(4000) == b""


@pytest.mark.parametrize(("scheme", "strips"), [("first", True), ("never", False)])
def test_a_metaspace_decoder_strips_the_space_that_it_put_there(scheme: str, strips: bool) -> None:
    step = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    ours = Tokenizer(spec(sentencepiece(), decoder=step), model_info())
    assert ours.strips_space is strips
    assert ours.token_bytes(token_id(ORACLES["sentencepiece"], "▁the")) == b" the"


def test_pieces_that_only_look_like_bytes_are_text() -> None:
    model = {"type": "BPE", "vocab": {"<0xZZ>": 0, "▁日": 1}, "merges": []}
    pieces = Tokenizer(spec(sentencepiece(), model=model, added_tokens=[]), model_info())
    assert pieces.token_bytes(0) == b"<0xZZ>"
    bytes_ = Tokenizer(spec(byte_level(), model=model), model_info())
    assert bytes_.token_bytes(1) == "▁日".encode()


def test_truncation_saved_in_the_file_is_not_applied() -> None:
    oracle = byte_level()
    oracle.enable_truncation(4)
    oracle.enable_padding(length=8)
    ids = tokenizer(oracle).encode("a b c d e f", add_special=False, parse_special=True)
    assert tokenizer(oracle).decode(ids, skip_special=False) == "a b c d e f"


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"{", Code.INVALID, "does not load"),
        (b'{"model":{"type":"Unigram","vocab":[]}}', Code.UNSUPPORTED, "Unigram"),
        (spec(byte_level(), decoder=None), Code.UNSUPPORTED, "decoder"),
        (
            spec(byte_level(), model={"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}),
            Code.INVALID,
            "does not load",
        ),
    ],
)
def test_a_file_that_cannot_be_used_says_why(data: bytes, code: Code, words: str) -> None:
    with pytest.raises(TuringError, match=words) as caught:
        Tokenizer(data, model_info())
    assert caught.value.code is code
