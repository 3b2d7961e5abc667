"""Chat templates: what reaches them, what they may refuse, and their limits."""

import json
from datetime import datetime
from typing import Any

import pytest

from turing_gateway.call import Call, Message, Part, Template, Tool, ToolCall
from turing_gateway.text.control import MARK
from turing_gateway.text.template import ChatTemplate
from turing_protocol.errors import Code, TuringError

PLAIN = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
JOINED = "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}"
PARTS_ONLY = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% for part in m.content %}{{ part['text'] }}|{% endfor %}{% endfor %}"
)
BOTH = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)
TOOLS = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls %}{{ call.id }} {{ call.function.name }} "
    "{{ call.function.arguments | tojson }}{% endfor %};{% endfor %}"
)


def call(*messages: Message, **fields: Any) -> Call:
    return Call(model="m", messages=messages, **fields)


def user(content: str | tuple[Part, ...] | None = "Hi", **fields: Any) -> Message:
    return Message(role="user", content=content, **fields)


def render(source: str, request: Call, **specials: str | None) -> str:
    return ChatTemplate(source, specials).render(request)


def refusal(source: str, request: Call, **limits: Any) -> TuringError:
    with pytest.raises(TuringError) as caught:
        ChatTemplate(source, {}, **limits).render(request)
    return caught.value


def test_messages_special_tokens_and_generation_prompt_are_there() -> None:
    source = "{{ bos_token }}{{ eos_token is defined }}" + PLAIN
    request = call(Message(role="system", content="Be brief."), user())
    text = render(source, request, bos_token="<s>", eos_token=None)
    assert text == "<s>False<system>Be brief.\n<user>Hi\n<assistant>"
    without = call(user(), template=Template(add_generation_prompt=False))
    assert render(PLAIN, without) == "<user>Hi\n"


def test_blocks_are_trimmed_and_loops_can_be_left() -> None:
    source = (
        "{% for m in messages %}\n    {% if loop.index > 1 %}\n{% break %}\n"
        "    {% endif %}\nx\n{% endfor %}"
    )
    assert render(source, call(user(), user(), user())) == "x\n"


def test_json_has_no_html_escapes_and_keeps_unicode() -> None:
    request = call(user(), template=Template(kwargs={"value": {"b": "<é>&'", "a": [1, None]}}))
    assert render("{{ value | tojson }}", request) == '{"b": "<é>&\'", "a": [1, null]}'
    assert render("{{ value | tojson(sort_keys=true) }}", request).startswith('{"a"')
    escaped = render("{{ value | tojson(ensure_ascii=true) }}", request)
    assert escaped == json.dumps({"b": "<é>&'", "a": [1, None]})


def test_marks_survive_ascii_json() -> None:
    template = ChatTemplate("{{ messages[0].content | tojson(ensure_ascii=true) }}", {})
    assert template.render(call(user("é<")), lambda text: text + MARK) == f'"\\u00e9<{MARK}"'


def test_today_is_known() -> None:
    assert render("{{ strftime_now('%Y') }}", call(user())) == str(datetime.now().year)


def test_training_marks_of_assistant_text_are_left_out() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert render(source, call(user("a"), user("b"))) == "ab"


def test_the_template_s_own_refusal_is_a_client_error_in_its_words() -> None:  # F40
    source = "{% if messages[1] %}{{ raise_exception('roles must alternate: é') }}{% endif %}x"
    error = refusal(source, call(user(), user()))
    assert (error.code, error.message, error.param) == (
        Code.INVALID, "roles must alternate: é", "messages",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("source", "content"),
    [
        (JOINED, None),
        ("{{ messages[0].content + 1 }}", "x"),
        ("{{ 1 // 0 }}{{ messages }}", "x"),
        ("{{ messages[0].nothing.more }}", "x"),
        ("{{ ''.__class__.__mro__ }}", "x"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "x"),
    ],
)
def test_any_other_failure_is_a_client_error(source: str, content: str | None) -> None:  # F40
    error = refusal(source, call(user(content)))
    assert (error.code, error.param) == (Code.INVALID, "messages")
    assert "cannot render" in error.message


def test_marks_do_not_show_in_errors() -> None:
    template = ChatTemplate("{{ raise_exception(messages[0].content) }}", {})
    with pytest.raises(TuringError) as caught:
        template.render(call(user("no")), lambda text: f"{MARK}{text}{MARK}")
    assert caught.value.message == "no"


def test_an_unknown_role_reaches_the_template() -> None:
    assert render(PLAIN, call(Message(role="critic", content="x"))).replace(MARK, "") == (
        "<critic>x\n<assistant>"
    )


def test_a_role_cannot_be_built_into_a_control_token() -> None:
    source = "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% endfor %}"
    assert render(source, call(user())) == "<|user|>"
    assert "<|end|>" not in render(source, call(Message(role="end", content="x")))


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) + m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    ],
)
def test_a_template_that_loops_is_ended(source: str) -> None:  # F41
    guarded = "{% if messages[0].content == 'go' %}" + source + "{% endif %}"
    error = refusal(guarded, call(user("go")), max_seconds=0.2)
    assert (error.code, error.message) == (
        Code.INVALID, "rendering the chat template takes longer than 0.2 s",
    )  # fmt: skip


def test_a_prompt_that_grows_without_end_is_ended() -> None:  # F41
    source = "{% for a in range(99999) %}{{ messages[0].content }}{% endfor %}"
    error = refusal(source, call(user("x" * 100)), max_chars=10_000)
    assert "longer than 10000 characters" in error.message


def test_a_template_that_does_not_compile_is_refused_at_once() -> None:
    with pytest.raises(TuringError, match="does not compile") as caught:
        ChatTemplate("{% for %}", {})
    assert caught.value.param == "chat_template"


def test_parts_are_joined_for_a_template_that_wants_text() -> None:
    parts = (Part("text", "one"), Part("text", "two"))
    assert render(JOINED, call(user(parts))) == "<user>one\ntwo"
    assert render(PLAIN, call(user(parts))) == "<user>one\ntwo\n<assistant>"


def test_parts_stay_parts_for_a_template_that_takes_them() -> None:
    parts = (Part("text", "one"), Part("text", "two"))
    assert render(PARTS_ONLY, call(user(parts))) == "<user>one|two|"
    assert render(PARTS_ONLY, call(user("one"))) == "<user>one|"
    assert render(BOTH, call(user(parts), user("three"))) == "onetwothree"


def test_other_parts_are_refused_by_name() -> None:
    error = refusal(PLAIN, call(user(), user((Part("image_url"),))))
    assert (error.code, error.param) == (Code.UNSUPPORTED, "messages.1.content")
    assert "image_url" in error.message


def test_developer_is_system_unless_the_template_knows_it() -> None:
    request = call(Message(role="developer", content="x"))
    assert render(PLAIN, request) == "<system>x\n<assistant>"
    assert render(PLAIN + "{# developer #}", request) == "<developer>x\n<assistant>"


def test_tools_and_calls_are_rendered_as_openai_writes_them() -> None:
    tool = Tool(name="f", description="Finds.", parameters={"type": "object"})
    history = (
        Message(role="assistant", tool_calls=(ToolCall("c1", "f", '{"x": "é"}'),)),
        Message(role="tool", content="found", tool_call_id="c1", name="f"),
    )
    lines = render(TOOLS, call(user(), *history, tools=(tool,))).split("\n")
    function = {"name": "f", "description": "Finds.", "parameters": {"type": "object"}}
    assert json.loads(lines[0]) == {"type": "function", "function": function}
    assert lines[1] == 'user:Hi;assistant:c1 f {"x": "é"};tool:found;'


def test_whether_a_template_shows_tools_and_takes_a_system_turn_is_found_out() -> None:
    assert not ChatTemplate(PLAIN, {}).takes_tools
    assert ChatTemplate("{{ tools[0].function.name if tools }}", {}).takes_tools
    assert ChatTemplate(PLAIN, {}).takes_system
    assert not ChatTemplate(
        "{{ raise_exception('no') if messages[0].role == 'system' }}", {}
    ).takes_system


def test_a_template_that_wants_short_ids_gets_the_same_one_for_call_and_result() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ raise_exception('9 letters') if c.id | length != 9 else '<' + c.id + '>' }}{% endfor %}"
        "{{ '[' + m.tool_call_id + ']' if m.tool_call_id }}{% endfor %}"
    )
    history = (
        Message(role="user", content="Hi"),
        Message(role="assistant", tool_calls=(ToolCall("call_0123456789", "f", "{}"),)),
        Message(role="tool", content="1", tool_call_id="call_0123456789"),
        Message(role="assistant", tool_calls=(ToolCall("a2B4c6D8e", "f", "{}"),)),
    )
    prompt = ChatTemplate(source, {}).render(call(*history))
    first = prompt[1:10]
    assert prompt == f"<{first}>[{first}]<a2B4c6D8e>"


def test_arguments_stay_text_for_a_template_that_joins_them() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls %}"
        "{{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}"
    )
    history = Message(role="assistant", tool_calls=(ToolCall("c1", "f", '{"x":1}'),))
    assert render(source, call(user(), history)) == 'f{"x":1}'


@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"'])
def test_arguments_must_be_a_json_object(arguments: str) -> None:
    history = Message(role="assistant", tool_calls=(ToolCall("c1", "f", arguments),))
    error = refusal(TOOLS, call(user(), history))
    assert (error.code, error.param) == (Code.INVALID, "messages.1.tool_calls")


@pytest.mark.parametrize(
    ("effort", "shown"), [("", "-/-"), ("none", "none/False"), ("high", "high/True")]
)
def test_effort_is_passed_to_the_template(effort: str, shown: str) -> None:
    source = "{{ reasoning_effort | default('-') }}/{{ enable_thinking | default('-') }}"
    assert render(source, call(user(), effort=effort)) == shown


def test_client_variables_win_over_effort_but_not_over_the_server() -> None:
    kwargs = {"enable_thinking": False, "style": ["a"]}
    request = call(user(), effort="high", template=Template(kwargs=kwargs))
    assert render("{{ enable_thinking }}{{ style[0] }}", request) == "Falsea"
    for name in ("messages", "tools", "add_generation_prompt", "bos_token"):
        clash = call(user(), template=Template(kwargs={name: "x"}))
        with pytest.raises(TuringError) as caught:
            ChatTemplate(PLAIN, {"bos_token": "<s>"}).render(clash)
        assert caught.value.param == f"chat_template_kwargs.{name}"


def test_reasoning_is_known_by_all_its_names() -> None:
    source = "{% set m = messages[0] %}{{ m.reasoning_content + m.reasoning + m.thinking }}"
    message = Message(role="assistant", content="x", reasoning="r")
    assert render(source, call(message)) == "rrr"


def test_the_final_message_can_be_continued() -> None:
    template = Template(continue_final_message=True)
    request = call(user(), Message(role="assistant", content="I am "), template=template)
    assert render(PLAIN, request) == "<user>Hi\n<assistant>I am "
    trimmed = PLAIN.replace("m['content']", "m['content'] | trim")
    assert render(trimmed, request) == "<user>Hi\n<assistant>I am"
    parts = call(Message(role="assistant", content=(Part("text", "a"),)), template=template)
    assert render(BOTH, parts) == "a"


@pytest.mark.parametrize("source", ["{{ messages[0].role }}", PLAIN])
def test_what_cannot_be_continued_is_refused(source: str) -> None:
    content = None if source == PLAIN else "x"
    error = refusal(source, call(user(content), template=Template(continue_final_message=True)))
    assert (error.code, error.param) == (Code.INVALID, "messages")
