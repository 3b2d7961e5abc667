"""Ollama's chat and generate: streams byte for byte, one object, loads, refusals."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fakes.asgi import Connection, json_headers
from fakes.generator import Gateway, Script, begin, fails, finish, hello, make_view
from fakes.wire import LIMITS
from turing_gateway.call import Call, Event, Failure, TextDelta, ThinkDelta, TokenInfo, ToolDelta
from turing_gateway.fleet.view import LinkState
from turing_gateway.fronts import ollama
from turing_gateway.http import EventStream
from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import Lane
from turing_protocol.messages import Timings
from turing_protocol.sampling import Sampling

GOLDEN = Path(__file__).parents[2] / "golden" / "ndjson"
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
GENERATE = {"model": "fake", "prompt": "hi"}
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


def logprobs(call: Call) -> list[Event]:
    first = TokenInfo(7, b"Hi", -0.5, ((b"Hi", -0.5), (b"\xf0\x9f", float("-inf"))))
    last = TokenInfo(2, b"", -1.0)
    return [begin(), TextDelta(0, "Hi", (7,), (first,)), TextDelta(0, "", (2,), (last,)), finish()]


def thinking(call: Call) -> list[Event]:
    return [
        begin(),
        ThinkDelta(0, "so ", (5,)),
        ThinkDelta(0, "", (6,)),
        TextDelta(0, "4\n", (7,)),
        TextDelta(0, "", (2,)),
        finish(output=4),
    ]


def tool_calls(call: Call) -> list[Event]:
    return [
        begin(),
        ToolDelta(0, 0, "call_1", "add", '{"a"'),
        ToolDelta(0, 0, arguments=":1}"),
        ToolDelta(0, 1, "call_2", "ping"),
        finish(reason="tool_calls", output=9),
    ]


def cut_off(call: Call) -> list[Event]:
    return [begin(), ToolDelta(0, 0, "call_1", "add", '{"a":'), finish(reason="length")]


def breaks_off(call: Call) -> list[Event]:
    error = TuringError(Code.ENGINE_LOST, "the engine was lost")
    return [begin(), TextDelta(0, "Hel", (7,)), Failure(0, error)]


def crashes(call: Call) -> Any:
    yield begin()
    raise RuntimeError("secret")


GOLDEN_CASES: dict[str, tuple[str, Script, dict[str, Any]]] = {
    "chat_plain": ("/api/chat", hello, CHAT),
    "chat_thinking": ("/api/chat", thinking, CHAT),
    "chat_logprobs": ("/api/chat", logprobs, CHAT | {"logprobs": True, "top_logprobs": 2}),
    "chat_tool_calls": ("/api/chat", tool_calls, CHAT),
    "chat_cut_off": ("/api/chat", cut_off, CHAT),
    "chat_warnings": ("/api/chat", hello, CHAT | {"options": {"num_gpu": 1}}),
    "chat_breaks_off": ("/api/chat", breaks_off, CHAT),
    "chat_crashes": ("/api/chat", crashes, CHAT),
    "generate_plain": ("/api/generate", hello, GENERATE),
    "generate_raw": ("/api/generate", hello, GENERATE | {"raw": True}),
    "generate_thinking": ("/api/generate", thinking, GENERATE),
}


def ask(gateway: Gateway, path: str, body: dict[str, Any], **headers: str) -> Any:
    return gateway.post(path, body | {"stream": False}, **headers)


def chat(gateway: Gateway, **fields: Any) -> Any:
    return ask(gateway, "/api/chat", CHAT | fields)


def generate(gateway: Gateway, **fields: Any) -> Any:
    return ask(gateway, "/api/generate", GENERATE | fields)


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_a_stream_is_what_it_was(name: str) -> None:
    path, script, body = GOLDEN_CASES[name]
    response = Gateway(script).post(path, body, x_request_id="req-1")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/x-ndjson"
    assert "content-length" not in response.headers
    text = re.sub(rf'"created_at":"{TIME}"', '"created_at":"NOW"', response.text)
    text = re.sub(r'"total_duration":\d+', '"total_duration":1', text)
    assert text == (GOLDEN / f"{name}.txt").read_text()


def test_the_chat_answer_as_one_object() -> None:
    def script(call: Call) -> list[Event]:
        return [*hello(call)[:-1], finish(timings=Timings(0.5, 12.25, 3.0))]

    reply = chat(Gateway(script))
    assert reply.headers["content-type"].startswith("application/json")
    body = reply.json()
    assert re.fullmatch(TIME, body.pop("created_at"))
    assert body.pop("total_duration") > 0
    assert body == {
        "model": "fake",
        "message": {"role": "assistant", "content": "Hello"},
        "done": True,
        "done_reason": "stop",
        "load_duration": 500_000,
        "prompt_eval_count": 5,
        "prompt_eval_duration": 12_250_000,
        "eval_count": 3,
        "eval_duration": 3_000_000,
    }


def test_the_generate_answer_carries_the_context_for_the_next() -> None:
    gateway = Gateway()
    body = generate(gateway).json()
    assert body["response"] == "Hello"
    prompt = [ord(c) for c in "user:hi\n"]
    assert body["context"] == [*prompt, 7, 8]
    assert [message.role for message in gateway.call().messages] == ["user"]
    again = generate(gateway, context=body["context"]).json()
    assert gateway.call().prompt == (*prompt, 7, 8, *prompt)
    assert again["context"] == [*prompt, 7, 8, *prompt, 7, 8]


def test_a_context_outside_of_the_vocabulary_is_refused() -> None:
    gateway = Gateway()
    for token in (-1, 1 << 20):
        reply = generate(gateway, context=[65, token])
        assert reply.status_code == 400
        assert "context" in reply.json()["error"]
    assert gateway.generator.calls == []


def test_a_raw_prompt_meets_no_template_and_gives_no_context() -> None:
    gateway = Gateway()
    assert "context" not in generate(gateway, raw=True).json()
    assert (gateway.call().prompt, gateway.call().messages) == ("hi", ())


def test_system_goes_before_the_prompt() -> None:
    gateway = Gateway()
    generate(gateway, system="be kind")
    turns = [(message.role, message.content) for message in gateway.call().messages]
    assert turns == [("system", "be kind"), ("user", "hi")]


def test_the_name_is_echoed_as_it_was_asked() -> None:
    gateway = Gateway()
    assert chat(gateway, model="FAKE:latest").json()["model"] == "FAKE:latest"
    assert gateway.call().model == "fake"


@pytest.mark.parametrize(("path", "body"), [("/api/chat", CHAT), ("/api/generate", GENERATE)])
def test_an_unknown_model_is_404_whatever_was_asked_for(path: str, body: dict[str, Any]) -> None:
    for stream in ({}, {"stream": False}, {"stream": True}):
        reply = Gateway().post(path, body | {"model": "nope"} | stream)
        assert reply.status_code == 404
        assert reply.json() == {"error": "model 'nope' not found; served: fake"}


EMPTY: list[tuple[str, dict[str, Any], str]] = [
    ("/api/chat", {"model": "fake"}, "message"),
    ("/api/chat", {"model": "fake", "messages": []}, "message"),
    ("/api/generate", {"model": "fake"}, "response"),
    ("/api/generate", {"model": "fake", "prompt": ""}, "response"),
]


@pytest.mark.parametrize(("path", "body", "key"), EMPTY)
@pytest.mark.parametrize(
    ("keep_alive", "reason"),
    [(None, "load"), (60, "load"), (-1, "load"), ("5m", "load"), (0, "unload"), ("0s", "unload")],
)
def test_nothing_to_answer_loads_or_unloads(
    path: str, body: dict[str, Any], key: str, keep_alive: Any, reason: str
) -> None:
    gateway = Gateway()
    reply = gateway.post(path, body | {"keep_alive": keep_alive})
    assert reply.headers["content-type"].startswith("application/json")
    said = reply.json()
    assert (said["done"], said["done_reason"]) == (True, reason)
    assert said[key] == ({"role": "assistant", "content": ""} if key == "message" else "")
    assert gateway.generator.calls == []


def test_a_model_whose_engine_is_away_is_not_loaded() -> None:
    gateway = Gateway(views=[make_view(state=LinkState.LOST)])
    reply = gateway.post("/api/generate", {"model": "fake"})
    assert reply.status_code == 503
    assert "fake" in reply.json()["error"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize("raw", [b"", b'{"model": ', b"[]", b'{"model": 5}', b"{}"])
def test_a_bad_body_is_400_in_a_sentence(path: str, raw: bytes) -> None:
    reply = Gateway().client.post(path, content=raw)
    assert reply.status_code == 400
    assert list(reply.json()) == ["error"]
    assert isinstance(reply.json()["error"], str)


def test_the_content_type_does_not_matter() -> None:
    content = json.dumps(GENERATE | {"stream": False})
    headers = {"content-type": "application/x-www-form-urlencoded"}
    reply = Gateway().client.post("/api/generate", content=content, headers=headers)
    assert reply.json()["response"] == "Hello"


@pytest.mark.parametrize("stream", [False, True])
def test_what_fails_before_the_first_event_is_a_status(stream: bool) -> None:
    gateway = Gateway(fails(Code.OVERLOADED, "server busy"))
    reply = gateway.post("/api/chat", CHAT | {"stream": stream})
    assert reply.status_code == 429
    assert reply.headers["retry-after"] == "2"
    assert reply.json() == {"error": "server busy"}


def too_long(limit: int) -> Script:
    """Return a script that refuses prompts of more than ``limit`` characters."""

    def script(call: Call) -> list[Event]:
        if sum(len(f"{m.role}:{m.content}\n") for m in call.messages) >= limit:
            return [Failure(0, TuringError(Code.CONTEXT_TOO_LONG, "prompt is too long"))]
        return hello(call)

    return script


LONG = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "a" * 20},
    {"role": "assistant", "content": "b" * 20},
    {"role": "user", "content": "c"},
]


def test_old_turns_are_dropped_where_they_do_not_fit() -> None:
    gateway = Gateway(too_long(50))
    body = chat(gateway, messages=LONG, options={"num_ctx": 50}).json()
    assert [m.content for m in gateway.call().messages] == ["s", "c"]
    assert body["turing"]["warnings"] == [
        "messages: the oldest 2 were dropped to fit 50 tokens of context"
    ]


@pytest.mark.parametrize(
    ("fields", "headers"),
    [({"truncate": False}, {}), ({}, {"x_turing_strict": "1"}), ({"messages": LONG[:2]}, {})],
)
def test_turns_are_kept_where_they_may_not_be_dropped(
    fields: dict[str, Any], headers: dict[str, str]
) -> None:
    gateway = Gateway(too_long(20))
    body = CHAT | {"messages": LONG, "options": {"num_ctx": 20}} | fields
    reply = ask(gateway, "/api/chat", body, **headers)
    assert reply.status_code == 400
    assert "long" in reply.json()["error"] or "dropped" in reply.json()["error"]


def test_a_strict_client_gets_no_answer_with_warnings() -> None:
    gateway = Gateway()
    body = CHAT | {"options": {"num_gpu": 1}}
    reply = ask(gateway, "/api/chat", body, x_turing_strict="1")
    assert (reply.status_code, reply.json()) == (
        400,
        {"error": "options.num_gpu: has no effect here"},
    )
    assert gateway.generator.calls == []


def test_the_headers_work_here_too() -> None:
    gateway = Gateway()
    reply = ask(gateway, "/api/chat", CHAT, x_turing_lane="batch", x_turing_tenant_id="sql")
    assert (gateway.call().lane, gateway.call().adapter) == (Lane.BATCH, "sql")
    assert reply.headers["x-turing-lane"] == "batch"
    refused = ask(gateway, "/api/chat", CHAT, x_turing_lane="express")
    assert refused.status_code == 400
    assert "X-Turing-Lane" in refused.json()["error"]


def test_the_defaults_are_ollamas() -> None:
    gateway = Gateway()
    chat(gateway)
    call = gateway.call()
    assert call.sampling == Sampling(temperature=0.8, top_k=40, top_p=0.9)
    assert (call.max_tokens, call.clamp, call.seed, call.context) == (None, True, None, None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_run(stream: bool) -> None:
    gateway = Gateway(lambda call: hello(call)[:2], hang=True)

    async def run() -> None:
        body = json.dumps(CHAT | {"stream": stream}).encode()
        connection = Connection("/api/chat", [body], headers=json_headers())
        serving = asyncio.ensure_future(connection.serve(gateway.app))
        while not gateway.generator.calls:
            await asyncio.sleep(0)
        connection.leave()
        await asyncio.wait_for(serving, 5)

    asyncio.run(run())
    assert gateway.generator.closed == 1


def test_silence_is_filled_with_objects_that_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams: list[Any] = []

    class Spy(EventStream):
        def __init__(self, *args: Any, **fields: Any) -> None:
            streams.append(fields)
            super().__init__(*args, **fields)

    monkeypatch.setattr(ollama, "EventStream", Spy)
    Gateway().post("/api/chat", CHAT)
    (fields,) = streams
    said = json.loads(fields["idle"])
    assert (said["message"]["content"], said["done"]) == ("", False)
    assert fields["idle"].count(b"\n") == 1


def test_paths_that_do_not_exist_answer_in_ollamas_shape() -> None:
    client = Gateway().client
    assert client.get("/api/nope").json() == {"error": "there is no /api/nope"}
    wrong = client.get("/api/chat")
    assert (wrong.status_code, list(wrong.json())) == (405, ["error"])


def test_a_wrong_key_answers_in_ollamas_shape() -> None:
    reply = Gateway(api_key="secret").post("/api/chat", CHAT)
    assert (reply.status_code, list(reply.json())) == (401, ["error"])


def test_a_render_only_gateway_has_the_facts() -> None:
    tags = Gateway(render_only=True).client.get("/api/tags")
    assert tags.json() == Gateway().client.get("/api/tags").json()


@pytest.mark.parametrize(("path", "body"), [("/api/chat", CHAT), ("/api/generate", GENERATE)])
def test_only_a_model_that_can_is_made_to_think(path: str, body: dict[str, Any]) -> None:
    gateway = Gateway(thinking)
    refused = gateway.client.post(path, json=body | {"think": True})
    assert refused.status_code == 400
    assert refused.json()["error"] == f'think: "{body["model"]}" does not support thinking'
    assert gateway.client.post(path, json=body | {"think": False}).status_code == 200
    gateway.generator.thinking = True
    assert gateway.client.post(path, json=body | {"think": "low"}).status_code == 200
    assert [call.effort for call in gateway.generator.calls] == ["none", "low"]


def test_the_context_is_that_of_the_engine_at_most() -> None:
    gateway = Gateway(too_long(LIMITS.context))
    long = [{"role": "user", "content": "x" * LIMITS.context}, *LONG[2:]]
    assert chat(gateway, messages=long).status_code == 200
    assert [m.content for m in gateway.call().messages] == ["c"]
