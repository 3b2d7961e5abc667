"""Mistral's two ways to write calls."""

import pytest

from fakes.tool_calls import Shown, cuts, read
from turing_gateway.text.tools.mistral import mistral


def reads(text: str) -> Shown:
    whole = read(mistral().reader(["f", "g"]), [text])
    for parts in cuts(text):
        assert read(mistral().reader(["f", "g"]), parts) == whole
    return whole


@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS]f[ARGS]{"a":1}',
        '[TOOL_CALLS]f{"a":1}',
        '[TOOL_CALLS] f[CALL_ID]abc123def[ARGS] {"a":1}',
        '[TOOL_CALLS][{"name": "f", "arguments": {"a":1}, "id": "abc123def"}]',
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a":1}}]\n',
        '[TOOL_CALLS] {"name": "f", "arguments": {"a":1}}',
    ],
)
def test_the_same_call_in_many_spellings(text: str) -> None:
    assert reads(text) == [("CALL", "f"), ("ARGUMENTS", '{"a":1}')]


@pytest.mark.parametrize(
    "text",
    ["[TOOL_CALLS] is a token.", "[TOOL_CALLS]f[NO]{}", "[TOOL_CALLS]" + "n" * 300 + "{}", "[TOOL"],
)
def test_what_is_no_call_is_text_as_it_stands(text: str) -> None:
    assert reads(text) == [("TEXT", text)]


@pytest.mark.parametrize("text", ["[TOOL_CALLS]f[AR", "[TOOL_CALLS]f[CALL_ID]x", "[TOOL_CALLS]f"])
def test_a_call_that_is_cut_off_before_its_arguments_is_dropped(text: str) -> None:
    assert reads("Hm. " + text) == [("TEXT", "Hm. ")]
