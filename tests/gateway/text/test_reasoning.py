"""Reasoning is told from the answer, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.tool_calls import Shown, cuts, shown
from turing_gateway.call import Call, Message, Part
from turing_gateway.text.pieces import Piece
from turing_gateway.text.reasoning import (
    REASONING,
    Tags,
    ThinkSplitter,
    budget_of,
    find_tags,
    split_history,
)

TAGS = Tags("<think>", "</think>")


def split(parts: list[str], *, inside: bool = False) -> Shown:
    splitter = ThinkSplitter(TAGS, inside=inside)
    pieces: list[Piece] = []
    for part in parts:
        pieces += splitter.feed(part)
    pieces += splitter.close()
    assert sum(piece.size for piece in pieces) == sum(map(len, parts))
    return shown(pieces)


def reads(text: str, *, inside: bool = False) -> Shown:
    whole = split([text], inside=inside)
    for parts in cuts(text):
        assert split(parts, inside=inside) == whole
    return whole


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("<think>why</think>so", "why", "so"),
        ("\n<think>\nwhy\n</think>\n\nso\n", "why\n", "so\n"),
        ("<think></think>\n\nso", "", "so"),
        ("<think>\n\n</think>\n\nso", "", "so"),
        ("<think>why", "why", ""),  # F44
        ("<think>why</thi", "why</thi", ""),
        ("<think>a </think b</think>so", "a </think b", "so"),
        ("<think>why</think>", "why", ""),
        ("so", "", "so"),
        ("  so", "", "  so"),
        ("so <think>not this</think>", "", "so <think>not this</think>"),
        ("<thin", "", "<thin"),
        ("<thing>", "", "<thing>"),
        ("</think>so", "", "</think>so"),
        ("<think>a</think>b</think><think>", "a", "b</think><think>"),
        (" " * 100 + "<think>x</think>", "", " " * 100 + "<think>x</think>"),
        ("", "", ""),
    ],
)
def test_reasoning_at_the_beginning_of_an_answer(text: str, thought: str, answer: str) -> None:
    expected = [("THINK", thought)] * bool(thought) + [("TEXT", answer)] * bool(answer)
    assert reads(text) == expected


def test_reasoning_that_the_prompt_has_opened() -> None:
    assert reads("\nwhy</think>so", inside=True) == [("THINK", "why"), ("TEXT", "so")]
    assert reads("why", inside=True) == [("THINK", "why")]


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "think>", " ", "a"])), st.booleans()
)
def test_how_the_text_is_cut_changes_nothing(parts: list[str], inside: bool) -> None:
    assert split(parts, inside=inside) == split(["".join(parts)], inside=inside)


def test_the_tags_of_a_model_are_in_its_template_or_among_its_tokens() -> None:
    assert find_tags("{{ content.split('</think>')[-1] }}", []) == TAGS
    assert find_tags("", ["<think>", "</think>"]) == TAGS
    assert find_tags("", ["[THINK]", "[/THINK]", "[INST]"]) == Tags("[THINK]", "[/THINK]")
    assert find_tags("", ["<think>"]) is None
    assert find_tags("{{ messages }}", ["<|im_end|>"]) is None
    assert all(REASONING.make(name).start != REASONING.make(name).end for name in REASONING.names())


@pytest.mark.parametrize(
    ("effort", "tokens", "budget"),
    [
        ("", None, None),
        ("none", None, 0),
        ("none", 50, 0),
        ("low", None, 1024),
        ("medium", None, 4096),
        ("high", None, 16384),
        ("max", None, None),
        ("low", 50, 50),
        ("", 50, 50),
    ],
)
def test_effort_stands_for_a_budget(effort: str, tokens: int | None, budget: int | None) -> None:
    assert budget_of(Call(model="m", effort=effort, thinking_tokens=tokens)) == budget


def test_reasoning_in_the_content_of_the_history_is_moved() -> None:
    parts = (Part("text", "<think>a</think>b"),)
    history = [
        Message(role="user", content="<think>a</think>b"),
        Message(role="assistant", content="\n<think>\nwhy\n</think>\n\nso"),
        Message(role="assistant", content="<think>a</think>b", reasoning="kept"),
        Message(role="assistant", content="say <think>a</think>"),
        Message(role="assistant", content="<think>cut"),
        Message(role="assistant", content=parts),
    ]
    split_up = Message(role="assistant", content="so", reasoning="why")
    assert split_history(history, TAGS) == [history[0], split_up, *history[2:]]
