"""Stop strings in text that comes in pieces."""

from collections.abc import Sequence


class StopScanner:
    """Lets text through up to the first stop string, wherever the borders of its pieces lie.

    Only a suffix that could be the beginning of a stop string is held back. The stop string that is
    complete first wins, of several that end together the longest. ``include`` keeps it in the text.
    Takes time linear in the text, per stop string.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self.matched: str | None = None
        self._include = include
        self._patterns = [_Pattern(stop) for stop in sorted(stops, key=len, reverse=True)]
        self._held = ""

    def feed(self, text: str) -> str:
        """Return what can be shown now; nothing more once ``matched`` is set."""
        if not self._patterns or self.matched is not None:
            return "" if self.matched is not None else text
        text, start = self._held + text, len(self._held)
        for at in range(start, len(text)):
            for pattern in self._patterns:
                if pattern.advance(text[at]) and self.matched is None:
                    self.matched = pattern.text
            if self.matched is not None:
                self._held = ""
                return text[: at + 1 - (0 if self._include else len(self.matched))]
        held = max(pattern.state for pattern in self._patterns)
        shown = len(text) - held
        self._held = text[shown:]
        return text[:shown]

    def close(self) -> str:
        """Return what was held back: the text ended, so it is no stop string."""
        held, self._held = self._held, ""
        return held


class _Pattern:
    """One stop string as a Knuth-Morris-Pratt automaton; ``state`` characters match so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.state = 0
        self._borders = _borders(text)

    def advance(self, char: str) -> bool:
        """Take one character; true when it completes the stop string."""
        while self.state and self.text[self.state] != char:
            self.state = self._borders[self.state - 1]
        if self.text[self.state] == char:
            self.state += 1
        return self.state == len(self.text)


def _borders(text: str) -> list[int]:
    """Return for every prefix the length of its longest proper prefix that is also a suffix."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = borders[length - 1]
        if text[index] == text[length]:
            length += 1
        borders[index] = length
    return borders
