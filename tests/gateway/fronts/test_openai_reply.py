"""Chunk bytes and log-probability layouts."""

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.generator import begin, finish
from turing_gateway.call import Call, TokenInfo
from turing_gateway.fronts.openai_reply import (
    Chunks,
    Identity,
    TextLogprobs,
    chat_logprobs,
    encode,
    field,
    identity,
    token_text,
)
from turing_gateway.fronts.openai_types import SamplingBody, StreamOptions

NAME = Identity("id-1", "chunk", 1, 'a"model', "turing-x")


def parsed(line: bytes) -> dict[str, Any]:
    """Return the JSON of one event, which must be one line as SSE wants it."""
    assert line.startswith(b"data: {")
    assert line.endswith(b"}\n\n")
    assert line.count(b"\n") == 2
    body: dict[str, Any] = json.loads(line[6:])
    return body


@given(st.text(), st.integers(0, 127))
def test_any_text_survives_its_chunk(text: str, index: int) -> None:
    chunks = Chunks(NAME, "delta", SamplingBody())
    body = parsed(chunks.choice(index, b'{"content":' + encode(text) + b"}"))
    assert body == {
        **msgspec.structs.asdict(NAME),
        "choices": [
            {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
        ],
    }


def test_more_fields_go_where_they_belong() -> None:
    chunks = Chunks(NAME, "text", SamplingBody())
    line = chunks.choice(0, b'""', finish=b'"stop"', extra=field("a", [1]), more=field("b", 2))
    body = parsed(line)
    assert body["b"] == 2
    assert body["choices"][0]["a"] == [1]
    assert body["choices"][0]["finish_reason"] == "stop"
    assert chunks.end() == b""


@pytest.mark.parametrize("running", [None, False, True])
def test_usage_is_null_until_the_last_chunk_unless_it_runs(running: bool | None) -> None:
    options = StreamOptions(include_usage=True, continuous_usage_stats=running)
    chunks = Chunks(NAME, "text", SamplingBody(stream_options=options))
    chunks.usage.count(begin())
    between = parsed(chunks.choice(0, b'""'))["usage"]
    assert between == (chunks.usage.openai(running=True) if running else None)
    chunks.usage.count(finish())
    last = parsed(chunks.end())
    assert last["choices"] == []
    assert last["usage"] == chunks.usage.openai()


def test_running_usage_needs_usage() -> None:
    options = StreamOptions(continuous_usage_stats=True)
    chunks = Chunks(NAME, "text", SamplingBody(stream_options=options))
    assert "usage" not in parsed(chunks.choice(0, b'""'))


def test_an_answer_is_named_as_its_client_named_the_model() -> None:
    call = Call(model="fake", request_id="r1")
    assert identity("cmpl", "text_completion", call, "hf/fake", "v").model == "hf/fake"
    unnamed = identity("cmpl", "text_completion", call, None, "v")
    assert (unnamed.id, unnamed.model) == ("cmpl-r1", "fake")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b" a", " a"),
        ("é".encode(), "é"),
        (b"\xe2\x80", "\\xe2\\x80"),
        (b"a\xff", "\\x61\\xff"),
    ],
)
def test_a_token_has_a_text(data: bytes, text: str) -> None:
    assert token_text(data) == text


def test_chat_entries_are_sorted_as_given_and_have_no_alternatives_unless_asked() -> None:
    token = TokenInfo(1, b"a", -0.1, ((b"a", -0.1), (b"b", -3.0)))
    layout = chat_logprobs([token, TokenInfo(2, b"", -1.0)])
    assert [top["token"] for top in layout["content"][0]["top_logprobs"]] == ["a", "b"]
    assert layout["content"][1] == {
        "token": "",
        "logprob": -1.0,
        "bytes": [],
        "top_logprobs": [],
    }


@given(st.text(min_size=1, max_size=20), st.data())
def test_offsets_count_characters_however_the_bytes_are_cut(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)))) | {0, len(raw)})
    pieces = [raw[low:high] for low, high in itertools.pairwise(cuts)]
    tokens = [TokenInfo(i, piece, -1.0) for i, piece in enumerate(pieces)]
    layout = TextLogprobs()
    streamed = [layout.layout([token])["text_offset"][0] for token in tokens]
    assert TextLogprobs().layout(tokens)["text_offset"] == streamed
    for offset, start in zip(streamed, cuts, strict=False):
        assert offset == len(raw[:start].decode("utf-8", "ignore"))
