"""Calls as JSON objects: what models make of them, and what is no call."""

import pytest

from fakes.tool_calls import Shown, cuts, read
from turing_gateway.text.tools.objects import hermes, llama

CALL = [("CALL", "f"), ("ARGUMENTS", '{"a":1}')]
OPEN, CLOSE = "<tool_call>", "</tool_call>"


def hermes_reads(text: str) -> Shown:
    whole = read(hermes().reader(["f", "g"]), [text])
    for parts in cuts(text):
        assert read(hermes().reader(["f", "g"]), parts) == whole
    return whole


def llama_reads(text: str) -> Shown:
    whole = read(llama().reader(["f", "g"]), [text])
    for parts in cuts(text):
        assert read(llama().reader(["f", "g"]), parts) == whole
    return whole


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "arguments": {"a":1}}',
        '\n\n{ "name" : "f" , "arguments" : {"a":1} }\n',
        '{"arguments": {"a":1}, "name": "f"}',
        '{"name": "f", "parameters": {"a":1}}',
        '{"type": "function", "name": "f", "strict": true, "arguments": {"a":1}, "n": 5}',
        '[{"name": "f", "arguments": {"a":1}}]',
        '{"name": "f", "arguments": "{\\"a\\":1}"}',
        '{"name": "\\u0066", "arguments": {"a":1}}',
        '{"name": "f", "arguments": {"a":1}, "arguments": {"b":2}}',
    ],
)
def test_the_same_call_in_many_spellings(body: str) -> None:
    assert hermes_reads(f"{OPEN}{body}{CLOSE}") == CALL


@pytest.mark.parametrize("body", ['{"name": "f"}', '{"name": "f", "arguments": null}'])
def test_no_arguments_are_an_empty_object(body: str) -> None:
    assert hermes_reads(f"{OPEN}{body}{CLOSE}") == [("CALL", "f"), ("ARGUMENTS", "{}")]


@pytest.mark.parametrize(
    "text",
    [
        "Write <tool_call> to call.",
        "<tool_call>{}</tool_call>!",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>!',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>!',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>!',
        '<tool_call>{"name": "f", "arguments": "words"}</tool_call>!',
        '<tool_call>{"name" "f"}</tool_call>!',
        "<tool_call>{nonsense}</tool_call>!",
        '<tool_call>{"a\\x": 1}</tool_call>!',
        "a < b <tool",
    ],
)
def test_what_is_no_call_is_text_as_it_stands(text: str) -> None:
    assert hermes_reads(text) == [("TEXT", text)]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": {"a":1}}',
        '<tool_call>{"name": "f", "arguments": {"a":1}}</tool_c',
        '<tool_call>{"name": "f", "arguments": {"a":1}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a":1}',
    ],
)
def test_an_end_that_is_missing_is_not_missed(text: str) -> None:
    assert hermes_reads(text)[:2] == CALL


def test_text_behind_a_call_is_text() -> None:
    assert hermes_reads(f'{OPEN}{{"name":"f","arguments":{{"a":1}}}}{CLOSE}\nDone.') == [
        *CALL,
        ("TEXT", "Done."),
    ]


def test_a_call_that_is_cut_off_is_open_and_one_that_has_no_name_is_dropped() -> None:  # F17
    scanner = hermes().reader(["f"])
    assert read(scanner, [OPEN + '{"name": "f", "arguments": {"a": "b']) == [
        ("CALL", "f"),
        ("ARGUMENTS", '{"a": "b'),
    ]
    assert scanner.open
    assert hermes_reads(f'Hm.{OPEN}{{"name": "f"') == [("TEXT", "Hm.")]
    assert hermes_reads(f'{OPEN}{{"arguments": {{"a": 1}}, "na') == []


def test_arguments_arrive_as_they_are_written() -> None:
    scanner = hermes().reader(["f"])
    scanner.feed(OPEN + '{"name": "f", "arguments": ')
    assert [piece.text for piece in scanner.feed('{"a":')] == ["f", '{"a":']
    assert [piece.text for piece in scanner.feed(' "x')] == [' "x']


def test_llamas_answer_is_a_call_if_it_names_a_tool() -> None:
    body = '{"name": "f", "parameters": {"a":1}}'
    assert llama_reads(body) == CALL
    assert llama_reads(f"\n {body}") == CALL
    assert llama_reads(f"<|python_tag|>{body}") == CALL
    assert llama_reads(f"{body}; {body}") == [*CALL, *CALL]
    assert llama_reads(f"{body}\n") == CALL


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ann", "arguments": {"a":1}}',
        '{"city": "Paris"}',
        'See {"name": "f", "parameters": {}}',
        '{"name": "f"',
        '<|python_tag|>f.call(query="x")',
        "",
        " ",
    ],
)
def test_llamas_other_answers_are_text(text: str) -> None:
    assert llama_reads(text) == ([("TEXT", text)] if text else [])
