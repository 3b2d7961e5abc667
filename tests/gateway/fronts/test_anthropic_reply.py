"""Events to content blocks: the order of a stream, and a whole answer as what it adds up to."""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.generator import begin, finish
from turing_gateway.call import Begin, Call, Event, Failure, TextDelta, ThinkDelta, ToolDelta
from turing_gateway.fronts.anthropic_reply import (
    SIGNATURE,
    BlockDelta,
    Blocks,
    BlockStart,
    BlockStop,
    InputPiece,
    MessageDelta,
    MessageStart,
    MessageStop,
    Reply,
    Sent,
    SignaturePiece,
    TextPiece,
    ThinkingPiece,
    gather,
    tool_input,
)
from turing_gateway.fronts.anthropic_types import TextBlock, ThinkingBlock, ToolUseBlock
from turing_gateway.fronts.base import Events
from turing_protocol.errors import Code, TuringError

CALL = Call(model="fake", max_tokens=3, request_id="r1")


def blocks_of(**options: Any) -> Blocks:
    return Blocks(CALL, "claude-fake", **options)


def sent_for(events: Iterable[Event], **options: Any) -> list[Sent]:
    blocks = blocks_of(**options)
    return [sent for event in events for sent in blocks.take(event)]


def middle(*events: Event, **options: Any) -> list[Sent]:
    """Return what is sent between the start of a message and its end."""
    start, *sent, delta, stop = sent_for([begin(), *events, finish()], **options)
    assert isinstance(start, MessageStart)
    assert isinstance(delta, MessageDelta)
    assert isinstance(stop, MessageStop)
    return sent


def gathered(events: Sequence[Event]) -> Reply:
    async def rest() -> Events:
        for event in events[1:]:
            yield event

    first = events[0]
    assert isinstance(first, Begin)
    return asyncio.run(gather(first, rest(), blocks_of()))


def test_the_start_counts_the_prompt_and_what_the_cache_had_of_it() -> None:
    (start,) = sent_for([begin(prompt_tokens=70, cached_tokens=64)])
    assert isinstance(start, MessageStart)
    message = start.message
    assert (message.id, message.model, message.content) == ("msg_r1", "claude-fake", [])
    assert (message.stop_reason, message.stop_sequence) == (None, None)
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (6, 64, 0)


def test_text_is_one_block_and_no_text_is_none() -> None:
    assert middle(TextDelta(0, "a"), TextDelta(0, ""), TextDelta(0, "b")) == [
        BlockStart(0, TextBlock("")),
        BlockDelta(0, TextPiece("a")),
        BlockDelta(0, TextPiece("b")),
        BlockStop(0),
    ]
    assert middle(TextDelta(0, ""), ThinkDelta(0, "")) == []


def test_blocks_follow_each_other_and_thinking_is_signed_at_its_end() -> None:
    events: list[Event] = [
        ThinkDelta(0, "so"),
        TextDelta(0, "Hm."),
        ToolDelta(0, 0, "t1", "add", '{"a"'),
        ToolDelta(0, 0, arguments=":1}"),
        ToolDelta(0, 1, "t2", "ping"),
        ThinkDelta(0, "then"),
    ]
    assert middle(*events) == [
        BlockStart(0, ThinkingBlock("", "")),
        BlockDelta(0, ThinkingPiece("so")),
        BlockDelta(0, SignaturePiece(SIGNATURE)),
        BlockStop(0),
        BlockStart(1, TextBlock("")),
        BlockDelta(1, TextPiece("Hm.")),
        BlockStop(1),
        BlockStart(2, ToolUseBlock("t1", "add", {})),
        BlockDelta(2, InputPiece('{"a"')),
        BlockDelta(2, InputPiece(":1}")),
        BlockStop(2),
        BlockStart(3, ToolUseBlock("t2", "ping", {})),
        BlockStop(3),
        BlockStart(4, ThinkingBlock("", "")),
        BlockDelta(4, ThinkingPiece("then")),
        BlockDelta(4, SignaturePiece(SIGNATURE)),
        BlockStop(4),
    ]


def test_a_whole_answer_has_the_blocks_filled() -> None:
    events: list[Event] = [
        begin(),
        ThinkDelta(0, "so "),
        ThinkDelta(0, "what"),
        TextDelta(0, "a"),
        TextDelta(0, "b"),
        ToolDelta(0, 0, "t1", "add", '{"a":'),
        ToolDelta(0, 0, arguments="[1]}"),
        ToolDelta(0, 1, "t2", "ping"),
        finish(reason="tool_calls", output=9),
    ]
    reply = gathered(events)
    assert reply.content == [
        ThinkingBlock("so what", SIGNATURE),
        TextBlock("ab"),
        ToolUseBlock("t1", "add", {"a": [1]}),
        ToolUseBlock("t2", "ping", {}),
    ]
    assert (reply.stop_reason, reply.stop_sequence) == ("tool_use", None)
    assert reply.usage.output_tokens == 9


def test_thinking_that_is_not_to_be_shown_is_still_signed() -> None:
    sent = middle(ThinkDelta(0, "so"), ThinkDelta(0, "what"), omit_thinking=True)
    assert sent == [
        BlockStart(0, ThinkingBlock("", "")),
        BlockDelta(0, SignaturePiece(SIGNATURE)),
        BlockStop(0),
    ]


@pytest.mark.parametrize(
    ("fields", "reason", "stop"),
    [
        ({"reason": "stop"}, "end_turn", None),
        ({"reason": "stop", "stop": "END"}, "stop_sequence", "END"),
        ({"reason": "length", "output": 3}, "max_tokens", None),
        ({"reason": "length", "output": 2}, "model_context_window_exceeded", None),
        ({"reason": "tool_calls", "output": 2}, "tool_use", None),
    ],
)
def test_the_reason_of_the_end(fields: dict[str, Any], reason: str, stop: str | None) -> None:
    *_, delta, _ = sent_for([begin(), finish(**fields)])
    assert isinstance(delta, MessageDelta)
    assert (delta.delta.stop_reason, delta.delta.stop_sequence) == (reason, stop)


def test_no_output_asked_for_is_max_tokens() -> None:
    blocks = Blocks(Call(model="fake", max_tokens=0), "fake")
    delta, _ = blocks.take(finish(reason="length", output=0))
    assert isinstance(delta, MessageDelta)
    assert delta.delta.stop_reason == "max_tokens"


def test_a_failure_is_raised() -> None:
    with pytest.raises(TuringError, match="lost"):
        sent_for([begin(), Failure(0, TuringError(Code.ENGINE_LOST, "lost"))])


def test_a_piece_of_a_tool_call_without_its_beginning_is_an_error() -> None:
    with pytest.raises(ValueError, match="tool call 1"):
        sent_for([ToolDelta(0, 0, "t1", "f"), ToolDelta(0, 1, arguments="{}")])


@pytest.mark.parametrize("text", ["", '{"a":', "[1]", "null", '"Paris"'])
def test_input_is_always_an_object(text: str) -> None:
    assert tool_input(text) == {}


# Whatever the pieces, the blocks are the same.

JSON = st.dictionaries(st.text(max_size=4), st.text(max_size=6) | st.integers(-9, 9), max_size=3)
RUN = st.one_of(
    st.tuples(st.just("text"), st.text(min_size=1, max_size=12)),
    st.tuples(st.just("thinking"), st.text(min_size=1, max_size=12)),
    st.tuples(st.just("tool"), JSON),
)


def distinct(runs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Leave out a run of the kind before it: the two would be one block. Calls never join."""
    kept: list[tuple[str, Any]] = []
    for run in runs:
        if run[0] == "tool" or not kept or kept[-1][0] != run[0]:
            kept.append(run)
    return kept


def split(data: st.DataObject, text: str) -> list[str]:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=4)))
    ends = [0, *cuts, len(text)]
    return [text[a:b] for a, b in pairwise(ends)]


def events_of(data: st.DataObject, runs: list[tuple[str, Any]]) -> list[Event]:
    events: list[Event] = [begin()]
    calls = 0
    for kind, value in runs:
        if kind == "text":
            events += [TextDelta(0, piece) for piece in split(data, value)]
        elif kind == "thinking":
            events += [ThinkDelta(0, piece) for piece in split(data, value)]
        else:
            events.append(ToolDelta(0, calls, f"t{calls}", "f"))
            text = msgspec.json.encode(value).decode()
            events += [ToolDelta(0, calls, arguments=piece) for piece in split(data, text)]
            calls += 1
    return [*events, finish(reason="stop")]


def expected(runs: list[tuple[str, Any]]) -> list[Any]:
    blocks: list[Any] = []
    calls = 0
    for kind, value in runs:
        if kind == "text":
            blocks.append(TextBlock(value))
        elif kind == "thinking":
            blocks.append(ThinkingBlock(value, SIGNATURE))
        else:
            blocks.append(ToolUseBlock(f"t{calls}", "f", value))
            calls += 1
    return blocks


def check_grammar(sent: Sequence[Sent]) -> None:
    """Check that blocks are numbered in order and lie between the start and the end."""
    assert isinstance(sent[0], MessageStart)
    assert [type(one) for one in sent[-2:]] == [MessageDelta, MessageStop]
    started, running = 0, False
    for one in sent[1:-2]:
        match one:
            case BlockStart(index):
                assert (index, running) == (started, False)
                started, running = started + 1, True
            case BlockDelta(index):
                assert (index, running) == (started - 1, True)
            case BlockStop(index):
                assert (index, running) == (started - 1, True)
                running = False
            case _:
                pytest.fail(f"{one} inside of a message")
    assert not running


@given(st.lists(RUN, max_size=5).map(distinct), st.data())
def test_any_split_of_the_events_gives_the_same_blocks(
    runs: list[tuple[str, Any]], data: st.DataObject
) -> None:
    events = events_of(data, runs)
    check_grammar(sent_for(events))
    assert gathered(events).content == expected(runs)
