"""One answer through its grammar: valid whatever is drawn, ended in time, resumed exactly."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar.grammars import draw, legal, matcher, schema_of, schemas
from turing_engine.grammar.matcher import HURRIED
from turing_engine.plan.grammar import Verdict
from turing_engine.run.scripted import EOS
from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint, Sampling

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        "home": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
            "required": ["city", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
SHORTEST = len('{"name":"","tags":[]}')
REGEX = Constraint("regex", "[a-c]{2,5}")


def room(tokens: int, **more: Any) -> Sampling:
    return Sampling(max_tokens=tokens, **more)


@settings(max_examples=200, deadline=None)
@given(schemas(), st.integers(0, 2**16))
def test_every_answer_fits_its_schema(schema: dict[str, Any], seed: int) -> None:
    drawn = draw(schema_of(schema), room(4000), seed)
    assert drawn.ended
    jsonschema.Draft202012Validator(schema).validate(json.loads(drawn.text))


@settings(max_examples=100, deadline=None)
@given(schemas(), st.integers(1, 60), st.integers(0, 2**16))
def test_answers_end_within_any_budget(schema: dict[str, Any], tokens: int, seed: int) -> None:
    constraint = schema_of(schema)
    drawn = draw(constraint, room(tokens), seed)
    assert len(drawn.ids) <= tokens
    if drawn.ended:
        jsonschema.Draft202012Validator(schema).validate(json.loads(drawn.text))
    else:
        assert any("too small" in line for line in drawn.warnings)


@pytest.mark.parametrize("tokens", range(1, 61))
def test_the_budget_decides_between_a_whole_answer_and_a_cut_one(tokens: int) -> None:
    for seed in range(6):
        drawn = draw(schema_of(PERSON), room(tokens), seed)
        assert drawn.ended == (tokens >= SHORTEST)
        if drawn.ended:
            jsonschema.validate(json.loads(drawn.text), PERSON)


def test_a_hurried_answer_says_so_and_a_free_one_does_not() -> None:
    assert HURRIED in draw(schema_of(PERSON), room(SHORTEST), 1).warnings
    hasty = draw(schema_of({"type": "boolean"}), room(100), 1)
    assert hasty.ended
    assert hasty.warnings == ()


def test_a_token_that_opens_more_than_can_be_closed_is_drawn_again() -> None:
    left = len(',"home":{"city":"","zip":1}}')
    answer = list(b'{"name":"","tags":[]')
    follower = matcher(schema_of(PERSON), room(len(answer) + left - 1), answer)
    assert ord(",") in legal(follower, left - 1)
    assert follower.accept(ord(","), left - 2) is Verdict.RETRY
    assert legal(follower, left - 1) == [ord("}")]
    assert follower.accept(ord("}"), left - 2) is Verdict.DONE
    fitting = matcher(schema_of(PERSON), room(len(answer) + left), answer)
    assert fitting.accept(ord(","), left - 1) is Verdict.GO


def test_a_budget_far_larger_than_the_window_is_kept_too() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}
    for seed in range(10):
        drawn = draw(schema_of({**schema, "required": ["a"]}), room(700), seed)
        assert drawn.ended
        jsonschema.validate(json.loads(drawn.text), schema)


def test_without_strict_the_budget_cuts() -> None:
    drawn = draw(schema_of({"type": "string", "minLength": 50}, strict=False), room(20), 1)
    assert not drawn.ended
    assert len(drawn.ids) == 20


@settings(max_examples=60, deadline=None)
@given(schemas(), st.integers(20, 120), st.integers(0, 2**16), st.data())
def test_a_resumed_answer_goes_on_as_it_would_have(
    schema: dict[str, Any], tokens: int, seed: int, data: st.DataObject
) -> None:
    whole = draw(schema_of(schema), room(tokens), seed)
    if len(whole.ids) < 2:
        return
    cut = data.draw(st.integers(1, len(whole.ids) - 1))
    assert draw(schema_of(schema), room(tokens), seed, whole.ids[:cut]).ids == whole.ids


def test_a_prior_that_does_not_match_is_refused() -> None:
    with pytest.raises(TuringError, match="prior does not match") as caught:
        matcher(schema_of(PERSON), room(40), b'{"nome')
    assert (caught.value.code, caught.value.param) == (Code.INVALID, "prior")


def test_the_end_is_legal_only_where_the_grammar_accepts() -> None:
    follower = matcher(REGEX, room(9))
    assert legal(follower, 9) == [97, 98, 99]
    assert follower.accept(97, 8) is Verdict.GO
    assert EOS not in legal(follower, 8)
    assert follower.accept(98, 7) is Verdict.GO
    assert follower.accepting
    assert legal(follower, 7) == [97, 98, 99, EOS]
    assert follower.accept(EOS, 6) is Verdict.END


def test_a_complete_answer_ends_by_itself() -> None:
    follower = matcher(Constraint("choice", '["yes","yesterday"]'), room(20))
    for byte in b"yesterda":
        assert follower.accept(byte, 9) is Verdict.GO
    assert follower.accept(ord("y"), 9) is Verdict.DONE


def test_stop_ids_wait_for_the_grammar() -> None:
    follower = matcher(REGEX, room(9, stop_ids=(97, 120)))
    assert legal(follower, 9) == [98, 99]
    for byte in b"bc":
        follower.accept(byte, 5)
    assert legal(follower, 5) == [97, 98, 99, 120, EOS]
    assert follower.accept(120, 4) is Verdict.END
    assert follower.accept(97, 4) is Verdict.END


def test_a_stop_id_without_alternative_is_text() -> None:
    follower = matcher(schema_of({"const": 1}), room(9, stop_ids=(49,)))
    assert legal(follower, 9) == [49]
    assert follower.accept(49, 8) is Verdict.DONE


def test_ignored_ends_and_too_few_tokens_keep_the_answer_open() -> None:
    follower = matcher(REGEX, room(9, ignore_eos=True))
    for byte in b"aaaa":
        follower.accept(byte, 5)
    assert legal(follower, 5) == [97, 98, 99]
    assert follower.accept(97, 4) is Verdict.DONE
    patient = matcher(REGEX, room(9, min_tokens=4, stop_ids=(120,)))
    for byte in b"aaa":
        patient.accept(byte, 5)
    assert legal(patient, 5) == [97, 98, 99]
    patient.accept(97, 5)
    assert legal(patient, 5) == [97, 98, 99, 120, EOS]


def test_an_illegal_token_breaks_this_grammar_only() -> None:
    follower, other = matcher(REGEX, room(9)), matcher(REGEX, room(9))
    assert follower.accept(ord("z"), 8) is Verdict.BROKEN
    assert "doesn't satisfy the grammar" in follower.error
    assert len(legal(follower, 8)) > 200
    assert follower.accept(97, 7) is Verdict.BROKEN
    assert other.accept(97, 8) is Verdict.GO


def test_forced_tokens_are_those_without_alternative() -> None:
    follower = matcher(schema_of(PERSON), room(99))
    assert bytes(follower.forced()) == b'{"name":"'
    assert matcher(REGEX, room(9)).forced() == []


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        (Constraint("grammar", 'start: "x" /[0-9]{1,3}/ ("y" | "z")+'), "x"),
        (Constraint("grammar", 'root ::= "x" [0-9]+ "y"'), "x"),
        (Constraint("choice", json.dumps(['a"b', "ü\n"])), ""),
        (Constraint("json_object", ""), "{"),
    ],
)
def test_every_kind_constrains(constraint: Constraint, pattern: str) -> None:
    for seed in range(20):
        text = draw(constraint, room(40), seed).ids
        assert bytes(text).startswith(pattern.encode())
