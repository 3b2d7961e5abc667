"""The grammars accept what the parsers read, and nothing that a client ruled out."""

import json

import pytest
from llguidance import LLMatcher, LLTokenizer

from fakes.tool_calls import written
from turing_gateway.call import Tool
from turing_gateway.text.grammar import Lark, answer, calls, text_or_calls, thinking
from turing_gateway.text.reasoning import Tags
from turing_gateway.text.tools.dialect import TOOLS, Syntax
from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint

BYTES = LLTokenizer("byte")
TAGS = Tags("<think>", "</think>")
CLOSED = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
STRICT = (Tool(name="f", parameters=CLOSED, strict=True), Tool(name="g", strict=True))
ONE, TWO = [("f", '{"a":1}')], [("f", '{"a":1}'), ("g", "{}")]


def accepts(lark: str, text: str) -> bool:
    grammar = LLMatcher.grammar_from_lark(lark)
    assert LLMatcher.validate_grammar(grammar, BYTES) == ""
    matcher = LLMatcher(BYTES, grammar)
    data = list(text.encode())
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


def syntaxes() -> list[Syntax]:
    found = [TOOLS.make(name).syntax for name in TOOLS.names()]
    return [syntax for syntax in found if syntax is not None]


@pytest.mark.parametrize("syntax", syntaxes())
def test_forced_calls_are_calls_and_nothing_else(syntax: Syntax) -> None:
    lark = Lark({})
    text = lark.text(calls(lark, syntax, STRICT, many=True))
    assert accepts(text, written(syntax, ONE))
    assert accepts(text, written(syntax, TWO)) is syntax.many
    assert not accepts(text, "no")
    assert not accepts(text, written(syntax, [("f", "{}")]))
    assert not accepts(text, written(syntax, [("h", "{}")]))
    assert not accepts(text, written(syntax, [("g", '{"a":1}')]))


@pytest.mark.parametrize("syntax", syntaxes())
def test_where_one_call_is_wanted_there_is_one(syntax: Syntax) -> None:
    lark = Lark({})
    text = lark.text(calls(lark, syntax, STRICT, many=False))
    assert accepts(text, written(syntax, ONE))
    assert not accepts(text, written(syntax, TWO))


@pytest.mark.parametrize("syntax", syntaxes())
def test_free_answers_are_free_until_a_call_begins(syntax: Syntax) -> None:
    lark = Lark({})
    text = lark.text(text_or_calls(lark, syntax, STRICT, many=True))
    for fine in ("", "no", "a / b \\ \n 🫠", written(syntax, ONE)):
        assert accepts(text, fine)
    assert accepts(text, "See: " + written(syntax, ONE))
    assert not accepts(text, written(syntax, [("f", "{}")]))


def test_reasoning_comes_first_and_is_free() -> None:  # F26, F46
    lark = Lark({})
    text = lark.text(f"{thinking(lark, TAGS, inside=False)} {answer(Constraint('json_object'))}")
    assert accepts(text, '<think>any {thing</think>\n\n{"a":1}')
    assert accepts(text, '{"a":1}')
    assert not accepts(text, "<think>any</think>thing")
    lark = Lark({})
    text = lark.text(f"{thinking(lark, TAGS, inside=True)} {answer(Constraint('json_object'))}")
    assert accepts(text, 'any</think>{"a":1}')
    assert not accepts(text, '{"a":1}')


def test_a_call_or_an_answer_in_the_wanted_format() -> None:  # F23
    lark = Lark({})
    syntax = syntaxes()[0]
    wanted = Constraint("json_schema", json.dumps(CLOSED), strict=True)
    text = lark.text(f"({calls(lark, syntax, STRICT, many=True)} | {answer(wanted)})")
    assert accepts(text, written(syntax, TWO))
    assert accepts(text, '{"a":1}')
    assert not accepts(text, '{"b":1}')
    assert not accepts(text, "no")


@pytest.mark.parametrize(
    ("constraint", "fine", "bad"),
    [
        (Constraint("regex", r"a/b\/[c]+"), "a/b/cc", "a/b"),
        (Constraint("choice", '["yes", "no \\"never\\""]'), 'no "never"', "maybe"),
        (Constraint("json_schema", json.dumps(CLOSED)), '{"a":1}', "{}"),
    ],
)
def test_every_kind_of_format(constraint: Constraint, fine: str, bad: str) -> None:
    text = Lark({}).text(answer(constraint) or "")
    assert accepts(text, fine)
    assert not accepts(text, bad)


def test_a_grammar_cannot_be_part_of_another() -> None:
    assert answer(Constraint("grammar", "start: /a/")) is None


def test_special_tokens_are_named_by_their_ids() -> None:
    lark = Lark({"[TOOL_CALLS]": 5, "[ARGS]": 6})
    assert lark.literal("[TOOL_CALLS]f[ARGS]") == '<[5]> "f" <[6]>'
    assert lark.until("head", "[TOOL_CALLS]").endswith(" <[5]>")
    assert lark.without("[ARGS]") == "/(?s:.*)/"


def test_parameters_are_objects() -> None:
    tools = (Tool(name="f", parameters={"type": "string"}),)
    with pytest.raises(TuringError) as caught:
        calls(Lark({}), syntaxes()[0], tools, many=True)
    assert (caught.value.code, caught.value.param) == (Code.INVALID, "tools")


def test_parameters_without_a_type_are_objects_and_text_is_never_taken_for_gbnf() -> None:
    tools = (Tool(name="f", parameters={"properties": {"a": {"const": "x ::= y"}}}),)
    lark = Lark({})
    text = lark.text(calls(lark, syntaxes()[0], tools, many=False))
    assert "::=" not in text
    assert accepts(text, written(syntaxes()[0], [("f", '{"a":"x ::= y"}')]))


def test_what_cannot_be_checked_is_let_pass_unless_the_tool_is_strict() -> None:
    unknown = {
        "type": "object",
        "properties": {"a": {"type": "array", "contains": {"type": "null"}}},
    }
    for strict, complaint in ((False, ""), (True, "contains")):
        lark = Lark({})
        tools = (Tool(name="f", parameters=unknown, strict=strict),)
        text = lark.text(calls(lark, syntaxes()[0], tools, many=False))
        error = LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(text), BYTES)
        assert complaint in error and bool(error) is strict
