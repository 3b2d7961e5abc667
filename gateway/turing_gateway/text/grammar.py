"""Grammars in llguidance's Lark for answers that reason, call tools, or keep to a format.

One grammar covers the whole answer, so that nothing of it is free that should not be: reasoning up
to its end tag, then calls in the model's own syntax, or what the client asked for.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from turing_gateway.call import Tool
from turing_gateway.text.reasoning import Tags
from turing_gateway.text.tools.dialect import Syntax
from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint

_ANYTHING: Final = "(?s:.*)"
_GAP: Final = r"/[ \n]{0,4}/"


class Lark:
    """Writes rules. ``special`` are texts that are special tokens, with their ids."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        names = sorted(map(re.escape, special), key=len, reverse=True)
        self._cut = re.compile(f"({'|'.join(names)})") if names else None
        self._rules: list[str] = []

    def rule(self, name: str, body: str, options: str = "") -> str:
        """Add a rule and return its name."""
        self._rules.append(f"{name}{options}: {body}")
        return name

    def literal(self, text: str) -> str:
        """Return an expression for exactly ``text``."""
        parts = filter(None, self._cut.split(text) if self._cut else [text])
        return " ".join(self._token(part) or json.dumps(part) for part in parts)

    def until(self, name: str, tag: str) -> str:
        """Return an expression for any text, ``tag`` behind it included."""
        token = self._token(tag)
        if token:
            return f"{self.rule(name, f'/{_ANYTHING}/')} {token}"
        return self.rule(name, f"/{_ANYTHING}/", f"[suffix={json.dumps(tag)}]")

    def without(self, tag: str) -> str:
        """Return an expression for any text without ``tag``."""
        if self._token(tag):
            return f"/{_ANYTHING}/"
        self.rule("TEXT", f"/{_ANYTHING}/ & ~/{_ANYTHING}{_regex(re.escape(tag))}{_ANYTHING}/")
        return "TEXT"

    def text(self, start: str) -> str:
        """Return the grammar whose first rule is ``start``."""
        return "\n".join((f"start: {start}", *self._rules))

    def _token(self, text: str) -> str:
        return f"<[{self._special[text]}]>" if text in self._special else ""


def thinking(lark: Lark, tags: Tags, *, inside: bool) -> str:
    """Return an expression for the reasoning, which the model may leave out unless ``inside``."""
    rest = f"{lark.until('reasoning', tags.end)} {_GAP}"
    return rest if inside else f"({lark.literal(tags.start)} {rest})?"


def calls(lark: Lark, syntax: Syntax, tools: Sequence[Tool], *, many: bool) -> str:
    """Return an expression for at least one call of ``tools``."""
    _arguments(lark, tools)
    return _calls(lark, syntax, tools, many=many, cut=0)


def text_or_calls(lark: Lark, syntax: Syntax, tools: Sequence[Tool], *, many: bool) -> str:
    """Return an expression for an answer that may be text, calls, or text and calls behind it."""
    _arguments(lark, tools)
    called = _calls(lark, syntax, tools, many=many, cut=len(syntax.tag))
    if not syntax.tag:
        return f"(/{syntax.plain}/ | {called})"
    return f"({lark.without(syntax.tag)} | {lark.until('head', syntax.tag)} {called})"


def answer(constraint: Constraint) -> str | None:
    """Return an expression for what ``constraint`` allows; ``None`` for a grammar of its own."""
    match constraint.kind:
        case "json_object":
            return _json({"type": "object"}, strict=constraint.strict)
        case "json_schema":
            return _json(msgspec.json.decode(constraint.text), strict=constraint.strict)
        case "regex":
            return f"/{_regex(constraint.text)}/"
        case "choice":
            words = msgspec.json.decode(constraint.text, type=list[str])
            return f"({' | '.join(map(json.dumps, words))})"
        case _:
            return None


def _calls(lark: Lark, syntax: Syntax, tools: Sequence[Tool], *, many: bool, cut: int) -> str:
    first = _one_of(lark, (syntax.opening(tool.name)[cut:] for tool in tools), syntax.end_call)
    end = lark.literal(syntax.end)
    if not (many and syntax.many):
        return f"{first} {end}"
    more = _one_of(lark, (syntax.following(tool.name) for tool in tools), syntax.end_call)
    return f"{first} ({more})* {end}"


def _one_of(lark: Lark, openings: Iterator[str], end: str) -> str:
    bodies = [
        f"{lark.literal(opening)} arguments{index} {lark.literal(end)}"
        for index, opening in enumerate(openings)
    ]
    return f"({' | '.join(bodies)})"


def _arguments(lark: Lark, tools: Sequence[Tool]) -> None:
    for index, tool in enumerate(tools):
        schema = tool.parameters or {"properties": {}, "additionalProperties": False}
        if schema.get("type", "object") != "object":
            raise TuringError(
                Code.INVALID, f"the parameters of {tool.name} are not an object", param="tools"
            )
        lark.rule(f"arguments{index}", _json({"type": "object", **schema}, strict=tool.strict))


def _json(schema: Any, *, strict: bool) -> str:
    # Without white space: where it is free, small models fill their answer with it.
    options: dict[str, Any] = {"whitespace_flexible": False}
    if not strict:
        options |= {"lenient": True, "coerce_one_of": True}
    text = json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)
    # The engine takes a text with ``::=`` for GBNF.
    return "%json " + text.replace("::=", r"\u003a:=")


def _regex(text: str) -> str:
    """Return a regular expression as it stands between slashes."""
    return re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", text, flags=re.DOTALL)
