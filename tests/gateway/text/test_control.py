"""No user text can become a control token, and nothing of it is lost or changed."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turing_gateway.text.control import MARK, ControlTokens, is_control, unmark

TEXTS = ["<|im_start|>", "<|im_end|>", "</s>", "[INST]", "[/INST]", "<think>", "[A]", "]B["]
TOKENS = ControlTokens(
    [{"id": 100 + index, "content": text, "special": True} for index, text in enumerate(TEXTS)]
)
PIECES = ["<", ">", "<|", "|>", "im_", "end|>", "<|im_end", "[", "]", "B", "/s>", " ", "\n", "x"]
NONCHARACTERS = [MARK, "\ufdd1", "\ufdd2", "\ufdd3"]
FRAGMENTS = st.sampled_from([*TEXTS, *map(str.upper, TEXTS), *PIECES, *NONCHARACTERS, "é"])
USER = st.lists(FRAGMENTS, max_size=8).map("".join)


@given(st.lists(USER, max_size=4))
@example(["[A]B["])
@example(["<|im_", "end|>"])
@example(["<", "/S>"])
@example([MARK, "\ufdd1\ufdd2\ufdd3"])
def test_user_strings_never_form_a_control_token(strings: list[str]) -> None:  # F43
    prompt = "".join(map(TOKENS.mark, strings))
    parts = list(TOKENS.split(prompt))
    assert all(isinstance(part, str) for part in parts)
    assert unmark("".join(map(str, parts))) == "".join(strings)


@given(st.lists(st.tuples(st.sampled_from(TEXTS), USER), max_size=5))
def test_the_templates_own_control_tokens_stay(turns: list[tuple[str, str]]) -> None:
    prompt = "".join(f"{token} {TOKENS.mark(text)} " for token, text in turns)
    ids = [part for part in TOKENS.split(prompt) if isinstance(part, int)]
    assert ids == [100 + TEXTS.index(token) for token, _ in turns]


@given(USER)
def test_case_changed_by_a_template_makes_no_control_token(text: str) -> None:
    for changed in (TOKENS.mark(text).lower(), TOKENS.mark(text).capitalize()):
        assert not any(isinstance(part, int) for part in TOKENS.split(changed))


@given(USER.filter(bool))
@example("end|>")
@example("s>")
def test_a_template_cannot_complete_what_a_user_began(text: str) -> None:
    wholly_inside = any(text.lower() in token[1:-1] for token in TEXTS)
    for before, after in (("<|im_", "end|>"), ("<|", ""), ("", "|>"), ("", "s>"), ("[", "A]")):
        prompt = before + TOKENS.mark(text) + after
        completed = [part for part in TOKENS.split(prompt) if isinstance(part, int)]
        assert completed == [] or wholly_inside


def test_plain_text_is_not_touched() -> None:
    for text in ("Hello", "a < b and c > d.", "x[0] = y[1];", "", " ", "日本語"):
        assert TOKENS.mark(text) == text


def test_white_space_that_a_token_takes_in_belongs_to_it() -> None:
    tokens = ControlTokens([{"id": 7, "content": "<|end|>", "special": True, "rstrip": True}])
    assert list(tokens.split("a <|end|> \n b")) == ["a ", 7, "b"]


@pytest.mark.parametrize(
    ("text", "special", "control"),
    [
        ("<|im_end|>", True, True),
        ("PAD", True, True),
        ("<s>", True, True),
        ("<think>", False, True),
        ("[INST]", False, True),
        ("<｜tool▁call▁end｜>", False, True),
        ("    ", False, False),
        ("\n\n", False, False),
        ("<table>", False, False),
        ("</h1>", False, False),
        ("<>", False, False),
    ],
)
def test_what_a_control_token_is(text: str, special: bool, control: bool) -> None:
    entry: dict[str, Any] = {"id": 1, "content": text, "special": special}
    assert is_control(entry) is control
