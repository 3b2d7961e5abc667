"""Bodies of the Responses API to Calls."""

from typing import Any

import pytest
from msgspec.structs import replace

from fakes.generator import Gateway
from turing_gateway.call import Call, Message, Part, Tool, ToolCall, ToolChoice
from turing_protocol.lanes import Lane
from turing_protocol.sampling import Constraint, Knobs

PATH = "/v1/responses"
FUNCTION = {"type": "function", "name": "f"}
HI = Message(role="user", content="hi")


def call_of(**fields: Any) -> Call:
    gateway = Gateway()
    response = gateway.post(PATH, {"model": "fake", "input": "hi"} | fields)
    assert response.status_code == 200, response.text
    return gateway.call()


def messages_of(*items: Any, **fields: Any) -> tuple[Message, ...]:
    return call_of(input=list(items), **fields).messages


def refusal(**fields: Any) -> tuple[str, str | None]:
    response = Gateway().post(PATH, {"model": "fake", "input": "hi"} | fields)
    assert response.status_code == 400
    error = response.json()["error"]
    return error["param"], error["code"]


def message(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | fields


def function_call(call_id: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str, output: Any = "sunny") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def reasoning(*texts: str) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "id": "rs_0",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text} for text in texts],
    }


def allowed(*names: str, mode: str = "auto") -> dict[str, Any]:
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": mode, "tools": tools}


def test_text_is_one_turn_of_the_user() -> None:
    assert call_of().messages == (HI,)
    system = Message(role="system", content="be brief")
    assert call_of(instructions="be brief").messages == (system, HI)
    assert call_of(instructions="").messages == (HI,)


@pytest.mark.parametrize("role", ["user", "system", "developer", "assistant"])
@pytest.mark.parametrize("more", [{}, {"type": "message"}])
def test_turns_of_every_role_are_taken(role: str, more: dict[str, str]) -> None:
    assert messages_of(message(role, "x", **more)) == (Message(role=role, content="x"),)


def test_parts_are_text() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b", "annotations": [{"type": "url_citation"}]},
        {"type": "refusal", "refusal": "c"},
    ]
    (turn,) = messages_of(message("user", parts))
    assert turn.content == (Part("text", "a"), Part("text", "b"), Part("text", "c"))


def test_what_the_model_left_of_one_turn_is_one_message() -> None:
    turns = messages_of(
        message("user", "hi"),
        reasoning("think ", "twice"),
        message("assistant", "wait"),
        function_call("c1", arguments='{"a":1}'),
        function_call("c2", "g"),
        output("c1"),
        output("c2", [{"type": "input_text", "text": "7"}]),
        reasoning("done"),
        message("assistant", "so"),
        message("assistant", "there"),
    )
    made = (ToolCall("c1", "f", '{"a":1}'), ToolCall("c2", "g", "{}"))
    assert turns == (
        HI,
        Message(role="assistant", content="wait", reasoning="think \ntwice", tool_calls=made),
        Message(role="tool", content="sunny", tool_call_id="c1"),
        Message(role="tool", content=(Part("text", "7"),), tool_call_id="c2"),
        Message(role="assistant", content="so", reasoning="done"),
        Message(role="assistant", content="there"),
    )


def test_calls_need_no_text_and_thoughts_no_answer() -> None:
    (turn,) = messages_of(function_call("c"))
    assert (turn.content, turn.tool_calls) == (None, (ToolCall("c", "f", "{}"),))
    thought, asked = messages_of(reasoning("hm"), message("user", "hi"))
    assert (thought.content, thought.reasoning, asked) == ("", "hm", HI)


def test_reasoning_is_read_from_its_summary_where_there_is_nothing_else() -> None:
    summary = [{"type": "summary_text", "text": "in short"}]
    given = {"type": "reasoning", "id": "rs", "summary": summary, "encrypted_content": "x"}
    (turn,) = messages_of({**given, "content": None})
    assert turn.reasoning == "in short"
    (turn,) = messages_of({"type": "reasoning", "encrypted_content": "x"})
    assert turn == Message(role="assistant", content="")


def test_an_answer_may_be_sent_back_as_it_is() -> None:
    gateway = Gateway()
    first = gateway.post(PATH, {"model": "fake", "input": "hi"}).json()
    again = [message("user", "hi"), *first["output"], message("user", "hi")]
    assert gateway.post(PATH, {"model": "fake", "input": again}).status_code == 200
    answer = Message(role="assistant", content=(Part("text", "Hello"),))
    assert gateway.call().messages == (HI, answer, HI)


def test_sampling_and_limits() -> None:
    plain = call_of()
    assert (plain.sampling.temperature, plain.sampling.top_p, plain.max_tokens) == (1.0, 1.0, None)
    assert (plain.sampling.logprobs, plain.stream, plain.effort) == (-1, False, "")
    asked = call_of(
        temperature=0,
        top_p=0.5,
        max_output_tokens=4,
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        top_logprobs=3,
        reasoning={"effort": "minimal", "summary": "auto"},
        cache_salt="s",
        prompt_cache_key="k",
        stream=True,
        stream_options={"include_obfuscation": False},
    )
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.max_tokens) == (0.0, 0.5, 4)
    assert (asked.sampling.logprobs, asked.stream, asked.effort) == (3, True, "minimal")
    assert (asked.salt, asked.session) == ("s", "k")


def test_the_effort_of_the_model_s_name_is_a_default() -> None:
    assert call_of(model="fake:high").effort == "high"
    assert call_of(model="fake:high", reasoning={"effort": "low"}).effort == "low"


def test_controls_come_from_headers_and_body() -> None:
    gateway = Gateway()
    body = {"model": "fake", "input": "hi", "turing": {"lane": "batch"}}
    gateway.post(PATH, body, x_turing_lane="background", x_turing_draft_tokens="2")
    assert (gateway.call().lane, gateway.call().knobs) == (Lane.BATCH, Knobs(draft_tokens=2))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, Constraint("json_object")),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
            Constraint("json_schema", '{"type":"object"}', strict=True),
        ),
    ],
)
def test_formats(given: Any, wanted: Constraint | None) -> None:
    call = call_of(text={"format": given, "verbosity": "low"})
    assert (call.format, call.format_field) == (wanted, "text.format")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="required")),
        (FUNCTION, ToolChoice(mode="named", name="f")),
        (allowed("f", "f"), ToolChoice()),
        (allowed("f", mode="required"), ToolChoice(mode="required")),
    ],
)
def test_choices_of_tools(given: Any, wanted: ToolChoice) -> None:
    other = FUNCTION | {"name": "g"}
    call = call_of(tools=[other, FUNCTION], tool_choice=given)
    assert call.tool_choice == wanted
    narrowed = isinstance(given, dict) and "tools" in given
    assert [tool.name for tool in call.tools] == (["f"] if narrowed else ["g", "f"])


def test_tools_are_read_whole() -> None:
    tool = FUNCTION | {"description": "d", "parameters": {"type": "object"}, "strict": True}
    call = call_of(tools=[tool], parallel_tool_calls=False)
    assert call.tools == (
        Tool(name="f", description="d", parameters={"type": "object"}, strict=True),
    )
    assert call.tool_choice == ToolChoice(parallel=False)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", None),
        ({"input": ""}, "input", None),
        ({"input": []}, "input", None),
        ({"input": 5}, "input", None),
        ({"input": ["hi"]}, "input.0", None),
        ({"input": [{}]}, "input.0.type", None),
        ({"input": [{"type": "nope"}]}, "input.0.type", None),
        ({"input": [{"type": ["message"]}]}, "input.0.type", None),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type", None),
        ({"input": [message("user", "x"), message("tool", "x")]}, "input.1.role", None),
        ({"input": [message("user", None)]}, "input.0.content", None),
        ({"input": [message("user", [{"type": "text"}])]}, "input.0.content.0.type", None),
        ({"input": [output("c")]}, "input.0.call_id", None),
        ({"input": [output("c"), function_call("c")]}, "input.0.call_id", None),
        ({"input": [function_call("c", arguments=None)]}, "input.0.arguments", None),  # type: ignore[arg-type]
        ({"max_output_tokens": 0}, "max_output_tokens", None),
        ({"max_output_tokens": -1}, "max_output_tokens", None),
        ({"temperature": 2.1}, "temperature", None),
        ({"top_p": -0.1}, "top_p", None),
        ({"top_logprobs": 2}, "top_logprobs", None),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", None),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", None),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", None),
        ({"stream_options": {}}, "stream_options", None),
        ({"cache_salt": "a@b"}, "cache_salt", None),
        ({"turing": {"lane": "express"}}, "turing.lane", None),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", None),
        ({"tools": [FUNCTION | {"name": "a b"}], "tool_choice": "none"}, "tools.0.name", None),
        ({"tools": [FUNCTION | {"name": "a\\n"}], "tool_choice": "none"}, "tools.0.name", None),
        ({"tool_choice": "maybe"}, "tool_choice", None),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"tool_choice": FUNCTION}, "tool_choice", None),
        ({"tools": [FUNCTION], "tool_choice": FUNCTION | {"name": "g"}}, "tool_choice", None),
        ({"tools": [FUNCTION], "tool_choice": allowed()}, "tool_choice.tools", None),
        ({"tools": [FUNCTION], "tool_choice": allowed("g")}, "tool_choice", None),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"conversation": {"id": "c"}}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    fields: dict[str, Any], param: str, code: str | None
) -> None:
    assert refusal(**fields) == (param, code)


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio"])
def test_media_are_refused_where_they_are(kind: str) -> None:
    part = [{"type": "input_text", "text": "x"}, {"type": kind, "image_url": "http://127.0.0.1/"}]
    code = "unsupported_parameter"
    assert refusal(input=[message("user", part)]) == ("input.0.content.1", code)
    assert refusal(input=[function_call("c"), output("c", part)]) == ("input.1.output.1", code)


def test_what_asks_for_nothing_is_taken() -> None:
    neutral: dict[str, Any] = {
        "previous_response_id": None,
        "conversation": None,
        "background": False,
        "truncation": "disabled",
        "store": True,
        "service_tier": "auto",
        "tools": [],
        "tool_choice": "auto",
        "stream_options": None,
        "text": None,
    }
    assert replace(call_of(**neutral), request_id="") == replace(call_of(), request_id="")


def test_an_unknown_model_is_404() -> None:
    response = Gateway().post(PATH, {"model": "none", "input": "hi"})
    assert (response.status_code, response.json()["error"]["param"]) == (404, "model")
