"""Anthropic's messages over HTTP: one object, and streams byte for byte."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fakes.asgi import Connection, json_headers
from fakes.generator import Gateway, Script, begin, fails, finish, hello
from turing_gateway import http
from turing_gateway.call import Call, Event, Failure, TextDelta, ThinkDelta, ToolDelta
from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import Lane

GOLDEN = Path(__file__).parents[2] / "golden" / "sse"
PATH = "/v1/messages"
BODY: dict[str, Any] = {
    "model": "fake",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hi"}],
}


def thinking(call: Call) -> list[Event]:
    return [
        begin(),
        ThinkDelta(0, "so ", (5,)),
        ThinkDelta(0, "what", (6,)),
        TextDelta(0, 'é\u2028"', (7,)),
        finish(output=4, stop="END"),
    ]


def tool_calls(call: Call) -> list[Event]:
    return [
        begin(),
        TextDelta(0, "Hm.", (4,)),
        ToolDelta(0, 0, "call_1", "add", '{"a"'),
        ToolDelta(0, 0, arguments=":1}"),
        ToolDelta(0, 1, "call_2", "ping", "{}"),
        finish(reason="tool_calls", output=9),
    ]


def nothing(call: Call) -> list[Event]:
    return [begin(), finish(reason="length", output=0)]


def breaks_off(call: Call) -> list[Event]:
    error = TuringError(Code.ENGINE_LOST, "the engine was lost")
    return [begin(), TextDelta(0, "Hel", (7,)), Failure(0, error)]


def crashes(call: Call) -> Any:
    yield begin()
    raise RuntimeError("secret")


ADAPTIVE = {"type": "adaptive", "display": "omitted"}
GOLDEN_CASES: dict[str, tuple[Script, dict[str, Any]]] = {
    "plain": (hello, {}),
    "thinking": (thinking, {"thinking": {"type": "adaptive"}}),
    "thinking_omitted": (thinking, {"thinking": ADAPTIVE}),
    "tool_use": (tool_calls, {}),
    "nothing": (nothing, {"max_tokens": 0}),
    "breaks_off": (breaks_off, {}),
    "crashes": (crashes, {}),
}


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_a_stream_is_what_it_was(name: str) -> None:
    script, fields = GOLDEN_CASES[name]
    reply = Gateway(script).post(PATH, BODY | {"stream": True} | fields, x_request_id="req-1")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["request-id"] == "req-1"
    assert reply.text == (GOLDEN / f"messages_{name}.txt").read_text()


def test_the_answer_as_one_object() -> None:
    reply = Gateway().post(PATH, BODY, x_request_id="req-1")
    assert reply.headers["request-id"] == "req-1"
    assert reply.headers["content-type"] == "application/json"
    assert reply.json() == {
        "type": "message",
        "id": "msg_req-1",
        "role": "assistant",
        "model": "fake",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 3,
            "output_tokens": 2,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 2,
        },
    }


def added_up(text: str) -> dict[str, Any]:
    """Put a stream together as Anthropic's SDK does."""
    message: dict[str, Any] = {}
    for event in text.split("\n\n")[:-1]:
        data = json.loads(event.partition("\ndata: ")[2])
        match data["type"]:
            case "message_start":
                message = data["message"]
            case "content_block_start":
                message["content"].append(data["content_block"] | {"json": ""})
            case "content_block_delta":
                block, delta = message["content"][data["index"]], data["delta"]
                for field in ("text", "thinking", "signature"):
                    if field in delta:
                        block[field] += delta[field]
                block["json"] += delta.get("partial_json", "")
            case "content_block_stop":
                block = message["content"][data["index"]]
                raw = block.pop("json")
                if block["type"] == "tool_use":
                    block["input"] = json.loads(raw or "{}")
            case "message_delta":
                message |= data["delta"] | {"usage": data["usage"]}
    return message


@pytest.mark.parametrize("script", [hello, thinking, tool_calls, nothing])
def test_a_stream_says_what_the_object_says(script: Script) -> None:
    whole = Gateway(script).post(PATH, BODY, x_request_id="r").json()
    streamed = Gateway(script).post(PATH, BODY | {"stream": True}, x_request_id="r").text
    assert added_up(streamed) == whole


def test_a_waiting_client_is_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "KEEP_ALIVE_S", 0.01)
    gateway = Gateway(lambda call: [begin()], hang=True)

    async def run() -> bytes:
        body = json.dumps(BODY | {"stream": True}).encode()
        connection = Connection(PATH, [body], headers=json_headers())
        serving = asyncio.ensure_future(connection.serve(gateway.app))
        await connection.until_sent(3)
        connection.leave()
        await serving
        return connection.body

    first, ping, *_ = asyncio.run(run()).split(b"\n\n")
    assert first.startswith(b"event: message_start\n")
    assert ping == b'event: ping\ndata: {"type":"ping"}'


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_run(stream: bool) -> None:
    gateway = Gateway(lambda call: [begin()], hang=True)

    async def run() -> None:
        body = json.dumps(BODY | {"stream": stream}).encode()
        connection = Connection(PATH, [body], headers=json_headers())
        serving = asyncio.ensure_future(connection.serve(gateway.app))
        while not gateway.generator.calls:
            await asyncio.sleep(0)
        connection.leave()
        await asyncio.wait_for(serving, 5)

    asyncio.run(run())
    assert gateway.generator.closed == 1


def test_headers_reach_the_call_and_the_answer() -> None:
    gateway = Gateway()
    reply = gateway.post(
        f"{PATH}?beta=true",
        BODY,
        x_turing_lane="batch",
        x_turing_tenant_id="sql",
        x_claude_code_session_id="s1",
        anthropic_version="2026-10-21",
        anthropic_beta="never-heard-of-2030-01-01",
    )
    assert reply.status_code == 200
    assert reply.headers["x-turing-lane"] == "batch"
    call = gateway.call()
    assert (call.lane, call.adapter, call.session) == (Lane.BATCH, "sql", "s1")


def test_what_a_local_model_has_no_use_for_is_accepted() -> None:
    fields: dict[str, Any] = {
        "metadata": {"user_id": "{}"},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "container": None,
        "inference_geo": "eu",
        "speed": "fast",
        "diagnostics": {},
        "never_heard_of": 1,
        "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "summarized"},
        "output_config": {"effort": "xhigh", "format": None},
        "stop_sequences": [],
        "tools": None,
    }
    assert Gateway().post(PATH, BODY | fields).status_code == 200


def test_tokens_are_counted_with_the_prompt_of_the_answer() -> None:
    gateway = Gateway()
    body = {key: BODY[key] for key in ("model", "messages")} | {"system": "be"}
    assert gateway.post(f"{PATH}/count_tokens?beta=true", body).json() == {
        "input_tokens": len("system:be\nuser:hi\n")
    }
    assert gateway.generator.calls == []


# Failures


def check_error(reply: Any, status: int, kind: str) -> str:
    assert reply.status_code == status
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert body["request_id"] == reply.headers["request-id"]
    message: str = body["error"]["message"]
    return message


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no max_tokens": ({"max_tokens": None}, "max_tokens"),
    "negative max_tokens": ({"max_tokens": -1}, "max_tokens"),
    "no model": ({"model": None}, "model"),
    "no messages": ({"messages": []}, "messages"),
    "bad role": ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
    "no content": ({"messages": [{"role": "user"}]}, "messages.0.content"),
    "server tool": (
        {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]},
        "messages.0.content.0.type",
    ),
    "small budget": ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking"),
    "unknown thinking": ({"thinking": {"type": "hard"}}, "thinking.type"),
    "empty stop": ({"stop_sequences": [""]}, "stop_sequences.0"),
    "hot": ({"temperature": 3}, "temperature"),
    "bad tool name": ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools.0.name"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_field_is_named(case: str) -> None:
    fields, name = BAD[case]
    gateway = Gateway()
    reply = gateway.post(PATH, BODY | fields)
    assert name in check_error(reply, 400, "invalid_request_error")
    assert gateway.generator.calls == []


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (Code.CONTEXT_TOO_LONG, 400, "invalid_request_error"),
        (Code.MODEL_NOT_FOUND, 404, "not_found_error"),
        (Code.OVERLOADED, 429, "rate_limit_error"),
        (Code.SHED, 529, "overloaded_error"),
        (Code.NO_ENGINE, 529, "overloaded_error"),
        (Code.DEADLINE, 504, "timeout_error"),
        (Code.STEP_FAILED, 500, "api_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_fails_at_once_is_a_status(
    code: Code, status: int, kind: str, stream: bool
) -> None:
    reply = Gateway(fails(code, retry_ms=1500)).post(PATH, BODY | {"stream": stream})
    assert check_error(reply, status, kind) == "no"
    assert reply.headers.get("retry-after") == ("2" if status in (429, 529) else None)


def test_an_unknown_model_is_not_found() -> None:
    for path in (PATH, f"{PATH}/count_tokens", f"{PATH}/render"):
        message = check_error(
            Gateway().post(path, BODY | {"model": "none"}), 404, "not_found_error"
        )
        assert "'none'" in message


def test_everything_under_the_path_fails_in_the_shape_of_the_api() -> None:
    gateway = Gateway(api_key="k3y", max_body_bytes=200)
    client, key = gateway.client, {"x-api-key": "k3y"}
    check_error(client.post(PATH, json=BODY), 401, "authentication_error")
    check_error(client.get(PATH, headers=key), 405, "invalid_request_error")
    check_error(client.post(f"{PATH}/batches", headers=key), 404, "not_found_error")
    check_error(client.post(PATH, content=b"{", headers=key), 400, "invalid_request_error")
    check_error(client.post(PATH, content=b" " * 201, headers=key), 413, "request_too_large")
    assert client.post(PATH, json=BODY, headers=key).status_code == 200
    gateway.drain.started = True
    check_error(client.post(PATH, json=BODY, headers=key), 529, "overloaded_error")
