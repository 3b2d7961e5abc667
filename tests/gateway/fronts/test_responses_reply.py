"""Events to output items: however they are cut, the items are the same."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.generator import begin, finish
from turing_gateway.call import Call, Event, TextDelta, ThinkDelta, ToolDelta
from turing_gateway.fronts.responses_events import Sent
from turing_gateway.fronts.responses_reply import Items, opening, sse
from turing_gateway.fronts.responses_types import ResponsesBody

Json = dict[str, Any]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
PIECES = st.lists(TEXT, min_size=1, max_size=4)
TURN = st.tuples(st.sampled_from(["text", "thought", "call"]), PIECES)
REASON = st.sampled_from(["stop", "length"])


def make_items() -> Items:
    return Items(opening(Call(model="fake", request_id="r"), ResponsesBody(input="hi")))


def events_of(turns: list[tuple[str, list[str]]], *, whole: bool) -> list[Event]:
    """Return the events of ``turns``: each piece by itself, or a turn's pieces joined."""
    events: list[Event] = [begin()]
    for number, (kind, given_pieces) in enumerate(turns):
        pieces = ["".join(given_pieces)] if whole else given_pieces
        if kind == "text":
            events += [TextDelta(0, piece) for piece in pieces]
        elif kind == "thought":
            events += [ThinkDelta(0, piece) for piece in pieces]
        else:
            events.append(ToolDelta(0, number, f"call_{number}", "f", pieces[0]))
            events += [ToolDelta(0, number, arguments=piece) for piece in pieces[1:]]
    return events


def played(events: list[Event]) -> tuple[list[Json], Json]:
    """Return the events that a client sees, and the response."""
    items = make_items()
    # Encoded at once: what was sent must not change with what comes later.
    sent = [msgspec.json.decode(msgspec.json.encode(s)) for e in events for s in items.take(e)]
    return sent, msgspec.to_builtins(items.response)


def joined(turns: list[tuple[str, list[str]]]) -> list[tuple[str, str]]:
    """Return (kind, text) per item; neighbours of one kind are one, but calls never are."""
    items: list[tuple[str, str]] = []
    for kind, pieces in turns:
        text = "".join(pieces)
        if items and items[-1][0] == kind and kind != "call":
            text = items.pop()[1] + text
        items.append((kind, text))
    return items


def content(item: Json) -> tuple[str, str]:
    if item["type"] == "function_call":
        return "call", item["arguments"]
    return ("text" if item["type"] == "message" else "thought"), item["content"][0]["text"]


@given(st.lists(TURN, max_size=5), REASON)
def test_any_split_of_events_gives_the_same_items(
    turns: list[tuple[str, list[str]]], reason: str
) -> None:
    end = finish(reason=reason)
    sent, response = played([*events_of(turns, whole=False), end])
    _, whole = played([*events_of(turns, whole=True), end])
    stamps = {"created_at": 0, "completed_at": 0}
    assert response | stamps == whole | stamps
    assert [content(item) for item in response["output"]] == joined(turns)
    assert sent[-1]["response"] == response


@given(st.lists(TURN, max_size=5), REASON)
def test_events_tell_of_items_one_after_the_other(
    turns: list[tuple[str, list[str]]], reason: str
) -> None:
    sent, response = played([*events_of(turns, whole=False), finish(reason=reason)])
    assert [one["sequence_number"] for one in sent] == list(range(len(sent)))
    assert [one["type"] for one in sent[:2]] == ["response.created", "response.in_progress"]
    assert all(one["response"]["output"] == [] for one in sent[:2])
    inner = sent[2:-1]
    assert [one["output_index"] for one in inner] == sorted(one["output_index"] for one in inner)
    for index, item in enumerate(response["output"]):
        of_item = [one for one in inner if one["output_index"] == index]
        check_item(of_item, item)


def check_item(sent: list[Json], item: Json) -> None:
    added, *middle, done = sent
    assert added["type"] == "response.output_item.added"
    assert added["item"]["status"] == "in_progress"
    assert {**added["item"], "status": 0}.keys() == item.keys()
    assert done["type"] == "response.output_item.done"
    assert done["item"] == item
    assert all(one["item_id"] == item["id"] for one in middle)
    kind, text = content(item)
    assert "".join(one.get("delta", "") for one in middle) == text
    wanted = {
        "text": ["content_part.added", "output_text.delta", "output_text.done"],
        "thought": ["content_part.added", "reasoning_text.delta", "reasoning_text.done"],
        "call": ["function_call_arguments.delta", "function_call_arguments.done"],
    }[kind]
    wanted += [] if kind == "call" else ["content_part.done"]
    kinds = [one["type"].removeprefix("response.") for one in middle]
    assert list(dict.fromkeys(kinds)) == wanted
    whole = next(one for one in middle if one["type"].endswith(".done"))
    assert whole["arguments" if kind == "call" else "text"] == text


@given(st.lists(TURN, min_size=1, max_size=3), REASON)
def test_only_what_is_last_is_cut_off(turns: list[tuple[str, list[str]]], reason: str) -> None:
    _, response = played([*events_of(turns, whole=False), finish(reason=reason)])
    *before, last = [item["status"] for item in response["output"]]
    status = "incomplete" if reason == "length" else "completed"
    assert (set(before), last, response["status"]) == (
        {"completed"} if before else set(),
        status,
        status,
    )
    details = response["incomplete_details"]
    assert details == ({"reason": "max_output_tokens"} if reason == "length" else None)
    assert (response["completed_at"] is None) == (reason == "length")


def test_each_event_has_its_name_beside_its_data() -> None:
    created, running = make_items().take(begin())
    lines = sse([created, running]).decode().split("\n")
    assert lines[0] == "event: response.created"
    assert lines[1].startswith('data: {"type":"response.created","sequence_number":0,')
    assert lines[2:4] == ["", "event: response.in_progress"]


def test_a_piece_of_a_call_without_its_beginning_is_a_defect() -> None:
    with pytest.raises(ValueError, match="tool call 0"):
        make_items().take(ToolDelta(0, 0, arguments="{}"))


def test_every_event_has_a_name_of_its_own() -> None:
    def leaves(kind: type[Sent]) -> list[type[Sent]]:
        below = kind.__subclasses__()
        return [kind] if not below else [leaf for sub in below for leaf in leaves(sub)]

    names = [kind.__struct_config__.tag for kind in leaves(Sent)]
    assert len(names) == len(set(names)) == 15
    assert all(str(name).startswith("response.") for name in names)
