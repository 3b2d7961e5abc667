"""How a model reasons and calls tools is found out, and shapes prompts, grammars and answers."""

from typing import Any

import pytest
from msgspec.structs import replace

from fakes.tool_calls import written
from fakes.vocabularies import byte_level, model_info, token_id
from turing_gateway.call import (
    Call,
    Event,
    Message,
    Part,
    Template,
    TextDelta,
    ThinkDelta,
    Tool,
    ToolCall,
    ToolChoice,
    ToolDelta,
)
from turing_gateway.text.model import TextModel
from turing_gateway.text.tools.objects import HERMES
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import Finished, Reason, Timings
from turing_protocol.sampling import Constraint

ORACLE = byte_level(["<|im_end|>", "[TOOL_CALLS]", "[ARGS]"], ["<think>", "</think>"])
CHATML = """{% for m in messages %}<{{ m.role }}>
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif -%}
{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""
OPENING = CHATML.replace("<assistant>", "<assistant><think>\n")
TOOLS = (
    "{{ tools | tojson if tools }}{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"
)
HERMES_TOOLS = TOOLS + "{# <tool_call> #}"
MISTRAL_TOOLS = TOOLS + "{# [TOOL_CALLS] [ARGS] </think> #}"
PYTHONIC_TOOLS = TOOLS + "{# <|tool_call_start|> #}"
UNKNOWN_TOOLS = TOOLS + "{# <tool_call><function= #}"
PLAIN = CHATML.replace("<think>", "").replace("</think>", "")
HI = Message(role="user", content="Hi")
TOOL = Tool(name="f", description="Does it.", parameters={"type": "object"})
STRICT = replace(TOOL, strict=True)


def model(template: str, oracle: Any = ORACLE) -> TextModel:
    files = {
        "tokenizer.json": oracle.to_str().encode(),
        "chat_template": template.encode(),
        "special_tokens": b"{}",
    }
    return TextModel(model_info(eos_ids=(token_id(oracle, "<|im_end|>"),)), files)


NO_THOUGHTS = byte_level(["<|im_end|>", "[TOOL_CALLS]", "[ARGS]"])


def unthinking(template: str) -> TextModel:
    return model(template, NO_THOUGHTS)


def call(*messages: Message, **fields: Any) -> Call:
    return Call(model="m", messages=messages or (HI,), **fields)


def prompt(text: TextModel, request: Call) -> str:
    return text.decode(text.render(request))


def grammar(text: TextModel, request: Call) -> str:
    constrained = text.constrained(request, text.render(request))
    assert constrained.format is not None
    assert constrained.format.kind == "grammar"
    return constrained.format.text


def events(text: TextModel, request: Call, answer: str) -> list[Event]:
    stream = text.stream(request, prompt=text.render(request))
    ids = text.encode(answer, add_special=False)
    shown = [event for token in ids for event in stream.feed([token])]
    return shown + stream.finish(Finished(1, Reason.STOP, 1, 0, len(ids), Timings()))


def said(shown: list[Event]) -> tuple[str, str, list[str]]:
    """Return reasoning, text, and the names and arguments of calls."""
    thought = "".join(event.text for event in shown if isinstance(event, ThinkDelta))
    text = "".join(event.text for event in shown if isinstance(event, TextDelta))
    calls: list[str] = []
    for event in shown:
        if isinstance(event, ToolDelta):
            calls += [event.name] if event.name else []
            calls[-1] += event.arguments
    return thought, text, calls


# Reasoning


def test_which_models_think() -> None:
    assert model(CHATML).thinks
    assert not unthinking(PLAIN).thinks
    assert unthinking(CHATML).thinks  # the tags are text there, and the template knows them


def test_a_prompt_that_opens_the_reasoning_is_noticed() -> None:
    answer = "why</think>so"
    assert said(events(model(OPENING), call(), answer)) == ("why", "so", [])
    assert said(events(model(CHATML), call(), answer)) == ("", answer, [])
    assert said(events(model(CHATML), call(), f"<think>{answer}")) == ("why", "so", [])


def test_no_effort_ends_the_reasoning_that_the_prompt_has_opened() -> None:
    text = model(OPENING)
    quiet = call(effort="none")
    assert prompt(text, quiet) == prompt(text, call()) + "</think>"
    assert said(events(text, quiet, "so")) == ("", "so", [])


def test_a_continued_message_goes_on_where_it_ends() -> None:
    going_on = Template(add_generation_prompt=False, continue_final_message=True)
    for content, thought in (("<think>a", "b"), ("<think>a</think>", ""), ("x", "")):
        last = Message(role="assistant", content=content)
        request = call(HI, last, template=going_on)
        assert said(events(model(CHATML), request, "b"))[0] == thought
    parts = Message(role="assistant", content=(Part("text", "<think>"), Part("text", "a")))
    request = call(HI, parts, template=going_on)
    stream = model(CHATML).stream(request, prompt=[])
    assert stream.feed(model(CHATML).encode("b", add_special=False)) == [
        ThinkDelta(0, "b", tuple(model(CHATML).encode("b", add_special=False)))
    ]


def test_reasoning_of_earlier_turns_is_no_part_of_their_content() -> None:
    spoken = Message(role="assistant", content="<think>why</think>\n\nso")
    apart = Message(role="assistant", content="so", reasoning="why")
    text = model(CHATML)
    assert text.render(call(HI, spoken, HI)) == text.render(call(HI, apart, HI))


def test_reasoning_and_format_have_one_grammar() -> None:  # F46
    wanted = Constraint("json_object")
    assert "reasoning" in grammar(model(CHATML), call(format=wanted))
    assert "reasoning" in grammar(model(OPENING), call(format=wanted))
    quiet = call(format=wanted, effort="none")
    assert model(CHATML).constrained(quiet, model(CHATML).render(quiet)).format == wanted
    plain = unthinking(PLAIN)
    assert plain.constrained(call(format=wanted), [1]).format == wanted


def test_a_grammar_of_its_own_needs_a_model_that_does_not_think() -> None:
    wanted = Constraint("grammar", "start: /a/")
    with pytest.raises(TuringError) as caught:
        grammar(model(CHATML), call(format=wanted))
    assert (caught.value.code, caught.value.param) == (Code.UNSUPPORTED, "response_format")
    assert grammar(model(CHATML), call(format=wanted, effort="none")) == wanted.text
    assert grammar(unthinking(PLAIN), call(format=wanted)) == wanted.text


def test_raw_prompts_are_text_throughout() -> None:
    text = model(OPENING)
    request = Call(model="m", prompt="<think>", tools=(STRICT,))
    assert text.constrained(request, [1]) is request
    assert said(events(text, request, "why</think><tool_call>")) == (
        "",
        "why</think><tool_call>",
        [],
    )


# Tools


def test_tools_are_shown_by_the_template_or_in_the_system_turn() -> None:
    assert '"name": "f"' in prompt(unthinking(HERMES_TOOLS), call(tools=(TOOL,)))
    for template in (PLAIN, UNKNOWN_TOOLS):
        shown = prompt(unthinking(template), call(tools=(TOOL,)))
        assert "<tools>" in shown and '"name":"f","description":"Does it."' in shown
    assert shown.index("<tools>") < shown.index("Hi")


def test_a_tool_that_must_not_be_called_is_shown_and_not_called() -> None:
    none = ToolChoice(mode="none")
    for template in (PLAIN, HERMES_TOOLS):
        text = unthinking(template)
        free = call(tools=(STRICT,))
        assert text.render(call(tools=(STRICT,), tool_choice=none)) == text.render(free)
        assert text.constrained(call(tools=(STRICT,), tool_choice=none), [1]).format is None
    answer = written(HERMES, [("f", "{}")])
    request = call(tools=(TOOL,), tool_choice=none)
    assert said(events(unthinking(PLAIN), request, answer)) == ("", answer, [])


def test_calls_and_results_of_the_history_are_shown_without_the_template() -> None:
    history = (
        HI,
        Message(
            role="assistant", tool_calls=(ToolCall("c1", "f", '{"a":1}'), ToolCall("c2", "g", ""))
        ),
        Message(role="tool", content="one", tool_call_id="c1"),
        Message(role="tool", content=(Part("text", "two"), Part("text", "!")), tool_call_id="c2"),
    )
    shown = prompt(unthinking(PLAIN), call(*history))
    assert (
        '<assistant><tool_call>\n{"name": "f", "arguments": {"a":1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call><|im_end|>'
        "<user><tool_response>\none\n</tool_response>\n"
        "<tool_response>\ntwo\n!\n</tool_response><|im_end|>"
    ) in shown


@pytest.mark.parametrize(
    ("template", "answer"),
    [
        (PLAIN, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'),
        (HERMES_TOOLS, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'),
        (MISTRAL_TOOLS, '[TOOL_CALLS]f[ARGS]{"a": 1}'),
        (PYTHONIC_TOOLS, "[f(a=1)]"),
    ],
)
def test_calls_are_read_in_the_models_own_way(template: str, answer: str) -> None:
    shown = said(events(unthinking(template), call(tools=(TOOL,)), answer))
    assert shown[1] == ""
    assert shown[2] == ['f{"a": 1}']


@pytest.mark.parametrize("template", [PLAIN, HERMES_TOOLS, MISTRAL_TOOLS, PYTHONIC_TOOLS])
def test_a_call_that_is_required_is_forced(template: str) -> None:
    text = unthinking(template)
    other = replace(TOOL, name="g")
    required = call(tools=(TOOL, other), tool_choice=ToolChoice(mode="required"), effort="none")
    constrained = text.constrained(required, text.render(required))
    assert constrained.format is not None and constrained.format.strict
    assert constrained.format_field == "tools"
    assert "arguments0" in constrained.format.text and "arguments1" in constrained.format.text
    named = replace(required, tool_choice=ToolChoice(mode="named", name="g"))
    assert '"f' not in grammar(text, named) and "f[ARGS]" not in grammar(text, named)


def test_a_model_without_tools_is_made_to_call_once_and_one_with_tools_as_it_likes() -> None:
    required = call(tools=(TOOL,), tool_choice=ToolChoice(mode="required"))
    single = replace(required, tool_choice=ToolChoice(mode="required", parallel=False))
    assert ")*" in grammar(unthinking(HERMES_TOOLS), required)
    assert ")*" not in grammar(unthinking(HERMES_TOOLS), single)
    assert ")*" not in grammar(unthinking(PLAIN), required)


def test_tools_that_may_be_called_have_a_grammar_only_when_they_are_strict() -> None:
    text = unthinking(HERMES_TOOLS)
    assert text.constrained(call(tools=(TOOL,)), [1]).format is None
    assert "head" in grammar(text, call(tools=(TOOL, STRICT)))
    assert unthinking(PYTHONIC_TOOLS).constrained(call(tools=(STRICT,)), [1]).format is None


def test_tools_and_a_format_go_together_or_are_refused() -> None:  # F23
    wanted = Constraint("json_object", strict=True)
    request = call(tools=(TOOL,), format=wanted, format_field="format")
    constrained = unthinking(HERMES_TOOLS).constrained(request, [1])
    assert constrained.format is not None and " | %json" in constrained.format.text
    assert (constrained.format.strict, constrained.format_field) == (True, "format")
    own = replace(request, format=Constraint("grammar", "start: /a/"))
    for text, refused in ((unthinking(PYTHONIC_TOOLS), request), (unthinking(HERMES_TOOLS), own)):
        with pytest.raises(TuringError) as caught:
            text.constrained(refused, [1])
        assert (caught.value.code, caught.value.param) == (Code.UNSUPPORTED, "format")


def test_special_tokens_of_the_syntax_are_forced_as_tokens_and_read() -> None:
    text = model(MISTRAL_TOOLS)
    required = call(tools=(TOOL,), tool_choice=ToolChoice(mode="required"), effort="none")
    assert f'<[{token_id(ORACLE, "[TOOL_CALLS]")}]> "f"' in grammar(text, required)


def test_a_call_behind_reasoning_is_forced_and_read() -> None:  # F26
    text = model(OPENING)
    required = call(tools=(TOOL,), tool_choice=ToolChoice(mode="required"))
    constrained = text.constrained(required, text.render(required)).format
    assert constrained is not None and constrained.text.startswith("start: reasoning ")
    assert not constrained.strict
    answer = "why {}</think>\n\n" + written(HERMES, [("f", "{}")])
    assert said(events(text, required, answer)) == ("why {}", "", ["f{}"])
