"""Reasoning and tool calls of a whole server, whose model replays a script byte by byte."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from openai import OpenAI

from e2e.processes import serving

TEMPLATE = """{{ tools | tojson if tools }}{% for m in messages -%}
<{{ m.role }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{{- m.content or '' }}{% for call in m.tool_calls or [] -%}
<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor %}{% endfor %}<assistant>"""
ARGUMENTS = ('{"city": "São Paulo", "days": 3}', "{ }")
SCRIPT = (
    "<think>\nI should look — twice.\n</think>\n\nOne moment. "
    f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS[0]}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "get_time", "arguments": {ARGUMENTS[1]}}}\n</tool_call>'
)
THOUGHT, TEXT = "I should look — twice.\n", "One moment. "
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Lima"]}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "get_time"}},
]
LENGTH = len(SCRIPT.encode())


class Said(msgspec.Struct, frozen=True):
    """An answer, without the ids of its calls."""

    thought: str
    text: str
    calls: list[tuple[str, str]]
    reason: str | None
    tokens: int
    reasoning_tokens: int

    @property
    def calls_parse(self) -> bool:
        """Whether the arguments of all calls are whole."""
        try:
            return all(isinstance(json.loads(arguments), dict) for _, arguments in self.calls)
        except ValueError:
            return False


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    folder = tmp_path_factory.mktemp("tools")
    (folder / "script.txt").write_text(SCRIPT)
    (folder / "template.jinja").write_text(TEMPLATE)
    model = f"scripted:text={folder}/script.txt,template={folder}/template.jinja"
    with serving(folder, "--model", model) as served:
        yield served.client()


def ask(client: OpenAI, **options: Any) -> Said:
    """Return an answer that is the same streamed and not."""
    asked: dict[str, Any] = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "Weather?"}],
        "tools": TOOLS,
        "max_tokens": LENGTH + 1,
        "temperature": 0,
        "seed": 1,
    }
    asked |= options
    whole = _whole(client.chat.completions.create(**asked))
    assert _streamed(client, asked) == whole
    return whole


def _whole(reply: Any) -> Said:
    choice, usage = reply.choices[0], reply.usage
    message = choice.message
    return Said(
        thought=(message.model_extra or {}).get("reasoning_content", ""),
        text=message.content or "",
        calls=[(c.function.name, c.function.arguments) for c in message.tool_calls or ()],
        reason=choice.finish_reason,
        tokens=usage.completion_tokens,
        reasoning_tokens=usage.completion_tokens_details.reasoning_tokens,
    )


def _streamed(client: OpenAI, asked: dict[str, Any]) -> Said:
    thought, text, reason = "", "", None
    calls: list[tuple[str, str]] = []
    usage: Any = None
    chunks = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            thought += (choice.delta.model_extra or {}).get("reasoning_content", "")
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for piece in choice.delta.tool_calls or ():
                calls = _with_piece(calls, piece)
    details = usage.completion_tokens_details
    return Said(thought, text, calls, reason, usage.completion_tokens, details.reasoning_tokens)


def _with_piece(calls: list[tuple[str, str]], piece: Any) -> list[tuple[str, str]]:
    function = piece.function
    if piece.index == len(calls):
        assert piece.id and piece.type == "function" and function.arguments == ""
        return [*calls, (function.name, "")]
    assert piece.id is None and "name" not in function.model_fields_set
    name, arguments = calls[-1]
    return [*calls[:-1], (name, arguments + function.arguments)]


def test_everything_arrives_as_it_was_written(client: OpenAI) -> None:
    said = ask(client)
    assert (said.thought, said.text, said.reason) == (THOUGHT, TEXT, "tool_calls")
    assert said.calls == [("get_weather", ARGUMENTS[0]), ("get_time", ARGUMENTS[1])]
    assert said.tokens == LENGTH + 1
    assert said.reasoning_tokens == len(SCRIPT[: SCRIPT.index(TEXT)].encode())


def test_at_most_one_call_where_more_are_not_wanted(client: OpenAI) -> None:  # F25
    said = ask(client, parallel_tool_calls=False)
    assert (said.calls, said.reason) == ([("get_weather", ARGUMENTS[0])], "tool_calls")


def test_without_tools_calls_are_text(client: OpenAI) -> None:
    said = ask(client, tools=None)
    assert (said.thought, said.calls, said.reason) == (THOUGHT, [], "stop")
    assert said.text == SCRIPT[SCRIPT.index(TEXT) :]


@pytest.mark.parametrize("limit", range(1, LENGTH, 7))
def test_an_answer_cut_anywhere_is_filed_right(client: OpenAI, limit: int) -> None:  # F17, F44
    said = ask(client, max_tokens=limit)
    assert said.tokens == limit
    # A tag that is cut in two may as well be text.
    assert f"{THOUGHT}</think>".startswith(said.thought)
    assert f"{TEXT}<tool_call>".startswith(said.text) or "<think>".startswith(said.text)
    assert said.thought == THOUGHT or not said.text or limit < len("<think>")
    assert (said.reason == "tool_calls") is (bool(said.calls) and said.calls_parse)
    assert said.reason in ("length", "tool_calls")


def test_reasoning_ends_where_its_budget_does(client: OpenAI) -> None:
    said = ask(client, extra_body={"thinking_token_budget": 12})
    assert said.thought == SCRIPT[len("<think>\n") : 12]
    assert said.reasoning_tokens == 12 + len("</think>")
    assert said.tokens == LENGTH + 1
    assert ask(client, reasoning_effort="low").thought == THOUGHT


def test_a_call_is_forced_behind_the_reasoning(client: OpenAI) -> None:  # F26
    for choice, reason in (
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "get_weather"}}, "stop"),
    ):
        said = ask(client, tool_choice=choice, parallel_tool_calls=False, max_tokens=4000)
        assert (said.thought, said.text, said.reason) == (THOUGHT, "", reason)
        ((name, arguments),) = said.calls
        assert name == "get_weather"
        assert json.loads(arguments)["city"] in ("Paris", "Lima")


def test_reasoning_is_free_and_the_answer_has_its_format(client: OpenAI) -> None:  # F46
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    closed = {**schema, "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": closed, "strict": True}}
    said = ask(client, tools=None, response_format=wanted)
    assert (said.thought, said.reason) == (THOUGHT, "stop")
    assert json.loads(said.text)["a"] in (1, 2)
    # Beside tools the answer is a call or has the format; the script's words are neither (F23).
    assert json.loads(ask(client, response_format=wanted).text)["a"] in (1, 2)
