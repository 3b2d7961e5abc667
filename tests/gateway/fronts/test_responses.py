"""Responses: one object, and streams byte for byte."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from fakes.generator import Gateway, Script, begin, fails, finish, hello
from turing_gateway.call import (
    Call,
    Event,
    Failure,
    TextDelta,
    ThinkDelta,
    TokenInfo,
    ToolDelta,
)
from turing_protocol.errors import Code, TuringError

GOLDEN = Path(__file__).parents[2] / "golden" / "sse"
PATH = "/v1/responses"
BODY = {"model": "fake", "input": "hi"}


def thinks(call: Call) -> list[Event]:
    return [
        begin(),
        ThinkDelta(0, "so ", (5,)),
        ThinkDelta(0, "what", (6,)),
        TextDelta(0, "4\n", (7,)),
        TextDelta(0, "", (2,)),
        finish(output=4, reasoning_tokens=2),
    ]


def calls(call: Call) -> list[Event]:
    return [
        begin(),
        TextDelta(0, "let me", (3,)),
        ToolDelta(0, 0, "call_1", "add", '{"a"'),
        ToolDelta(0, 0, arguments=":1}"),
        ToolDelta(0, 1, "call_2", "ping", "{}"),
        finish(reason="tool_calls", output=9),
    ]


def cut_off(call: Call) -> list[Event]:
    return [
        begin(),
        ThinkDelta(0, "hm", (5,)),
        TextDelta(0, "Hel", (7,)),
        finish(reason="length", output=2, reasoning_tokens=1),
    ]


def logprobs(call: Call) -> list[Event]:
    first = TokenInfo(7, b"Hi", -0.5, ((b"Hi", -0.5), (b"\xf0\x9f", float("-inf"))))
    return [begin(), TextDelta(0, "Hi", (7,), (first,)), finish(output=1)]


def nothing(call: Call) -> list[Event]:
    return [begin(), TextDelta(0, "", (2,)), finish(output=1)]


def breaks_off(call: Call) -> list[Event]:
    error = TuringError(Code.ENGINE_LOST, "the engine was lost")
    return [begin(), ThinkDelta(0, "hm", (5,)), TextDelta(0, "Hel", (7,)), Failure(0, error)]


def crashes(call: Call) -> Any:
    yield begin()
    raise RuntimeError("secret")


GOLDEN_CASES: dict[str, tuple[Script, dict[str, Any]]] = {
    "plain": (hello, {}),
    "thinking": (thinks, {"reasoning": {"effort": "high"}}),
    "calls": (calls, {}),
    "cut_off": (cut_off, {"max_output_tokens": 2}),
    "logprobs": (logprobs, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
    "nothing": (nothing, {}),
    "breaks_off": (breaks_off, {}),
    "crashes": (crashes, {}),
}


def transcript(script: Script, fields: dict[str, Any]) -> str:
    body = BODY | {"stream": True} | fields
    response = Gateway(script).post(PATH, body, x_request_id="req-1")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    return re.sub(r'_at":\d+', '_at":1', response.text)


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_a_stream_is_what_it_was(name: str) -> None:
    assert transcript(*GOLDEN_CASES[name]) == (GOLDEN / f"responses_{name}.txt").read_text()


@pytest.mark.parametrize("name", ["plain", "thinking", "calls", "cut_off", "logprobs", "nothing"])
def test_the_whole_answer_is_the_last_event_of_the_stream(name: str) -> None:
    script, fields = GOLDEN_CASES[name]
    streamed = json.loads(transcript(script, fields).split("data: ")[-1])["response"]
    whole = Gateway(script).post(PATH, BODY | fields, x_request_id="req-1")
    assert json.loads(re.sub(r'_at":\d+', '_at":1', whole.text)) == streamed
    assert whole.headers["x-turing-lane"] == "interactive"


def test_what_was_asked_for_is_repeated() -> None:
    schema: dict[str, Any] = {
        "type": "json_schema",
        "name": "n",
        "schema": {},
        "description": None,
        "strict": True,
    }
    tool: dict[str, Any] = {
        "type": "function",
        "name": "f",
        "description": None,
        "parameters": {},
        "strict": None,
    }
    asked = {
        "instructions": "be brief",
        "tools": [tool],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "text": {"format": schema},
        "reasoning": {"effort": "low", "summary": None},
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.25,
        "metadata": {"k": "v"},
        "prompt_cache_key": "p",
    }
    reply = Gateway().post(PATH, BODY | asked | {"store": True, "user": "u"}).json()
    assert {name: reply[name] for name in asked} == asked
    assert (reply["store"], reply["background"], reply["truncation"]) == (False, False, "disabled")
    assert reply["id"].startswith("resp_")


def test_the_sdk_reads_answers_and_streams() -> None:
    client = Gateway(calls).client
    client.headers["authorization"] = "Bearer none"
    sdk = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none", http_client=client)
    answer = sdk.responses.create(model="fake", input="hi")
    assert answer.output_text == "let me"
    assert answer.usage is not None
    assert answer.usage.input_tokens_details.cached_tokens == 2
    with sdk.responses.stream(model="fake", input="hi") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert [item.type for item in final.output] == ["message", "function_call", "function_call"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("param", "named"), [("messages", "input"), ("max_tokens", "max_output_tokens"), ("n", "n")]
)
def test_what_fails_at_the_start_is_a_status_and_names_the_field(
    stream: bool, param: str, named: str
) -> None:
    gateway = Gateway(fails(Code.CONTEXT_TOO_LONG, f"{param} is long", param=param))
    response = gateway.post(PATH, BODY | {"stream": stream})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["message"]) == (named, f"{named} is long")


def test_a_full_queue_keeps_its_wait() -> None:
    response = Gateway(fails(Code.OVERLOADED, retry_ms=7000)).post(PATH, BODY)
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")


def test_an_answer_that_fails_half_way_is_an_error() -> None:
    response = Gateway(breaks_off).post(PATH, BODY)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "engine_lost"


def test_rendering_takes_the_same_body() -> None:
    items = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    gateway = Gateway()
    short = gateway.post(f"{PATH}/render", {"input": "hi"}).json()
    assert short == {"tokens": [ord(c) for c in "user:hi\n"], "count": 8}
    body = {"model": "fake", "input": items, "max_output_tokens": 7, "stream": True}
    router = gateway.post(f"{PATH}/render", body, x_request_id="r").json()
    assert router["request_id"] == "resp_r"
    assert router["token_ids"] == router["tokens"]
    assert router["sampling_params"]["max_tokens"] == 7
    refused = gateway.post(f"{PATH}/render", body | {"previous_response_id": "resp_0"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")
    assert gateway.generator.calls == []
