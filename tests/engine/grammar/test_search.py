"""The search for a way to the end: legal, and short where that can be told."""

import json
from typing import Any

import pytest
from hypothesis import given, settings

from engine.grammar.grammars import compiler, schema_of, schemas
from turing_engine.grammar.search import shortest_end, shortest_way
from turing_engine.grammar.vocabulary import Vocabulary
from turing_engine.run.scripted import EOS, VOCAB_SIZE, scripted_files
from turing_protocol.sampling import Constraint

VOCABULARY = Vocabulary(scripted_files()["tokenizer.json"].decode(), VOCAB_SIZE, (EOS,))


def shortest(schema: dict[str, Any]) -> str | None:
    found = compiler().compile(schema_of(schema)).shortest
    return None if found is None else bytes(found).decode()


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ({"type": "object"}, "{}"),
        ({"enum": ["extraordinary", "no"]}, '"no"'),
        ({"type": "string"}, '""'),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, "[true,true]"),
        ({"anyOf": [{"type": "array", "minItems": 3}, {"type": "null"}]}, "null"),
        ({"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, '"AAA-1111"'),
        ({"type": "string", "format": "date"}, '"1111-11-11"'),
    ],
)
def test_short_answers_are_found(schema: dict[str, Any], answer: str) -> None:
    assert shortest(schema) == answer


@pytest.mark.parametrize(
    "format", ["date-time", "time", "uuid", "email", "ipv4", "uri", "hostname"]
)
def test_formats_have_an_answer(format: str) -> None:
    assert shortest({"type": "string", "format": format}) is not None


def test_a_recursive_schema_stops_where_it_can() -> None:
    node = {
        "type": "object",
        "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["kids"],
        "additionalProperties": False,
    }
    assert shortest(node) == '{"kids":[]}'


@settings(max_examples=100, deadline=None)
@given(schemas())
def test_an_answer_is_found_for_any_bounded_schema(schema: dict[str, Any]) -> None:
    answer = shortest(schema)
    assert answer is not None
    json.loads(answer)


def test_special_tokens_are_taken_where_they_lead_on() -> None:
    grammar = Constraint("grammar", 'start: "a" rest <[256]> "b"\nrest: /(?s:.*)/', strict=True)
    assert compiler().compile(grammar).shortest == [97, 256, 98]


def test_the_end_of_an_old_way_is_used_where_it_still_holds() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    parser = compiler().compile(schema_of(schema)).parser.deep_copy()
    parser.consume_tokens(list(b'{"a":"xyz'))
    assert shortest_end(parser, VOCABULARY, list(b'{"a":""}')) == list(b'"}')
    assert shortest_end(parser, VOCABULARY, list(b"{")) is None


def test_the_search_gives_up_at_its_limit() -> None:
    parser = compiler().compile(schema_of({"type": "string", "minLength": 50})).parser
    assert shortest_way(parser, VOCABULARY, limit=20) is None
    assert shortest_way(parser, VOCABULARY, limit=4000) is not None
