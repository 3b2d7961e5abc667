"""One answer, however its events are cut: streamed and whole say the same."""

import asyncio
import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fakes.generator import begin, finish
from turing_gateway.call import Event, TextDelta, ThinkDelta, ToolDelta
from turing_gateway.fronts.base import Events
from turing_gateway.fronts.ollama_reply import Shape, Stream, moment, whole

CALLS = st.lists(st.dictionaries(st.text(max_size=3), st.integers(), max_size=3), max_size=3)


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """Return pieces that join to ``text``, some of them perhaps empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def answers(draw: st.DrawFn) -> tuple[str, str, list[dict[str, int]], list[Event]]:
    """Return thoughts, text and calls of an answer, and one way that its events may come."""
    thoughts, text, calls = draw(st.text(max_size=9)), draw(st.text(max_size=9)), draw(CALLS)
    events: list[Event] = [ThinkDelta(0, piece, (1,)) for piece in draw(cut(thoughts))]
    events += [TextDelta(0, piece, (2,)) for piece in draw(cut(text))]
    for index, arguments in enumerate(calls):
        first, *rest = draw(cut(json.dumps(arguments)))
        events.append(ToolDelta(0, index, f"c{index}", "f", first))
        events += [ToolDelta(0, index, arguments=piece) for piece in rest]
    return thoughts, text, calls, [*events, finish(output=len(events))]


async def replay(events: list[Event]) -> Events:
    for event in events:
        yield event


@given(answers(), st.booleans())
def test_any_cut_gives_the_same_answer(
    answer: tuple[str, str, list[dict[str, int]], list[Event]], chat: bool
) -> None:
    thoughts, text, calls, events = answer
    shape = Shape(model="m", chat=chat, begun=0, prompt=(9,))
    stream = Stream(shape)
    raw = b"".join(map(stream.write, [begin(), *events]))
    lines = [json.loads(line) for line in raw.decode().removesuffix("\n").split("\n")]
    plain = asyncio.run(whole(shape, begin(), replay(events)))
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    pieces = [line["message"] if chat else line for line in lines]
    piece = plain["message"] if chat else plain
    key = "content" if chat else "response"
    assert "".join(p[key] for p in pieces) == piece[key] == text
    assert "".join(p.get("thinking", "") for p in pieces) == piece.get("thinking", "") == thoughts
    sent = [call for p in pieces for call in p.get("tool_calls", [])]
    assert sent == piece.get("tool_calls", [])
    assert [call["function"]["arguments"] for call in sent] == calls
    assert [call["function"]["index"] for call in sent] == list(range(len(calls)))
    for field in ("done_reason", "eval_count", "prompt_eval_count", "context"):
        assert lines[-1][field] == plain[field]


def test_a_cut_off_call_is_left_out_and_said_so() -> None:
    events: list[Event] = [
        ToolDelta(0, 0, "c0", "f", '{"a": 1}'),
        ToolDelta(0, 1, "c1", "g", '{"a": '),
        finish(reason="length"),
    ]
    reply = asyncio.run(whole(Shape(model="m", chat=True, begun=0), begin(), replay(events)))
    assert [call["function"]["name"] for call in reply["message"]["tool_calls"]] == ["f"]
    assert reply["done_reason"] == "length"
    assert reply["turing"] == {"warnings": ["tool_calls: 1 cut off and left out"]}


@given(st.floats(0, 4e9))
def test_times_always_have_a_fraction(seconds: float) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", moment(seconds))


def test_a_moment_is_utc() -> None:
    assert moment(1731628800.5) == "2024-11-15T00:00:00.500000Z"


def test_durations_are_whole_and_never_nothing() -> None:
    ending: dict[str, Any] = Shape(model="m", chat=True, begun=0).ending(finish(), (), 0)
    assert ending["load_duration"] == 7_000_000
    for name in ("total_duration", "prompt_eval_duration", "eval_duration"):
        assert type(ending[name]) is int
        assert ending[name] > 0
