"""Tools for templates that know none."""

from turing_gateway.call import Message, Part, Tool, ToolCall
from turing_gateway.text.tools.generic import with_tools

TOOLS = (Tool(name="f"),)
HI = Message(role="user", content="Hi")


def test_tools_join_the_system_turn_or_make_one() -> None:
    system = Message(role="system", content="Be brief.")
    first, second = with_tools([system, HI], TOOLS, takes_system=True)
    assert isinstance(first.content, str) and first.content.startswith("Be brief.\n\n# Tools")
    assert second == HI
    made = with_tools([HI], TOOLS, takes_system=True)
    assert [message.role for message in made] == ["system", "user"]
    assert [message.role for message in with_tools([], TOOLS, takes_system=False)] == ["system"]


def test_where_there_can_be_no_system_turn_tools_stand_before_the_first_words() -> None:
    (only,) = with_tools([HI], TOOLS, takes_system=False)
    assert isinstance(only.content, str) and only.content.endswith("</tool_call>\n\nHi")
    parts = Message(role="user", content=(Part("text", "Hi"),))
    (only,) = with_tools([parts], TOOLS, takes_system=False)
    assert isinstance(only.content, tuple)
    assert only.content[-1] == Part("text", "Hi") and "# Tools" in only.content[0].text


def test_a_call_stands_behind_the_words_of_its_turn() -> None:
    turn = Message(role="assistant", content="Wait.", tool_calls=(ToolCall("c", 'f"', "{}"),))
    (shown,) = with_tools([turn], (), takes_system=True)
    assert shown.tool_calls == ()
    assert shown.content == ('Wait.\n<tool_call>\n{"name": "f\\"", "arguments": {}}\n</tool_call>')


def test_without_tools_and_calls_nothing_changes() -> None:
    assert with_tools([HI], (), takes_system=True) == [HI]
