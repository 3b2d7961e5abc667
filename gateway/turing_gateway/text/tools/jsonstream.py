"""JSON that comes in pieces: where a value ends, and calls written as objects.

Every character is looked at once. Nothing here checks JSON for its own sake; what has to be
understood (keys, names) is decoded by ``json``.
"""

import json
import re
from collections.abc import Collection
from typing import Any

_STRING = re.compile(r'[^"\\]*')
_NESTED = re.compile(r'[^"{}\[\]]*')
_SCALAR = re.compile(r"[^,}\]\s]*")
_SPACE = re.compile(r"\s*")


def run(pattern: "re.Pattern[str]", text: str, at: int) -> int:
    """Return the end of the run of ``pattern``, a repeated character class, at ``at``."""
    match = pattern.match(text, at)
    return match.end() if match else at


def skip_space(text: str, at: int) -> int:
    """Return the first position from ``at`` on that is not white space."""
    return run(_SPACE, text, at)


class JsonValue:
    """Finds the end of one value; the first character it is handed must be the value's first."""

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._string = self._escaped = self._scalar = False

    def read(self, text: str, at: int) -> int:
        """Take ``text`` from ``at``; return the end of the value or of the text."""
        while at < len(text) and not self.done:
            at = self._advance(text, at)
        return at

    def _advance(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        if self._string:
            return self._in_string(text, at)
        if self._scalar:
            end = run(_SCALAR, text, at)
            self.done = end < len(text)
            return end
        return self._between(text, at)

    def _in_string(self, text: str, at: int) -> int:
        at = run(_STRING, text, at)
        if at == len(text):
            return at
        if text[at] == "\\":
            self._escaped = True
        else:
            self._string = False
            self.done = self._depth == 0
        return at + 1

    def _between(self, text: str, at: int) -> int:
        if self._depth:
            at = run(_NESTED, text, at)
            if at == len(text):
                return at
        match text[at]:
            case '"':
                self._string = True
            case "{" | "[":
                self._depth += 1
            case "}" | "]":
                self._depth -= 1
                self.done = self._depth == 0
            case _:
                self._scalar = True
                return at
        return at + 1


_NEXT = {
    ("object", "{"): "key",
    ("key", "}"): "end",
    ("colon", ":"): "value",
    ("more", ","): "key",
    ("more", "}"): "end",
}
"""What is expected, the character found → what is expected then."""


class CallReader:
    """Reads one ``{"name": …, "arguments": {…}}``, its keys in any order.

    ``fragments`` are pieces of the arguments as they are written; the caller takes them out.
    Arguments that are a string with an object in it, or null, are understood too; any others, and
    what is no such object, are ``failed``.
    """

    def __init__(self, argument_keys: Collection[str]) -> None:
        self.name: str | None = None
        self.fragments: list[str] = []
        self.done = self.failed = False
        self.whole = False
        """Whether the arguments are complete."""
        self._argument_keys = argument_keys
        self._expected = "object"
        self._value: JsonValue | None = None
        self._raw: list[str] = []
        self._key = ""
        self._streams = False

    def read(self, text: str, at: int) -> int:
        """Take ``text`` from ``at``; return the end of the object, of the text, or of sense."""
        while at < len(text) and not (self.done or self.failed):
            at = self._next(text, at) if self._value is None else self._inside(text, at)
        return at

    def _next(self, text: str, at: int) -> int:
        at = skip_space(text, at)
        if at == len(text):
            return at
        char = text[at]
        if (self._expected == "key" and char == '"') or (
            self._expected == "value" and char not in ",:}]"
        ):
            self._value = JsonValue()
            self._streams = char == "{" and self._is_arguments() and not self.whole
            return at
        following = _NEXT.get((self._expected, char))
        self.failed = following is None
        self.done = following == "end"
        self._expected = following or self._expected
        return at if self.failed else at + 1

    def _is_arguments(self) -> bool:
        return self._expected == "value" and self._key in self._argument_keys

    def _inside(self, text: str, at: int) -> int:
        value = self._value
        assert value is not None
        end = value.read(text, at)
        (self.fragments if self._streams else self._raw).append(text[at:end])
        if value.done:
            self._value = None
            self._settle()
        return end

    def _settle(self) -> None:
        raw, self._raw = "".join(self._raw), []
        if self._expected == "key":
            self._key, self._expected = str(self._decode(raw)), "colon"
            return
        if self._streams:
            self.whole = True
        elif self._key == "name":
            name = self._decode(raw)
            self.name = name if isinstance(name, str) else None
            self.failed = not self.name
        elif self._is_arguments() and not self.whole:
            self._settle_odd_arguments(self._decode(raw))
        self._expected = "more"

    def _settle_odd_arguments(self, value: Any) -> None:
        if isinstance(value, str) and isinstance(self._decode(value), dict):
            self.fragments.append(value)
            self.whole = True
        elif value is not None:
            self.failed = True

    def _decode(self, raw: str) -> Any:
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            self.failed = True
            return None
