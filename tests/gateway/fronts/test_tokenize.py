"""Tokenizer endpoints in both spellings."""

from typing import Any

import pytest

from fakes.generator import Gateway


def tokens(**body: Any) -> Any:
    return Gateway().post("/tokenize", body).json()


def test_text_becomes_ids_with_their_count() -> None:
    assert tokens(prompt="ab", add_special_tokens=False) == {
        "count": 2,
        "max_model_len": 4096,
        "tokens": [97, 98],
    }


@pytest.mark.parametrize(
    ("body", "special"),
    [
        ({"prompt": "a"}, True),
        ({"prompt": "a", "add_special_tokens": False}, False),
        ({"content": "a"}, False),
        ({"content": "a", "add_special": True}, True),
        ({"prompt": "a", "content": "a", "add_special_tokens": False, "add_special": True}, False),
    ],
)
def test_special_tokens_follow_the_spelling_of_each_server(
    body: dict[str, Any], special: bool
) -> None:
    assert tokens(**body)["tokens"] == [1] * special + [97]


def test_empty_text_has_no_tokens() -> None:
    assert tokens(content="")["tokens"] == []


def test_pieces_are_given_on_demand() -> None:
    assert tokens(content="ab", return_token_strs=True)["token_strs"] == ["a", "b"]
    assert tokens(content="a", with_pieces=True)["tokens"] == [{"id": 97, "piece": "a"}]


def test_a_conversation_is_rendered() -> None:
    body = tokens(model="fake", messages=[{"role": "user", "content": "x"}])
    assert "".join(map(chr, body["tokens"])) == "user:x\n"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x"}], "chat_template": "x"}, "chat_template"),
        ({"prompt": "a", "model": "none"}, "model"),
    ],
)
def test_a_wrong_field_is_named(body: dict[str, Any], param: str) -> None:
    assert tokens(**body)["error"]["param"] == param


def test_ids_become_text_under_both_names() -> None:
    reply = Gateway().post("/detokenize", {"tokens": [97, 98]})
    assert reply.json() == {"prompt": "ab", "content": "ab"}


@pytest.mark.parametrize("ids", [None, "ab", [-1], [1.5], [2**31], [True]])
def test_what_cannot_be_ids_is_refused(ids: Any) -> None:
    reply = Gateway().post("/detokenize", {"tokens": ids})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("tokens")
