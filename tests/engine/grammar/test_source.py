"""What clients wrote, refused with a place and a reason or compiled."""

import json
from typing import Any

import pytest

from engine.grammar.grammars import compiler, schema_of
from turing_engine.grammar.source import MAX_SOURCE, MAX_WORDS, grammar_of, tidy
from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint

NESTED: dict[str, Any] = {"type": "string"}
for _ in range(2000):
    NESTED = {"type": "array", "items": NESTED}

BROKEN: dict[str, tuple[Any, tuple[str, ...]]] = {
    "type": ({"type": "strng"}, ("#/type", "strng")),
    "pattern": ({"properties": {"a/b": {"pattern": "(("}}}, ("#/properties/a~1b/pattern", "((")),
    "not": ({"items": {"not": {}}}, ("#/items/not", "not")),
    "unique": ({"type": "array", "uniqueItems": True}, ("#/uniqueItems",)),
    "format": ({"type": "string", "format": "colour"}, ("#/format", "colour")),
    "ref": ({"$ref": "#/$defs/x"}, ("/$defs/x",)),
    "remote ref": ({"$ref": "http://x/y"}, ("#/$ref", "http://x/y")),
    "count": ({"type": "array", "minItems": "x"}, ("#/minItems",)),
    "bounds": ({"type": "integer", "minimum": 5, "maximum": 3}, ("minimum (5)",)),
    "one of": ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}, ("oneOf",)),
    "look-ahead": ({"type": "string", "pattern": "(?=a)b"}, ("#/pattern", "look-around")),
    "if": ({"if": {}, "then": {}}, ("#/if",)),
}


def refused(constraint: Constraint) -> TuringError:
    with pytest.raises(TuringError) as caught:
        compiler().compile(constraint)
    assert caught.value.code is Code.CONSTRAINT_INVALID
    assert len(caught.value.message) < MAX_WORDS + 200
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_schema_is_refused_by_the_place_of_its_fault(name: str) -> None:
    schema, words = BROKEN[name]
    message = refused(schema_of(schema)).message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("json_schema", "{"),
        Constraint("json_schema", "[]"),
        Constraint("json_schema", "true"),
        Constraint("json_schema", json.dumps("x")),
        Constraint("json_schema", '{"a":' * 4000 + "1" + "}" * 4000),
        Constraint("regex", "(("),
        Constraint("regex", "a" * (MAX_SOURCE + 1)),
        Constraint("choice", "[]"),
        Constraint("choice", '["a",""]'),
        Constraint("choice", '["a",1]'),
        Constraint("grammar", "start: nowhere"),
        Constraint("grammar", "root ::= ("),
        Constraint("grammar", "root ::= nowhere"),
        Constraint("grammar", "root ::= " + "(" * 5000),
        Constraint("grammar", ""),
    ],
    ids=lambda constraint: f"{constraint.kind} {constraint.text[:16]}",
)
def test_what_cannot_be_used_is_refused(constraint: Constraint) -> None:
    refused(constraint)


def test_a_schema_nested_too_deeply_is_refused() -> None:
    text = '{"type":"array","items":' * 900 + '{"type":"string"}' + "}" * 900
    refused(Constraint("json_schema", text, strict=True))


def test_unknown_keywords_are_ignored_and_named_unless_strict() -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"enum": [1]}, "maxItems": 2}
    (warning,) = compiler().compile(schema_of(schema, strict=False)).warnings
    assert "uniqueItems" in warning


def test_keys_keep_the_order_of_the_schema() -> None:
    properties = {name: {"const": at} for at, name in enumerate("zayb")}
    schema = {"type": "object", "properties": properties, "required": list("abyz")}
    compiled = compiler().compile(schema_of({**schema, "additionalProperties": False}))
    assert compiled.shortest is not None
    assert bytes(compiled.shortest) == b'{"z":0,"a":1,"y":2,"b":3}'


def test_complaints_become_one_line() -> None:
    assert tidy("regex:\n    ((\n     ^\nerror: open\n<non-verbose/>") == "regex: (( error: open"


def test_gbnf_is_told_from_lark_by_its_arrow() -> None:
    assert grammar_of(Constraint("grammar", 'root ::= "a"')) != grammar_of(
        Constraint("grammar", 'start: "a"')
    )
