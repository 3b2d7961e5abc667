"""Chat completions: one object, and streams byte for byte."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fakes.asgi import Connection, json_headers
from fakes.generator import Gateway, Script, begin, finish, hello
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
from turing_protocol.lanes import Lane

GOLDEN = Path(__file__).parents[2] / "golden" / "sse"


def logprobs(call: Call) -> list[Event]:
    first = TokenInfo(7, b"Hi", -0.5, ((b"Hi", -0.5), (b"\xf0\x9f", float("-inf"))))
    return [begin(), TextDelta(0, "Hi", (7,), (first,)), finish(reason="length", output=1)]


def thinking(call: Call) -> list[Event]:
    return [
        begin(),
        ThinkDelta(0, "so ", (5,)),
        ThinkDelta(0, "what", (6,)),
        TextDelta(0, "4\n", (7,)),
        TextDelta(0, "", (2,)),
        finish(output=4, reasoning_tokens=2),
    ]


def tool_calls(call: Call) -> list[Event]:
    return [
        begin(),
        ToolDelta(0, 0, "call_1", "add", '{"a"'),
        ToolDelta(0, 0, arguments=":1}"),
        ToolDelta(0, 1, "call_2", "ping", "{}"),
        finish(reason="tool_calls", output=9),
    ]


def two_choices(call: Call) -> list[Event]:
    return [
        begin(1),
        TextDelta(1, "b", (8,)),
        begin(0),
        TextDelta(0, 'é\u2028"', (7,)),
        finish(1, output=1),
        finish(0, output=1),
    ]


def breaks_off(call: Call) -> list[Event]:
    error = TuringError(Code.ENGINE_LOST, "the engine was lost")
    return [begin(), TextDelta(0, "Hel", (7,)), Failure(0, error)]


def crashes(call: Call) -> Any:
    yield begin()
    raise RuntimeError("secret")


GOLDEN_CASES: dict[str, tuple[Script, dict[str, Any]]] = {
    "plain": (hello, {}),
    "usage": (hello, {"stream_options": {"include_usage": True}}),
    "running_usage": (
        hello,
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    "logprobs": (logprobs, {"logprobs": True, "top_logprobs": 2}),
    "thinking": (thinking, {}),
    "without_thinking": (thinking, {"include_reasoning": False}),
    "tool_calls": (tool_calls, {}),
    "two_choices": (two_choices, {"n": 2, "stream_options": {"include_usage": True}}),
    "token_ids": (thinking, {"return_token_ids": True}),
    "breaks_off": (breaks_off, {}),
    "crashes": (crashes, {}),
}


def transcript(gateway: Gateway, fields: dict[str, Any]) -> str:
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    response = gateway.post("/v1/chat/completions", body | fields, x_request_id="req-1")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    text = re.sub(r'"created":\d+', '"created":1', response.text)
    return re.sub(r'"system_fingerprint":"[^"]*"', '"system_fingerprint":"turing-x"', text)


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_a_stream_is_what_it_was(name: str) -> None:
    script, fields = GOLDEN_CASES[name]
    assert transcript(Gateway(script), fields) == (GOLDEN / f"chat_{name}.txt").read_text()


def test_the_answer_as_one_object() -> None:
    reply = Gateway().post(
        "/v1/chat/completions",
        {"model": "fake", "messages": [{"role": "user", "content": "hi"}]},
        x_request_id="req-1",
    )
    body = reply.json()
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "id": "chatcmpl-req-1",
        "object": "chat.completion",
        "model": "fake",
        "system_fingerprint": body["system_fingerprint"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 2,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    assert reply.headers["x-request-id"] == "req-1"


def joined(text: str) -> dict[int, dict[str, Any]]:
    """Put a stream's choices together as a client does."""
    choices: dict[int, dict[str, Any]] = {}
    for line in text.split("\n\n"):
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            whole = choices.setdefault(
                choice["index"], {"content": "", "reasoning": "", "calls": []}
            )
            delta = choice["delta"]
            whole["content"] += delta.get("content", "")
            whole["reasoning"] += delta.get("reasoning_content", "")
            whole["finish_reason"] = choice["finish_reason"]
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(whole["calls"]):
                    whole["calls"].append({"id": call["id"], **call["function"]})
                else:
                    whole["calls"][-1]["arguments"] += call["function"]["arguments"]
    return choices


@pytest.mark.parametrize("script", [hello, thinking, tool_calls, two_choices])
def test_a_stream_says_what_the_object_says(script: Script) -> None:
    fields = {"n": 2} if script is two_choices else {}
    streamed = joined(Gateway(script).chat(stream=True, **fields).text)
    choices = Gateway(script).chat(**fields).json()["choices"]
    assert [choice["index"] for choice in choices] == sorted(streamed)
    for choice in choices:
        whole, message = streamed[choice["index"]], choice["message"]
        assert whole["content"] == (message["content"] or "")
        assert whole["reasoning"] == message.get("reasoning_content", "")
        assert whole["finish_reason"] == choice["finish_reason"]
        calls = [{"id": c["id"], **c["function"]} for c in message.get("tool_calls", [])]
        assert whole["calls"] == calls


def test_tool_calls_leave_no_empty_content() -> None:
    message = Gateway(tool_calls).chat().json()["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0] == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a":1}'},
    }


def test_log_probabilities_are_finite_and_keep_true_bytes() -> None:
    reply = Gateway(logprobs).chat(logprobs=True, top_logprobs=2).json()
    (entry,) = reply["choices"][0]["logprobs"]["content"]
    assert entry["bytes"] == [72, 105]
    assert entry["top_logprobs"][1] == {
        "token": "\\xf0\\x9f",
        "logprob": -9999.0,
        "bytes": [0xF0, 0x9F],
    }


def test_token_ids_are_returned_on_demand() -> None:
    reply = Gateway().chat(return_token_ids=True).json()
    assert reply["choices"][0]["token_ids"] == [7, 8]
    assert reply["prompt_token_ids"] == [ord(c) for c in "user:hi\n"]
    assert "prompt_token_ids" not in Gateway().chat().json()


def test_the_answer_carries_the_applied_controls() -> None:
    def script(call: Call) -> list[Event]:
        return [begin(sparsity=0.5, svd_kv=1, draft_tokens=4, queue_depth=2), finish()]

    gateway = Gateway(script)
    body = {"model": "fake", "messages": [{"role": "user", "content": "x"}]}
    for stream in (False, True):
        reply = gateway.post(
            "/v1/chat/completions",
            body | {"stream": stream},
            x_turing_lane="batch",
            x_turing_tenant_id="sql",
        )
        assert reply.headers["x-turing-lane"] == "batch"
        assert reply.headers["x-turing-sparsity"] == "0.5"
        assert reply.headers["x-turing-queue-depth"] == "2"
    assert (gateway.call().lane, gateway.call().adapter) == (Lane.BATCH, "sql")


def test_a_malformed_header_is_named() -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": "x"}]}
    reply = Gateway().post("/v1/chat/completions", body, x_turing_lane="express")
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "X-Turing-Lane"


@pytest.mark.parametrize("leave_after", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_run(stream: bool, leave_after: int) -> None:
    def silent(call: Call) -> list[Event]:
        return hello(call)[:leave_after]

    gateway = Gateway(silent, hang=True)
    body = {"messages": [{"role": "user", "content": "x"}], "stream": stream}

    async def run() -> None:
        connection = Connection(
            "/v1/chat/completions", [json.dumps(body).encode()], headers=json_headers()
        )
        serving = asyncio.ensure_future(connection.serve(gateway.app))
        while not gateway.generator.calls:
            await asyncio.sleep(0)
        connection.leave()
        await asyncio.wait_for(serving, 5)

    asyncio.run(run())
    assert gateway.generator.closed == 1
    assert "turing_request_abort_total" in gateway.metrics.expose().decode()


UNSERVED: list[tuple[str, Any]] = [
    ("guided_json", {}),
    ("guided_regex", "a"),
    ("bad_words", ["x"]),
    ("allowed_token_ids", [1]),
    ("logits_processors", []),
    ("use_beam_search", True),
    ("prompt_logprobs", 0),
    ("kv_transfer_params", {}),
    ("stream_interval", 4),
    ("priority", 3),
    ("modalities", ["text", "audio"]),
    ("audio", {}),
    ("web_search_options", {}),
    ("chat_template", "{{ x }}"),
    ("documents", []),
    ("functions", []),
    ("function_call", "auto"),
    ("truncate_prompt_tokens", -1),
    ("echo", True),
    ("add_special_tokens", True),
]


@pytest.mark.parametrize(("name", "value"), UNSERVED)
def test_what_is_not_served_is_refused_by_name(name: str, value: Any) -> None:
    gateway = Gateway()
    reply = gateway.chat(**{name: value})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (
        400,
        "unsupported_parameter",
        name,
    )
    assert gateway.generator.calls == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", 0),
        ("stream_interval", 1),
        ("modalities", ["text"]),
        ("use_beam_search", False),
        ("echo", False),
        ("add_special_tokens", False),
        ("chat_template", None),
        ("response_format", {"type": "text"}),
        ("user", "u"),
        ("store", True),
        ("metadata", {"a": "b"}),
        ("service_tier", "auto"),
        ("anything", [1]),
        *((name, None) for name, _ in UNSERVED),
    ],
)
def test_what_asks_for_nothing_new_is_served(name: str, value: Any) -> None:
    assert Gateway().chat(**{name: value}).status_code == 200


def test_tools_that_may_not_be_called_reach_the_template() -> None:
    gateway = Gateway()
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    assert gateway.chat(tools=tools, tool_choice="none").status_code == 200
    assert [tool.name for tool in gateway.call().tools] == ["f"]


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (None, "tool_calls"),
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "add"}}, "stop"),
    ],
)
def test_the_finish_reason_is_the_same_in_both_modes(choice: Any, reason: str) -> None:  # F19
    gateway = Gateway(tool_calls)
    tools = [{"type": "function", "function": {"name": "add"}}]
    fields = {"tools": tools, "tool_choice": choice}
    whole = gateway.chat(**fields).json()["choices"][0]
    assert (whole["finish_reason"], len(whole["message"]["tool_calls"])) == (reason, 2)
    text = gateway.chat(**fields, stream=True).text
    assert f'"finish_reason":"{reason}"' in text


@pytest.mark.parametrize(
    ("model", "found", "effort"),
    [("fake", "fake", ""), ("hf/fake/high", "fake", "high"), ("fake:low", "fake", "low")],
)
def test_a_model_name_may_carry_provider_and_effort(model: str, found: str, effort: str) -> None:
    gateway = Gateway()
    reply = gateway.chat(model=model)
    assert reply.json()["model"] == model
    assert (gateway.call().model, gateway.call().effort) == (found, effort)
    gateway.chat(model=model, reasoning_effort="max")
    assert gateway.call().effort == "max"


def test_an_unknown_model_is_404_and_lists_what_is_served() -> None:
    reply = Gateway().chat(model="no-such")
    assert reply.status_code == 404
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "fake" in error["message"]
