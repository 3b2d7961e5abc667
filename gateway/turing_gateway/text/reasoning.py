"""Reasoning: which tags a model puts around it, how much it may be, and where it ends."""

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from turing_gateway.call import Call, Message
from turing_gateway.text.pieces import Kind, Piece, held_back, plain
from turing_protocol.registry import Registry


class Tags(NamedTuple):
    """What stands before and behind the reasoning."""

    start: str
    end: str


REASONING: Registry[Tags] = Registry("reasoning")
"""Pairs of tags by name; other distributions add theirs as ``turing.reasoning``."""


@REASONING.add("think")
def _think() -> Tags:
    """DeepSeek-R1, Qwen3, SmolLM3 and most others."""
    return Tags("<think>", "</think>")


@REASONING.add("seed")
def _seed() -> Tags:
    """Seed-OSS."""
    return Tags("<seed:think>", "</seed:think>")


@REASONING.add("mistral")
def _mistral() -> Tags:
    """Magistral and Ministral."""
    return Tags("[THINK]", "[/THINK]")


BUDGETS: Final[dict[str, int]] = {
    "none": 0,
    "minimal": 256,
    "low": 1024,
    "medium": 4096,
    "high": 16384,
    "xhigh": 32768,
}
"""Effort → most tokens of reasoning. ``max``, and a call that names no effort, have no limit."""

_LEAD = 64
"""White space before the start tag; behind more of it no tag is looked for."""


def find_tags(template: str, tokens: Collection[str]) -> Tags | None:
    """Return the tags of a model with this chat template and these added tokens, if it thinks."""
    known = [REASONING.make(name) for name in REASONING.names()]
    for tags in known:
        in_template = tags.start in template or tags.end in template
        if in_template or (tags.start in tokens and tags.end in tokens):
            return tags
    return None


def budget_of(call: Call) -> int | None:
    """Return the most tokens of reasoning that ``call`` allows; ``None`` is no limit."""
    if call.effort == "none":
        return 0
    return BUDGETS.get(call.effort) if call.thinking_tokens is None else call.thinking_tokens


def split_history(messages: Sequence[Message], tags: Tags) -> list[Message]:
    """Move reasoning that clients left in the content of assistant turns to where it belongs."""
    return [_split(message, tags) for message in messages]


def _split(message: Message, tags: Tags) -> Message:
    content = message.content
    if message.role != "assistant" or message.reasoning is not None or not isinstance(content, str):
        return message
    start, found, rest = content.partition(tags.start)
    thought, ended, answer = rest.partition(tags.end)
    if start.strip() or not (found and ended):
        return message
    return replace(message, content=answer.lstrip(), reasoning=thought.strip())


Reader = Callable[[], list[Piece]]


class ThinkSplitter:
    """Tells the reasoning at the beginning of an answer from the rest, however the text is cut.

    ``inside``: the prompt has opened the reasoning already. A start tag later in the answer is
    text. White space around the tags belongs to neither side, but for what ends the reasoning.
    """

    def __init__(self, tags: Tags, *, inside: bool = False) -> None:
        self._tags = tags
        self._read: Reader = self._lead if inside else self._before
        self._text = ""
        self.inside = inside
        """Whether the reasoning has begun and not ended."""

    def feed(self, text: str) -> list[Piece]:
        """Return what ``text`` completes."""
        self._text += text
        pieces: list[Piece] = []
        reader = None
        while self._text and reader != self._read:
            reader = self._read
            pieces += reader()
        return pieces

    def close(self) -> list[Piece]:
        """Return what was held back: it is no tag."""
        text, self._text = self._text, ""
        return [Piece(Kind.THINK, text, len(text))] if self.inside and text else plain(text)

    def _before(self) -> list[Piece]:
        lead = len(self._text) - len(self._text.lstrip())
        if lead <= _LEAD and self._text.startswith(self._tags.start, lead):
            self.inside, self._read = True, self._lead
            return self._silent(lead + len(self._tags.start))
        if lead <= _LEAD and self._tags.start.startswith(self._text[lead:]):
            return []
        self._read = self._after
        return []

    def _lead(self) -> list[Piece]:
        return self._space(then=self._thinking)

    def _thinking(self) -> list[Piece]:
        at = self._text.find(self._tags.end)
        if at < 0:
            return self._take(Kind.THINK, len(self._text) - held_back(self._text, self._tags.end))
        self.inside, self._read = False, self._gap
        return [*self._take(Kind.THINK, at), *self._silent(len(self._tags.end))]

    def _gap(self) -> list[Piece]:
        return self._space(then=self._after)

    def _after(self) -> list[Piece]:
        return self._take(Kind.TEXT, len(self._text))

    def _space(self, then: Reader) -> list[Piece]:
        size = len(self._text) - len(self._text.lstrip())
        if size < len(self._text):
            self._read = then
        return self._silent(size)

    def _silent(self, size: int) -> list[Piece]:
        self._text = self._text[size:]
        return [Piece(Kind.THINK, "", size)] if size else []

    def _take(self, kind: Kind, size: int) -> list[Piece]:
        text, self._text = self._text[:size], self._text[size:]
        return [Piece(kind, text, size)] if text else []
