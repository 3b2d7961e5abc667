"""Render endpoints, for routers and for people."""

from typing import Any

import pytest

from fakes.generator import Gateway

CHAT = "/v1/chat/completions/render"
TEXT = "/v1/completions/render"
ANTHROPIC = "/v1/messages/render"
MESSAGES = [{"role": "user", "content": "hi"}]
IDS = [ord(character) for character in "user:hi\n"]


def test_a_person_gets_the_short_form() -> None:
    short = {"tokens": IDS, "count": 8}
    assert Gateway().post(CHAT, {"messages": MESSAGES}).json() == short
    assert Gateway().post(TEXT, {"prompt": "a"}).json() == {"tokens": [97], "count": 1}
    several = Gateway().post(TEXT, {"prompt": ["a", "b"]}).json()
    assert [reply["tokens"] for reply in several] == [[97], [98]]


def test_a_router_gets_one_object_for_chat() -> None:
    body = {"model": "fake", "messages": MESSAGES, "cache_salt": "s", "stream": True}
    reply = Gateway().post(CHAT, body, x_request_id="r1").json()
    assert reply["token_ids"] == reply["tokens"] == IDS
    assert (reply["request_id"], reply["model"], reply["features"]) == ("chatcmpl-r1", "fake", None)
    assert (reply["stream"], reply["cache_salt"], reply["priority"]) == (True, "s", 0)
    assert reply["sampling_params"]["max_tokens"] == 4096 - len(IDS)


@pytest.mark.parametrize(
    ("prompt", "ids"), [("a", [[97]]), (["a", "b"], [[97], [98]]), ([5, 6], [[5, 6]])]
)
def test_a_router_gets_an_array_for_completions(prompt: Any, ids: list[list[int]]) -> None:
    reply = Gateway().post(TEXT, {"model": "fake", "prompt": prompt}).json()
    assert [one["token_ids"] for one in reply] == ids
    assert reply[0]["request_id"].startswith("cmpl-")
    assert reply[0]["sampling_params"]["max_tokens"] == 16


def test_a_router_gets_one_object_for_messages() -> None:
    body = {"model": "fake", "messages": MESSAGES, "max_tokens": 9999, "stream": True}
    reply = Gateway().post(ANTHROPIC, body, x_request_id="r1").json()
    assert reply["token_ids"] == IDS
    assert (reply["request_id"], reply["model"], reply["stream"]) == ("msg_r1", "fake", True)
    assert reply["sampling_params"]["max_tokens"] == 4096 - len(IDS)
    body["max_tokens"] = 3
    assert Gateway().post(ANTHROPIC, body).json()["sampling_params"]["max_tokens"] == 3


def test_messages_are_rendered_without_a_model_and_a_limit() -> None:
    assert Gateway().post(ANTHROPIC, {"messages": MESSAGES}).json() == {"tokens": IDS, "count": 8}


def test_a_whole_client_body_is_taken() -> None:
    body = {
        "model": "fake",
        "messages": MESSAGES,
        "temperature": 0.5,
        "logit_bias": {"7": 1},
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_object"},
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "prompt_logprobs": 1,
        "priority": 3,
        "reasoning": {"effort": "high"},
        "return_mm_kwargs": False,
    }
    reply = Gateway().post(CHAT, body).json()
    assert reply["token_ids"] == IDS
    assert reply["sampling_params"]["logit_bias"] == {"7": 1.0}
    assert reply["priority"] == 3


def test_the_last_of_two_equal_keys_wins() -> None:
    raw = b'{"model":"none","prompt":"x","prompt":"a","model":"fake"}'
    assert Gateway().client.post(TEXT, content=raw).json()[0]["token_ids"] == [97]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (TEXT, {"model": "none", "prompt": "a"}, 404),
        (TEXT, {"model": "fake"}, 400),
        (TEXT, {"model": "fake", "prompt": ""}, 400),
        (CHAT, {"model": "fake", "messages": []}, 400),
        (ANTHROPIC, {"model": "none", "messages": MESSAGES}, 404),
        (ANTHROPIC, {"model": "fake", "messages": []}, 400),
        (CHAT, {"model": "fake", "messages": MESSAGES, "chat_template": "x"}, 400),
        (CHAT, {"model": "fake", "messages": MESSAGES, "truncate_prompt_tokens": 5}, 400),
    ],
)
def test_what_cannot_be_rendered_is_refused(path: str, body: dict[str, Any], status: int) -> None:
    assert Gateway().post(path, body).status_code == status


def test_no_run_is_started() -> None:
    gateway = Gateway()
    gateway.post(CHAT, {"model": "fake", "messages": MESSAGES})
    assert gateway.generator.calls == []
