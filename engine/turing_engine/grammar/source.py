"""From what a client wrote to a grammar of llguidance, and its complaints to sentences.

JSON is written without white space: where a grammar allows it, small models fill their answer with
it. Keywords that llguidance does not know are refused for ``strict`` and ignored otherwise.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_SOURCE: Final = 256 << 10
"""Bytes of a constraint's text."""
MAX_WORDS: Final = 400
"""Characters of an error message."""

_STRICT: Final["JsonCompileOptions"] = {"whitespace_flexible": False}
_LOOSE: Final["JsonCompileOptions"] = {
    "whitespace_flexible": False,
    "lenient": True,
    "coerce_one_of": True,
}
_NAMED: Final = ("pattern", "type", "format", "$ref")
"""Keywords whose value is quoted by the complaint about it."""


def grammar_of(constraint: Constraint) -> str:
    """Return the llguidance grammar of ``constraint``.

    What cannot be read is ``Code.CONSTRAINT_INVALID``; what can be read may still fail to compile.
    """
    if len(constraint.text.encode(errors="replace")) > MAX_SOURCE:
        raise invalid(f"the constraint is longer than {MAX_SOURCE} bytes")
    try:
        return _GRAMMARS[constraint.kind](constraint)
    except RecursionError:
        raise invalid("the constraint is nested too deeply") from None


def complaint(constraint: Constraint, error: str) -> TuringError:
    """Return llguidance's ``error`` about ``constraint`` as a sentence that says where it is."""
    place = ""
    if constraint.kind == "json_schema":
        found = _place(msgspec.json.decode(constraint.text), error)
        place = f" at {found}" if found else ""
    return invalid(f"the {_WORDS[constraint.kind]} is not usable{place}: {tidy(error)}")


def ignored(warning: str) -> str:
    """Return llguidance's ``warning`` about a constraint as a sentence."""
    return f"the schema is not kept to in full: {tidy(warning)}"


def tidy(error: str) -> str:
    """Return a complaint of several lines, with markers below the text, as one short line."""
    lines = (line.strip() for line in error.splitlines())
    kept = [line for line in lines if line.strip("^ ") and line != "<non-verbose/>"]
    return " ".join(kept)[:MAX_WORDS]


def invalid(words: str) -> TuringError:
    """Return the error of a constraint that cannot be used."""
    return TuringError(Code.CONSTRAINT_INVALID, words, param="response_format")


def _schema(constraint: Constraint) -> str:
    try:
        value = msgspec.json.decode(constraint.text)
    except msgspec.DecodeError as error:
        raise invalid(f"the JSON schema is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid("the JSON schema is not an object")
    return _from_schema(constraint.text, strict=constraint.strict)


def _from_schema(text: str, *, strict: bool) -> str:
    try:
        grammar = LLMatcher.grammar_from_json_schema(text, overrides=_STRICT if strict else _LOOSE)
    except ValueError as error:
        raise invalid(f"the JSON schema is not usable: {tidy(str(error))}") from None
    return str(grammar)


def _choice(constraint: Constraint) -> str:
    try:
        words = msgspec.json.decode(constraint.text, type=list[str])
    except msgspec.DecodeError as error:
        raise invalid(f"the choice is not a list of strings: {error}") from None
    if not words or "" in words:
        raise invalid("the choice needs strings that are not empty")
    alternatives = " | ".join(json.dumps(word, ensure_ascii=False) for word in words)
    return str(LLMatcher.grammar_from_lark(f"start: {alternatives}"))


def _grammar(constraint: Constraint) -> str:
    text = constraint.text
    if "::=" in text:
        try:
            text = any_to_lark(text)
        except RecursionError:
            raise
        except Exception as error:  # the converter raises bare ones for what it cannot map
            raise invalid(f"the GBNF grammar is not usable: {tidy(str(error))}") from None
    return str(LLMatcher.grammar_from_lark(text))


_GRAMMARS: Final[dict[str, Callable[[Constraint], str]]] = {
    "json_object": lambda c: _from_schema('{"type":"object"}', strict=c.strict),
    "json_schema": _schema,
    "regex": lambda c: str(LLMatcher.grammar_from_regex(c.text)),
    "choice": _choice,
    "grammar": _grammar,
}
_WORDS: Final = {
    "json_object": "JSON object",
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "choice": "choice",
    "grammar": "grammar",
}
KINDS: Final = tuple(_GRAMMARS)
"""Kinds of ``Constraint`` that can be compiled."""


def _place(schema: Any, error: str) -> str:
    """Return the JSON pointer of the keyword that ``error`` is about; empty if none is named."""
    for pointer, key, value in _keywords(schema, "#"):
        quoted = f'"{key}"' in error or f"'{key}'" in error
        if quoted or (key in _NAMED and isinstance(value, str) and value and value in error):
            return pointer
    return ""


def _keywords(node: Any, pointer: str) -> Iterator[tuple[str, str, Any]]:
    entries: Iterable[tuple[str, Any]] = ()
    if isinstance(node, dict):
        entries = node.items()
    elif isinstance(node, list):
        entries = ((str(index), value) for index, value in enumerate(node))
    for key, value in entries:
        below = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
        yield below, key, value
        yield from _keywords(value, below)
