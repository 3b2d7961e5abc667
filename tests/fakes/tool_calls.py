"""Thirty tool calls as models write them, and what a parser makes of text that comes in pieces."""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby

from turing_gateway.text.pieces import Kind, Piece
from turing_gateway.text.tools.dialect import Syntax
from turing_gateway.text.tools.scanner import Scanner

ARGUMENTS = (
    "{}",
    "{ }",
    '{"a":1}',
    '{"a": 1}',
    '{"city": "Paris", "unit": "celsius", "days": 3}',
    '{"city":"São Paulo"}',
    '{"text":"🫠🥹龜é"}',
    '{"text": "She said \\"no\\"."}',
    '{"path": "C:\\\\temp\\\\"}',
    '{"text": "\\u00e9\\n\\t"}',
    '{"text": "}"}',
    '{"text": "{[("}',
    '{"text": "</tool_call>"}',
    '{"text": "<tool_call>"}',
    '{"text": "[TOOL_CALLS]x[ARGS]{}"}',
    '{"text": "<｜tool▁call▁end｜>"}',
    '{"text": "```json"}',
    '{"text": "<think>hm</think>"}',
    '{"text": ""}',
    '{"a": [1, 2, [3, {"b": null}]]}',
    '{"a": {"b": {"c": {"d": [true, false]}}}}',
    '{"n": -1.5e-7}',
    '{"n": 0, "m": null}',
    '{\n  "a": 1,\n  "b": [\n    2\n  ]\n}',
    '{"query": "SELECT * FROM t WHERE a = \'b\';"}',
    '{"name": "other", "arguments": {"x": 1}}',
    '{"list": ["a,b", "c;d", "]"]}',
    '{"html": "<a href=\\"x\\">y</a>"}',
    '{"emoji": "👩‍👩‍👧‍👦", "n": 12345678901234567890}',
    '{"code": "def f(x):\\n    return {\'a\': x}"}',
)
"""What thirty calls were made with, as it was written."""

assert len(ARGUMENTS) == 30
assert all(isinstance(json.loads(text), dict) for text in ARGUMENTS)

Shown = list[tuple[str, str]]
"""Kinds and texts of pieces, neighbours of one kind joined."""


def shown(pieces: Iterable[Piece]) -> Shown:
    """Return what a client sees of ``pieces``."""
    visible = (piece for piece in pieces if piece.text)
    groups = groupby(visible, key=lambda piece: (piece.kind, piece.kind is Kind.CALL))
    return [(kind.name, "".join(piece.text for piece in group)) for (kind, _), group in groups]


def read(scanner: Scanner, parts: Iterable[str]) -> Shown:
    """Return what ``scanner`` makes of an answer in ``parts``."""
    pieces: list[Piece] = []
    for part in parts:
        pieces += scanner.feed(part)
    return shown([*pieces, *scanner.close()])


def cuts(text: str) -> Iterable[list[str]]:
    """Yield ``text`` in two parts, cut at every place, and in single characters."""
    yield from ([text[:at], text[at:]] for at in range(len(text) + 1))
    yield list(text)


def written(syntax: Syntax, calls: Sequence[tuple[str, str]]) -> str:
    """Return ``calls``, names and arguments, as ``syntax`` has them."""
    first, *others = calls
    text = syntax.opening(first[0]) + first[1] + syntax.end_call
    for name, arguments in others:
        text += syntax.following(name) + arguments + syntax.end_call
    return text + syntax.end
