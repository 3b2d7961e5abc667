"""DeepSeek's two ways to write calls."""

import pytest

from fakes.tool_calls import Shown, cuts, read
from turing_gateway.text.tools.deepseek import deepseek

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEP = "<｜tool▁sep｜>"


def reads(text: str) -> Shown:
    whole = read(deepseek().reader(["f", "g"]), [text])
    for parts in cuts(text):
        assert read(deepseek().reader(["f", "g"]), parts) == whole
    return whole


@pytest.mark.parametrize(
    "text",
    [
        f'{CALLS}{CALL}f{SEP}{{"a":1}}{CALL_END}{CALLS_END}',
        f'{CALL}f{SEP}{{"a":1}}{CALL_END}',
        f'{CALLS}\n{CALL}f{SEP}\n{{"a":1}}\n{CALL_END}\n{CALLS_END}',
        f'{CALLS}{CALL}function{SEP}f\n```json\n{{"a":1}}\n```{CALL_END}{CALLS_END}',
        f'{CALLS}{CALL}function{SEP}f\n{{"a":1}}{CALL_END}{CALLS_END}',
        f'{CALLS}{CALL}f{SEP}{{"a":1}}',
    ],
)
def test_the_same_call_in_many_spellings(text: str) -> None:
    assert reads(text) == [("CALL", "f"), ("ARGUMENTS", '{"a":1}')]


def test_a_tool_may_be_called_function() -> None:
    assert reads(f"{CALL}function{SEP}{{}}{CALL_END}") == [
        ("CALL", "function"),
        ("ARGUMENTS", "{}"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        f"{CALLS} nothing",
        "<｜tool▁call is not a tag",
        f"{CALL}{'n' * 300}{SEP}",
        f"{CALL}f{SEP}words",
        f"{CALL}{SEP}{{}}",
        "<｜tool",
    ],
)
def test_what_is_no_call_is_text_as_it_stands(text: str) -> None:
    assert reads(text) == [("TEXT", text)]


def test_text_around_calls_is_text() -> None:
    assert reads(f"A.{CALLS}{CALL}f{SEP}{{}}{CALL_END}{CALLS_END}B.") == [
        ("TEXT", "A."),
        ("CALL", "f"),
        ("ARGUMENTS", "{}"),
        ("TEXT", "B."),
    ]
