"""Tokens to text in whole characters, equal to decoding them at once."""

from hypothesis import given
from hypothesis import strategies as st

from fakes.vocabularies import byte_level, model_info, sentencepiece
from turing_gateway.text.detokenize import Detokenizer
from turing_gateway.text.tokenizer import Tokenizer

BYTES = Tokenizer(byte_level(["<|end|>"], ["  "]).to_str().encode(), model_info())
PIECES = Tokenizer(sentencepiece().to_str().encode(), model_info())
HARD = "🫠🥹龜é"


def shown(tokenizer: Tokenizer, ids: list[int], *, strip_space: bool = False) -> list[str]:
    detokenizer = Detokenizer(tokenizer, strip_space=strip_space)
    return [detokenizer.feed(token)[0] for token in ids]


def byte_token(byte: int) -> int:
    return next(token for token in range(600) if BYTES.token_bytes(token) == bytes([byte]))


@given(st.text(max_size=40))
def test_byte_level_text_comes_back(text: str) -> None:
    ids = BYTES.encode(text, add_special=False, parse_special=False)
    assert "".join(shown(BYTES, ids)) == BYTES.decode(ids, skip_special=True)


@given(st.lists(st.integers(0, 500), max_size=30))
def test_any_tokens_give_the_text_of_decoding_them_at_once(ids: list[int]) -> None:
    whole = BYTES.decode(ids, skip_special=True)
    text = "".join(shown(BYTES, ids))
    # What is still incomplete at the end is shown by neither; at once it is one U+FFFD.
    assert whole in (text, text + "\ufffd")


@given(st.text(st.characters(codec="utf-8", exclude_characters="▁"), max_size=40))
def test_sentencepiece_text_comes_back_without_the_leading_space(text: str) -> None:
    ids = PIECES.encode(text, add_special=False, parse_special=False)
    assert "".join(shown(PIECES, ids, strip_space=True)) == text


def test_rare_characters_arrive_whole() -> None:  # F01
    for tokenizer in (BYTES, PIECES):
        ids = tokenizer.encode(HARD, add_special=False, parse_special=False)
        texts = shown(tokenizer, ids, strip_space=tokenizer.strips_space)
        assert len(ids) > len(HARD)
        assert "".join(texts) == HARD
        assert not any("\ufffd" in text for text in texts)


def test_a_lone_byte_is_one_replacement_and_text_goes_on() -> None:  # F02
    ids = BYTES.encode("ok", add_special=False, parse_special=False)
    texts = shown(BYTES, [*ids, byte_token(0x80), *ids])
    assert "".join(texts) == "ok\ufffdok"


def test_a_lead_byte_without_the_rest_is_one_replacement() -> None:
    ids = BYTES.encode("ok", add_special=False, parse_special=False)
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.feed(byte_token(0xF0)) == ("", b"\xf0")
    assert detokenizer.pending
    assert "".join(detokenizer.feed(token)[0] for token in ids) == "\ufffdok"
    assert not detokenizer.pending


def test_special_tokens_show_only_when_asked() -> None:
    end = BYTES.control.ids[0]
    assert Detokenizer(BYTES).feed(end) == ("", b"")
    assert Detokenizer(BYTES, skip_special=False).feed(end) == ("<|end|>", b"<|end|>")


def test_only_the_first_space_is_stripped() -> None:
    ids = PIECES.encode("the end of the turn", add_special=False, parse_special=False)
    assert "".join(shown(PIECES, ids)) == " the end of the turn"
    assert "".join(shown(PIECES, ids, strip_space=True)) == "the end of the turn"
