"""Ollama's bodies as calls: every option, every refusal, every note."""

from typing import Any

import msgspec
import pytest

from turing_gateway.call import Call
from turing_gateway.fronts.ollama_call import Notes, chat_call, generate_call, unloads
from turing_gateway.fronts.ollama_types import ChatBody, GenerateBody
from turing_gateway.headers import Controls
from turing_gateway.modelref import ModelRef
from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint

USER = {"role": "user", "content": "hi"}


def chat(notes: Notes | None = None, *, effort: str = "", **fields: Any) -> Call:
    body = msgspec.convert({"model": "fake", "messages": [USER]} | fields, ChatBody)
    return chat_call(body, ModelRef("fake", effort), Controls(), "r", notes or Notes())


def generate(**fields: Any) -> Call:
    body = msgspec.convert({"model": "fake", "prompt": "hi"} | fields, GenerateBody)
    return generate_call(body, ModelRef("fake"), Controls(), "r", Notes())


def refusal(make: Any, **fields: Any) -> TuringError:
    with pytest.raises(TuringError) as caught:
        make(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("option", "field", "expected"),
    [
        ({"temperature": 0}, "temperature", 0),
        ({"temperature": 2}, "temperature", 2),
        ({"temperature": None}, "temperature", 0.8),
        ({"top_k": 0}, "top_k", 0),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 7}, "top_k", 7),
        ({"top_p": 1.0}, "top_p", 1.0),
        ({"top_p": 0.0}, "top_p", 0.0),
        ({"min_p": 0.5}, "min_p", 0.5),
        ({"repeat_penalty": 1.5}, "repetition_penalty", 1.5),
        ({"presence_penalty": 0.5}, "presence_penalty", 0.5),
        ({"frequency_penalty": -0.5}, "frequency_penalty", -0.5),
        ({"repeat_penalty": 1.5, "repeat_last_n": 0}, "repetition_penalty", 1.0),
        ({"presence_penalty": 1.5, "repeat_last_n": 0}, "presence_penalty", 0.0),
    ],
)
def test_options_become_sampling(option: dict[str, Any], field: str, expected: float) -> None:
    assert getattr(chat(options=option).sampling, field) == expected


@pytest.mark.parametrize(
    ("option", "field", "expected"),
    [
        ({"num_predict": 1}, "max_tokens", 1),
        ({"num_predict": 0}, "max_tokens", 0),
        ({"num_predict": -1}, "max_tokens", None),
        ({"num_predict": -2}, "max_tokens", None),
        ({"seed": 0}, "seed", 0),
        ({"seed": -1}, "seed", None),
        ({"seed": -7}, "seed", -7),
        ({"num_ctx": 100}, "context", 100),
        ({"num_ctx": 0}, "context", None),
        ({"stop": "a"}, "stop", ("a",)),
        ({"stop": ["a", "b"]}, "stop", ("a", "b")),
        ({"stop": []}, "stop", ()),
        ({"stop": None}, "stop", ()),
    ],
)
def test_options_become_limits(option: dict[str, Any], field: str, expected: Any) -> None:
    assert getattr(chat(options=option), field) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", 2.5),
        ("temperature", True),
        ("top_k", 1.5),
        ("top_p", 1.5),
        ("min_p", -0.1),
        ("typical_p", 0.5),
        ("repeat_penalty", 0),
        ("repeat_last_n", -2),
        ("presence_penalty", 3),
        ("frequency_penalty", "x"),
        ("seed", 2**63),
        ("num_predict", "x"),
        ("num_ctx", -1),
        ("stop", 5),
        ("stop", [""]),
        ("stop", ["x"] * 17),
    ],
)
def test_a_wrong_option_is_refused_by_name(name: str, value: Any) -> None:
    error = refusal(chat, options={name: value})
    assert error.code in (Code.INVALID, Code.UNSUPPORTED)
    assert (error.param or "").startswith(f"options.{name}")
    assert f"options.{name}" in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"options": {"num_thread": 4}}, "options.num_thread"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"no_such": []}}, "options.no_such"),
        ({"options": {"repeat_penalty": 1.2}}, "options.repeat_last_n"),
        ({"options": {"frequency_penalty": 1, "repeat_last_n": 64}}, "options.repeat_last_n"),
        ({"shift": True}, "shift"),
    ],
)
def test_what_has_no_effect_is_noted_and_refused_when_strict(
    fields: dict[str, Any], param: str
) -> None:
    notes = Notes()
    chat(notes, **fields)
    (line,) = notes.lines
    assert line.startswith(f"{param}: ")
    error = refusal(chat, notes=Notes(strict=True), **fields)
    assert (error.code, error.param) == (Code.UNSUPPORTED, param)


@pytest.mark.parametrize(
    "fields",
    [
        {"options": {"num_thread": None, "typical_p": 1.0, "repeat_last_n": 64}},
        {"options": {"repeat_penalty": 1.2, "repeat_last_n": -1}},
        {"options": {"repeat_penalty": 1.2, "repeat_last_n": 0}},
        {"options": {"repeat_penalty": 1.0}},
        {"shift": False, "truncate": True, "keep_alive": "5m", "think": False},
    ],
)
def test_what_changes_nothing_is_not_noted(fields: dict[str, Any]) -> None:
    notes = Notes(strict=True)
    chat(notes, **fields)
    assert notes.lines == []


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ("", None),
        ("json", Constraint("json_object")),
        (SCHEMA, Constraint("json_schema", msgspec.json.encode(SCHEMA).decode())),
    ],
)
def test_formats(given: Any, expected: Constraint | None) -> None:
    for call in (chat(format=given), generate(format=given)):
        assert (call.format, call.format_field) == (expected, "format")


def test_another_format_is_refused() -> None:
    assert refusal(chat, format="yaml").param == "format"


@pytest.mark.parametrize(
    ("think", "effort"),
    [(None, "high"), (True, "high"), (False, "none"), ("low", "low"), ("max", "max")],
)
def test_thinking_is_an_effort(think: Any, effort: str) -> None:
    assert chat(effort="high", think=think).effort == effort


def test_thinking_without_a_level_is_of_middle_effort() -> None:
    assert chat(think=True).effort == "medium"
    assert chat().effort == ""


@pytest.mark.parametrize("think", ["banana", "", "true"])
def test_thinking_that_nobody_knows(think: Any) -> None:
    assert refusal(chat, think=think).code is Code.INVALID


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, -1), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 20}, 20)],
)
def test_log_probabilities(fields: dict[str, Any], expected: int) -> None:
    assert chat(**fields).sampling.logprobs == expected


def test_alternatives_need_log_probabilities() -> None:
    assert refusal(chat, top_logprobs=3).param == "top_logprobs"
    assert chat(top_logprobs=0).sampling.logprobs == -1


def test_a_history_with_tools_keeps_all_of_it() -> None:
    call = {"id": "c1", "function": {"index": 0, "name": "f", "arguments": {"a": [1]}}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_name": "f", "tool_call_id": "c1", "content": "21"},
    ]
    _, asked, answered = chat(messages=messages).messages
    assert (asked.content, asked.reasoning) == ("", "hm")
    assert [(c.id, c.name, c.arguments) for c in asked.tool_calls] == [("c1", "f", '{"a":[1]}')]
    assert (answered.name, answered.tool_call_id, answered.content) == ("f", "c1", "21")


def test_tools_come_through() -> None:
    function = {"name": "f", "description": "d", "parameters": SCHEMA}
    (tool,) = chat(tools=[{"type": "function", "function": function}]).tools
    assert (tool.name, tool.description, tool.parameters) == ("f", "d", SCHEMA)


def test_a_last_message_of_the_assistant_is_continued() -> None:
    begun = {"role": "assistant", "content": "The capital is"}
    assert chat(messages=[USER, begun]).template.continue_final_message
    assert not chat().template.continue_final_message


def test_the_name_may_carry_an_effort() -> None:
    assert chat(effort="low").effort == "low"


@pytest.mark.parametrize("stream", [None, True, False])
def test_streaming_is_the_default(stream: bool | None) -> None:
    assert chat(stream=stream).stream is (stream is not False)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"raw": True, "system": "s"}, "raw"),
        ({"raw": True, "template": "t"}, "raw"),
        ({"raw": True, "context": [1]}, "raw"),
        ({"suffix": "s"}, "suffix"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"images": ["aGk="]}, "images"),
    ],
)
def test_what_generate_cannot_do(fields: dict[str, Any], param: str) -> None:
    error = refusal(generate, **fields)
    assert (error.code.name in ("INVALID", "UNSUPPORTED"), error.param) == (True, param)


@pytest.mark.parametrize(
    "fields", [{"suffix": ""}, {"template": ""}, {"images": []}, {"raw": True, "system": ""}]
)
def test_what_is_empty_asks_for_nothing(fields: dict[str, Any]) -> None:
    assert isinstance(generate(**fields), Call)


def test_pictures_are_refused_where_they_are() -> None:
    error = refusal(chat, messages=[USER, {"role": "user", "content": "x", "images": ["aGk="]}])
    assert error.param == "messages.1.images"


@pytest.mark.parametrize("given", [0, 0.0, "0", "0s", "0m0s", "-0s"])
def test_no_time_at_all_unloads(given: Any) -> None:
    assert unloads(ChatBody(keep_alive=given))


@pytest.mark.parametrize("given", [None, 1, -1, 0.5, "5m", "1h30m", "-1m", "300ms", "1.5h", ".5s"])
def test_any_time_keeps(given: Any) -> None:
    assert not unloads(ChatBody(keep_alive=given))


@pytest.mark.parametrize("given", ["", "5", "5x", "m", "1h 30m", "-", "٥m", "five"])
def test_what_is_no_duration_is_refused(given: str) -> None:
    assert refusal(lambda: unloads(ChatBody(keep_alive=given))).param == "keep_alive"
