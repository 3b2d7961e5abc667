"""Calls written as Python become JSON."""

import json

import pytest

from fakes.tool_calls import ARGUMENTS, Shown, cuts, read
from turing_gateway.text.tools.pythonic import pythonic

START, END = "<|tool_call_start|>", "<|tool_call_end|>"


def reads(text: str) -> Shown:
    whole = read(pythonic().reader(["f", "a.g"]), [text])
    for parts in cuts(text):
        assert read(pythonic().reader(["f", "a.g"]), parts) == whole
    return whole


@pytest.mark.parametrize("recorded", ARGUMENTS)
def test_a_recorded_call_cut_anywhere_is_the_same_call(recorded: str) -> None:
    values = json.loads(recorded)
    written = ", ".join(f"{key}={value!r}" for key, value in values.items())
    arguments = json.dumps(values, ensure_ascii=False)
    assert reads(f"[f({written})]") == [("CALL", "f"), ("ARGUMENTS", arguments)]


def test_several_calls_with_and_without_tags() -> None:
    expected = [
        ("CALL", "f"),
        ("ARGUMENTS", '{"a": [1, -2.5]}'),
        ("CALL", "a.g"),
        ("ARGUMENTS", "{}"),
    ]
    assert reads("[f(a=[1, -2.5]), a.g()]") == expected
    assert reads(f"{START}[f(a=(1, -2.5)), a.g()]{END}") == expected
    assert reads(f"Let me see.{START}[f(a=[1, -2.5]),a.g()]{END}\nSo.") == [
        ("TEXT", "Let me see."),
        *expected,
        ("TEXT", "So."),
    ]


def test_words_of_json_are_understood() -> None:
    assert reads("[f(a=true, b=None, c={'d': false}, e=null)]") == [
        ("CALL", "f"),
        ("ARGUMENTS", '{"a": true, "b": null, "c": {"d": false}, "e": null}'),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2, 3]",
        "[unknown(a=1)]",
        "[f]",
        "[f(1)]",
        "[f(a=b)]",
        "[f(a=open('x'))]",
        "[f(a=1",
        "[f(a=1e999)]",
        "[f(a={1: 2})]",
        "[f(a=" + "(" * 300 + ")" * 300 + ")]",
        "[link](x)",
        f"{START} [f(a=b)]",
    ],
)
def test_what_is_no_call_is_text_as_it_stands(text: str) -> None:
    assert reads(text) == [("TEXT", text)]


def test_an_odd_escape_is_no_warning() -> None:
    assert reads(r"[f(a='\d')]") == [("CALL", "f"), ("ARGUMENTS", r'{"a": "\\d"}')]
