"""Text completions: prompt forms, several prompts at once, echo, streams byte for byte."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fakes.generator import Gateway, Script, begin, fails, finish, hello
from turing_gateway.call import Call, Event, Failure, TextDelta, TokenInfo
from turing_protocol.errors import Code, TuringError

GOLDEN = Path(__file__).parents[2] / "golden" / "sse"


def repeats(call: Call) -> Iterable[Event]:
    """Answer with the prompt and the number of the choice."""
    for choice in range(call.choices):
        text = f"{call.prompt}{choice}"
        yield from (begin(choice), TextDelta(choice, text, (1, 2)), finish(choice, output=2))


def logprobs(call: Call) -> list[Event]:
    half = TokenInfo(3, b"\xc3", -1.0, ((b"\xc3", -1.0),))
    rest = TokenInfo(4, b"\xa9", -2.0, ((b"x", -0.5),))
    word = TokenInfo(5, b" ok", float("-inf"))
    return [
        begin(),
        TextDelta(0, "é", (3, 4), (half, rest)),
        TextDelta(0, " ok", (5,), (word,)),
        finish(reason="length"),
    ]


def second_prompt_fails(call: Call) -> list[Event]:
    if call.prompt == "a":
        return hello(call)
    return [begin(), Failure(0, TuringError(Code.ENGINE_LOST, "lost"))]


GOLDEN_CASES: dict[str, tuple[Script, dict[str, Any]]] = {
    "plain": (hello, {}),
    "usage": (hello, {"stream_options": {"include_usage": True}}),
    "logprobs": (logprobs, {"logprobs": 1}),
    "echo": (hello, {"echo": True, "n": 2}),
    "echo_only": (hello, {"echo": True, "max_tokens": 0}),
    "token_ids": (hello, {"return_token_ids": True}),
}


def transcript(gateway: Gateway, fields: dict[str, Any]) -> str:
    body = {"model": "fake", "prompt": "Say", "stream": True}
    response = gateway.post("/v1/completions", body | fields, x_request_id="req-1")
    assert response.status_code == 200
    text = re.sub(r'"created":\d+', '"created":1', response.text)
    return re.sub(r'"system_fingerprint":"[^"]*"', '"system_fingerprint":"turing-x"', text)


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_a_stream_is_what_it_was(name: str) -> None:
    script, fields = GOLDEN_CASES[name]
    assert transcript(Gateway(script), fields) == (GOLDEN / f"text_{name}.txt").read_text()


def test_the_answer_as_one_object() -> None:
    reply = Gateway().complete().json()
    assert reply["id"].startswith("cmpl-")
    assert reply["object"] == "text_completion"
    assert reply["choices"] == [
        {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}
    ]
    assert reply["usage"]["total_tokens"] == 7


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a"], ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
def test_every_prompt_form_is_taken(prompt: Any, prompts: list[Any]) -> None:
    gateway = Gateway()
    assert gateway.complete(prompt=prompt).status_code == 200
    assert [call.prompt for call in gateway.generator.calls] == prompts


@pytest.mark.parametrize(
    "prompt", [[], "", [""], [[]], ["a", ""], ["a", 1], [[1], "a"], [1, "a"], ["a"] * 257, None]
)
def test_a_prompt_that_is_none_is_refused(prompt: Any) -> None:
    gateway = Gateway()
    reply = gateway.complete(prompt=prompt)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("prompt")
    assert gateway.generator.calls == []


def test_choices_are_prompt_major_and_each_prompt_counts_once() -> None:
    reply = Gateway(repeats).complete(prompt=["a", "b"], n=2).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in reply["choices"]] == ["a0", "a1", "b0", "b1"]
    assert reply["usage"]["prompt_tokens"] == 10
    assert reply["usage"]["completion_tokens"] == 8


def test_one_prompt_that_fails_fails_the_answer() -> None:
    gateway = Gateway(second_prompt_fails)
    reply = gateway.complete(prompt=["a", "b"])
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "engine_lost"
    assert gateway.generator.closed == 2


def test_one_prompt_that_fails_ends_the_stream_with_an_error() -> None:
    text = Gateway(second_prompt_fails).complete(prompt=["a", "b"], stream=True).text
    *_, last, done, _ = text.split("\n\n")
    assert last.startswith('data: {"error"')
    assert done == "data: [DONE]"


def test_max_tokens_is_16_unless_given() -> None:
    gateway = Gateway()
    gateway.complete()
    assert gateway.call().max_tokens == 16
    gateway.complete(max_tokens=3)
    assert gateway.call().max_tokens == 3


def test_echo_repeats_text_and_ids_as_text() -> None:
    assert Gateway().complete(prompt="Say ", echo=True).json()["choices"][0]["text"] == "Say Hello"
    ids = [ord("A"), ord(":")]
    assert Gateway().complete(prompt=ids, echo=True).json()["choices"][0]["text"] == "A:Hello"


def test_echo_alone_asks_no_engine() -> None:
    gateway = Gateway()
    response = gateway.complete(prompt=["Say", "b"], echo=True, max_tokens=0, n=2)
    assert gateway.generator.calls == []
    assert "x-turing-sparsity" not in response.headers
    reply = response.json()
    assert [choice["text"] for choice in reply["choices"]] == ["Say", "Say", "b", "b"]
    assert {choice["finish_reason"] for choice in reply["choices"]} == {"length"}
    assert reply["usage"]["prompt_tokens"] == 4
    assert reply["usage"]["completion_tokens"] == 0


def test_log_probabilities_have_four_parallel_lists() -> None:
    choice = Gateway(logprobs).complete(logprobs=1).json()["choices"][0]
    assert choice["logprobs"] == {
        "tokens": ["bytes:\\xc3", "bytes:\\xa9", " ok"],
        "token_logprobs": [-1.0, -2.0, -9999.0],
        "top_logprobs": [
            {"bytes:\\xc3": -1.0},
            {"x": -0.5, "bytes:\\xa9": -2.0},
            {" ok": -9999.0},
        ],
        "text_offset": [0, 0, 1],
    }


def test_token_ids_are_returned_on_demand() -> None:
    (choice,) = Gateway().complete(prompt=[5, 6], return_token_ids=True).json()["choices"]
    assert (choice["token_ids"], choice["prompt_token_ids"]) == ([7, 8], [5, 6])


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"best_of": 1, "n": 2}, "best_of", "unsupported_parameter"),
        ({"echo": True, "logprobs": 0}, "echo", "unsupported_parameter"),
        ({"prompt_embeds": "x"}, "prompt_embeds", "unsupported_parameter"),
        ({"max_tokens": 0}, "max_tokens", None),
        ({"max_tokens": -1}, "max_tokens", None),
        ({"logprobs": -4}, "logprobs", None),
        ({"logprobs": 21}, "logprobs", None),
        ({"prompt": [1, -2]}, "prompt.1", None),
        ({"prompt": {"a": 1}}, "prompt", None),
        ({"prompt": 5}, "prompt", None),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    fields: dict[str, Any], param: str, code: str | None
) -> None:
    reply = Gateway().complete(**fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, param, code)


@pytest.mark.parametrize("fields", [{"suffix": ""}, {"best_of": 2, "n": 2}, {"suffix": None}])
def test_what_asks_for_nothing_new_is_served(fields: dict[str, Any]) -> None:
    assert Gateway().complete(**fields).status_code == 200


def test_special_tokens_are_added_unless_switched_off() -> None:
    gateway = Gateway()
    gateway.complete()
    assert gateway.call().add_special_tokens
    gateway.complete(add_special_tokens=False)
    assert not gateway.call().add_special_tokens


def test_a_failure_before_the_first_event_is_a_status() -> None:
    reply = Gateway(fails(Code.CONTEXT_TOO_LONG, "too long", param="prompt")).complete(stream=True)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"
