"""Calls written as Python: ``[get_weather(city="Paris", days=3)]`` (LFM2, Llama 4).

Their arguments are literals, so a call is read whole and given on as JSON.
"""

import ast
import json
import re
import warnings
from collections.abc import Collection
from typing import Any

from turing_gateway.text.pieces import Kind
from turing_gateway.text.tools.dialect import Dialect
from turing_gateway.text.tools.jsonstream import run
from turing_gateway.text.tools.scanner import Scanner

_STARTS = ("<|tool_call_start|>", "<|python_start|>")
_ENDS = ("<|tool_call_end|>", "<|python_end|>")
_NAME = re.compile(r"[A-Za-z0-9_.]*")
_LONGEST_NAME = 256
_PLAIN = re.compile(r"[^\"'()\[\]{}]*")
_QUOTED = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_WORDS = {"true": True, "false": False, "null": None}
"""What models write of JSON into Python."""


class PythonicCalls(Scanner):
    """Reads a list of calls at the beginning of the answer, or behind a tag."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._name = ""
        self._group = _Group()
        self._raw: list[str] = []

    def _start(self) -> bool:
        self._begin(tagged=False)
        self._state = self._opening
        return True

    def _opening(self) -> bool:
        if not self._skip_space():
            return False
        if any(self._take_tag(tag) for tag in _STARTS):
            self._tagged = True
        elif self._text[self._at] == "[":
            self._take(1)
            self._state = self._between
        elif any(self._may_follow(tag) for tag in _STARTS):
            return False
        else:
            self._give_up()
        return True

    def _seek(self) -> bool:
        if not self._text_until(_STARTS[0]):
            return False
        self._begin(tagged=True)
        self._state = self._opening
        return True

    def _between(self) -> bool:
        if not self._skip_space():
            return False
        char = self._text[self._at]
        if char == "]":
            self._take(1)
            self._state = self._behind
        elif char == ",":
            self._take(1)
        else:
            self._begin(tagged=self._tagged)
            self._name = ""
            self._state = self._in_name
        return True

    def _behind(self) -> bool:
        if not self._skip_space():
            return False
        if any(self._take_tag(tag) for tag in _ENDS):
            return True
        if any(self._may_follow(tag) for tag in _ENDS):
            return False
        self._give_up()
        return True

    def _in_name(self) -> bool:
        self._name += self._take(run(_NAME, self._text, self._at) - self._at)
        if not self._rest and len(self._name) <= _LONGEST_NAME:
            return False
        known = bool(self._name) and (self._tagged or self._name in self._names)
        if not (known and self._take_tag("(")):
            self._give_up()
            return True
        self._group, self._raw = _Group(), []
        self._state = self._arguments
        return True

    def _arguments(self) -> bool:
        end = self._group.read(self._text, self._at)
        self._raw.append(self._take(end - self._at))
        if not self._group.done:
            return False
        arguments = _as_json("".join(self._raw))
        if arguments is None:
            self._give_up()
            return True
        self._commit(self._name)
        self._put(Kind.ARGUMENTS, arguments)
        self.open = False
        self._state = self._between
        return True

    def _give_up(self) -> None:
        self._reject()
        self._state = self._seek


class _Group:
    """Finds the parenthesis that closes a call, from behind the one that opens it."""

    def __init__(self) -> None:
        self.done = False
        self._depth = 1
        self._quote = ""
        self._escaped = False

    def read(self, text: str, at: int) -> int:
        while at < len(text) and not self.done:
            at = self._quoted(text, at) if self._quote else self._between(text, at)
        return at

    def _quoted(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        at = run(_QUOTED[self._quote], text, at)
        if at == len(text):
            return at
        self._escaped = text[at] == "\\"
        self._quote = self._quote if self._escaped else ""
        return at + 1

    def _between(self, text: str, at: int) -> int:
        at = run(_PLAIN, text, at)
        if at == len(text):
            return at
        char = text[at]
        if char in _QUOTED:
            self._quote = char
        else:
            self._depth += 1 if char in "([{" else -1
            self.done = self._depth == 0
        return at + 1


def _as_json(raw: str) -> str | None:
    """Return the keyword arguments that ``raw`` ends with a parenthesis as a JSON object."""
    try:
        with warnings.catch_warnings(action="ignore"):  # "\d" in a string is only bad style
            call = ast.parse(f"f({raw}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        values = {keyword.arg or "": _value(keyword.value) for keyword in call.keywords}
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case _:
            return ast.literal_eval(node)


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("keys of a JSON object are strings")


def pythonic() -> Dialect:
    """LFM2 and Llama 4. Python has no grammar for a schema, so calls are forced as Hermes' are."""
    return Dialect(
        detects=lambda template: any(tag in template for tag in _STARTS),
        reader=PythonicCalls,
        markers=(*_STARTS, *_ENDS),
    )
