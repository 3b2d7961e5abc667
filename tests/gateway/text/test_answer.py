"""Reasoning, text and calls of one answer, and what of them a call does not want."""

from itertools import chain

import pytest

from fakes.tool_calls import Shown, cuts, shown
from turing_gateway.text.answer import AnswerParser, Reading
from turing_gateway.text.reasoning import Tags
from turing_gateway.text.tools.objects import hermes

TAGS = Tags("<think>", "</think>")
CALL = '<tool_call>{"name": "f", "arguments": {"a":1}}</tool_call>'
CALLED = [("CALL", "f"), ("ARGUMENTS", '{"a":1}')]


def parse(parts: list[str], reading: Reading) -> tuple[Shown, AnswerParser]:
    parser = AnswerParser(reading, hermes().reader(["f"]))
    pieces = [*chain.from_iterable(map(parser.feed, parts)), *parser.close()]
    return shown(pieces), parser


def reads(text: str, reading: Reading) -> tuple[Shown, AnswerParser]:
    whole = parse([text], reading)
    for parts in cuts(text):
        again, parser = parse(parts, reading)
        assert (again, parser.calls, parser.called) == (whole[0], whole[1].calls, whole[1].called)
    return whole


def test_reasoning_then_text_then_a_call() -> None:
    pieces, parser = reads(f"<think>why {CALL}</think>\nLook: {CALL}", Reading(tags=TAGS))
    assert pieces == [("THINK", f"why {CALL}"), ("TEXT", "Look: "), *CALLED]
    assert (parser.calls, parser.called, parser.thinking) == (1, True, False)


def test_at_most_one_call_where_there_may_not_be_more() -> None:  # F25
    pieces, parser = reads(CALL * 3, Reading(parallel=False))
    assert pieces == CALLED
    assert (parser.calls, parser.called) == (1, True)
    assert reads(CALL * 3, Reading())[0] == CALLED * 3


def test_a_forced_answer_has_no_text() -> None:
    assert reads(f"x {CALL} y", Reading(forced=True))[0] == CALLED
    assert reads("<tool_c", Reading(forced=True))[0] == []


@pytest.mark.parametrize(
    ("text", "called"),
    [("", False), ("hi", False), (CALL[:30], False), (CALL[:44], False), (CALL[:45], True)],
)
def test_there_are_calls_once_the_last_one_is_complete(text: str, called: bool) -> None:  # F17
    assert reads(text, Reading())[1].called is called


def test_without_tags_and_tools_everything_is_text() -> None:
    parser = AnswerParser(Reading())
    text = f"<think>a</think>{CALL}<tool_c"
    assert shown([*parser.feed(text), *parser.close()]) == [("TEXT", text)]
    assert (parser.called, parser.thinking) == (False, False)
