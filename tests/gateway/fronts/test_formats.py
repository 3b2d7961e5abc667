"""Forms of an answer: from every field to one constraint, with warnings in every reply."""

import json
from typing import Any

import pytest

from fakes.generator import Gateway, begin, finish
from turing_gateway.call import TextDelta
from turing_gateway.fronts.formats import MAX_FORMAT, json_schema
from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint

SCHEMA = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}}}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))


def response_format(strict: bool | None = None, **schema: Any) -> dict[str, Any]:
    wanted = {"name": "n", "schema": SCHEMA | schema, "strict": strict}
    return {"response_format": {"type": "json_schema", "json_schema": wanted}}


@pytest.mark.parametrize(
    ("fields", "constraint", "field"),
    [
        ({}, None, "response_format"),
        ({"response_format": {"type": "text"}}, None, "response_format"),
        (
            {"response_format": {"type": "json_object"}},
            Constraint("json_object"),
            "response_format",
        ),
        (response_format(), Constraint("json_schema", TEXT), "response_format"),
        (response_format(True), Constraint("json_schema", TEXT, True), "response_format"),
        (
            {"structured_outputs": {"json": SCHEMA}},
            Constraint("json_schema", TEXT, True),
            "structured_outputs",
        ),
        (
            {"structured_outputs": {"regex": "a+"}},
            Constraint("regex", "a+", True),
            "structured_outputs",
        ),
        (
            {"structured_outputs": {"choice": ["a", "b"]}},
            Constraint("choice", '["a","b"]', True),
            "structured_outputs",
        ),
        (
            {"structured_outputs": {"grammar": 'start: "a"'}},
            Constraint("grammar", 'start: "a"', True),
            "structured_outputs",
        ),
        ({"grammar": 'root ::= "a"'}, Constraint("grammar", 'root ::= "a"', True), "grammar"),
    ],
)
def test_every_field_becomes_a_constraint(
    fields: dict[str, Any], constraint: Constraint | None, field: str
) -> None:
    gateway = Gateway()
    assert gateway.chat(**fields).status_code == 200
    assert (gateway.call().format, gateway.call().format_field) == (constraint, field)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": {}}, "guided_json"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"grammar": "a", **response_format()}, "grammar"),
        ({"structured_outputs": {"regex": "a"}, "grammar": "a"}, "grammar"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (response_format(description="x" * MAX_FORMAT), "response_format"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    reply = Gateway().chat(**fields)
    assert reply.status_code == 400
    assert param in json.dumps(reply.json()["error"])


def test_a_huge_schema_is_refused_by_its_field() -> None:
    with pytest.raises(TuringError) as caught:
        json_schema({"enum": ["x" * MAX_FORMAT]}, "format", strict=False)
    assert (caught.value.code, caught.value.param) == (Code.CONSTRAINT_INVALID, "format")


def warned(call: Any) -> list[Any]:
    return [
        begin(warnings=("one",)),
        TextDelta(0, "{}"),
        finish(warnings=("one", "two")),
    ]


def test_warnings_are_in_the_answer_and_in_the_last_chunk() -> None:
    assert Gateway(warned).chat().json()["turing"] == {"warnings": ["one", "two"]}
    assert Gateway(warned).complete().json()["turing"] == {"warnings": ["one", "two"]}
    for reply in (Gateway(warned).chat(stream=True), Gateway(warned).complete(stream=True)):
        chunks = [json.loads(line[6:]) for line in reply.text.split("\n\n") if "{" in line]
        told = [chunk["turing"] for chunk in chunks if "turing" in chunk]
        assert told == [{"warnings": ["one", "two"]}]
        assert chunks[-1]["choices"][0]["finish_reason"]


ASKED: dict[str, dict[str, Any]] = {
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]},
    "/v1/responses": {"input": "Hello"},
}


@pytest.mark.parametrize("path", ASKED)
def test_warnings_come_once_in_answers_made_of_events(path: str) -> None:
    asked = {"model": "fake", **ASKED[path]}
    assert Gateway(warned).post(path, asked).json()["turing"] == {"warnings": ["one", "two"]}
    stream = Gateway(warned).post(path, asked | {"stream": True}).text
    assert stream.count('"turing":{"warnings":["one","two"]}') == 1
    assert stream.count('"turing"') == 1


def test_without_warnings_nothing_is_said() -> None:
    assert "turing" not in Gateway().chat().json()
    assert '"turing"' not in Gateway().chat(stream=True).text
    for path, asked in ASKED.items():
        assert '"turing"' not in Gateway().post(path, asked | {"model": "fake"}).text


def test_strict_reaches_the_call() -> None:
    gateway = Gateway()
    gateway.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
    assert not gateway.call().strict
    body = {"messages": [{"role": "user", "content": "x"}]}
    gateway.post("/v1/chat/completions", body, **{"X-Turing-Strict": "1"})
    assert gateway.call().strict
