"""The frame of every tool-call parser: states over text that comes in pieces."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from turing_gateway.text.pieces import Kind, Piece, held_back
from turing_gateway.text.tools.jsonstream import CallReader, JsonValue, skip_space

State = Callable[[], bool]
"""Takes text from the cursor on; false when it needs more than there is."""

ARGUMENT_KEYS = ("arguments", "parameters")


class Scanner(ABC):
    """Splits text into the answer and tool calls; a subclass knows one way to write calls.

    What may be a call is kept aside until it is known to be one (``_commit``); if it is none, it is
    the answer's text (``_reject``). A call that the end of the answer cuts off before that is
    dropped when a tag had announced it. ``names`` are the tools that exist.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.open = False
        """Whether the last call's arguments are incomplete."""
        self._names = names
        self._text = ""
        self._at = 0
        self._pieces: list[Piece] = []
        self._aside: list[str] | None = None
        self._tagged = False
        self._skipped = 0
        self._holds_text = False
        self._state: State = self._start
        self._reader = CallReader(ARGUMENT_KEYS)
        self._value = JsonValue()

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that ``text`` completes."""
        self._text = self._text[self._at :] + text
        self._at = 0
        while self._state():
            pass
        pieces, self._pieces = self._pieces, []
        return pieces

    def close(self) -> list[Piece]:
        """Return what was held back, at the end of the answer."""
        rest = self._text[self._at :]
        self._at = len(self._text)
        if self._aside is not None and not self._tagged:
            self._aside.append(rest)
            self._reject()
        elif self._holds_text and rest:
            self._put(Kind.TEXT, rest, len(rest))
        pieces, self._pieces = self._pieces, []
        return pieces

    @abstractmethod
    def _start(self) -> bool:
        """Be the first ``State``."""

    # The cursor

    @property
    def _rest(self) -> int:
        return len(self._text) - self._at

    def _take(self, size: int) -> str:
        """Go on by ``size`` characters: markup, unless what they are a part of is rejected."""
        text = self._text[self._at : self._at + size]
        self._at += size
        self._holds_text = False
        if self._aside is None:
            self._skipped += size
        else:
            self._aside.append(text)
        return text

    def _skip_space(self) -> bool:
        """Go on behind white space; false at the end of the text."""
        self._take(skip_space(self._text, self._at) - self._at)
        return self._rest > 0

    def _may_follow(self, tag: str) -> bool:
        """Whether ``tag`` stands at the cursor, or may once there is more text."""
        return self._text.startswith(tag[: self._rest], self._at)

    def _take_tag(self, tag: str) -> bool:
        """Go on behind ``tag`` if all of it stands here."""
        if not self._text.startswith(tag, self._at):
            return False
        self._take(len(tag))
        return True

    # Text, and what may become a call

    def _put(self, kind: Kind, text: str, size: int = 0) -> None:
        self._pieces.append(Piece(kind, text, size + self._skipped))
        self._skipped = 0

    def _text_until(self, tag: str) -> bool:
        """Show text up to ``tag``; true with the cursor at it, else what may be it is held."""
        at = self._text.find(tag, self._at)
        self._holds_text = at < 0
        end = at if at >= 0 else len(self._text) - held_back(self._text[self._at :], tag)
        if end > self._at:
            text = self._text[self._at : end]
            self._at = end
            self._put(Kind.TEXT, text, len(text))
        return at >= 0

    def _begin(self, *, tagged: bool) -> None:
        """Keep aside what is taken from now on, in which a call may begin."""
        self._aside, self._tagged = self._aside or [], tagged
        self._reader = CallReader(ARGUMENT_KEYS)

    def _commit(self, name: str) -> None:
        """What was kept aside is the beginning of a call of ``name``."""
        self._skipped += sum(map(len, self._aside or ()))
        self._aside = None
        self._put(Kind.CALL, name)
        self._value = JsonValue()
        self.open = True

    def _reject(self) -> None:
        """What was kept aside is no call."""
        text = "".join(self._aside or ())
        self._aside = None
        if text:
            self._put(Kind.TEXT, text, len(text))

    # Calls

    def _read_object(self) -> bool | None:
        """Read a call written as one object; ``None`` until it ends, then whether it is a call."""
        reader = self._reader
        self._take(reader.read(self._text, self._at) - self._at)
        ended = reader.done or reader.failed
        if self._aside is not None and reader.name and (reader.fragments or reader.done):
            if not (self._tagged or reader.name in self._names):
                self._reject()
                return False
            self._commit(reader.name)
        if self._aside is None:
            self._put_arguments(reader)
            return True if ended else None
        if ended:
            self._reject()
            return False
        return None

    def _put_arguments(self, reader: CallReader) -> None:
        fragments, reader.fragments = reader.fragments, []
        if fragments:
            self._put(Kind.ARGUMENTS, "".join(fragments))
        elif reader.done and not reader.whole:
            self._put(Kind.ARGUMENTS, "{}")
        self.open = not (reader.whole or reader.done)

    def _read_arguments(self) -> bool:
        """Read arguments that stand by themselves, from their brace on; true at their end."""
        raw = self._take(self._value.read(self._text, self._at) - self._at)
        if raw:
            self._put(Kind.ARGUMENTS, raw)
        self.open = not self._value.done
        return self._value.done
