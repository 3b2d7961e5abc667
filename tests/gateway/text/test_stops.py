"""Stop strings: nothing of one leaks, nothing else is kept back, wherever pieces end."""

from hypothesis import given
from hypothesis import strategies as st

from turing_gateway.text.stops import StopScanner

SHORT = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=4, unique=True)


def scan(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[str, str | None]:
    scanner = StopScanner(stops, include=include)
    text = "".join(scanner.feed(piece) for piece in pieces)
    return text + scanner.close(), scanner.matched


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


@given(SHORT, STOPS, st.lists(st.integers(0, 5), max_size=10))
def test_pieces_never_change_what_is_shown(text: str, stops: list[str], sizes: list[int]) -> None:
    assert scan(cut(text, sizes), stops) == reference(text, stops)


@given(SHORT, STOPS, st.lists(st.integers(0, 5), max_size=10))
def test_only_a_beginning_of_a_stop_is_held(text: str, stops: list[str], sizes: list[int]) -> None:
    scanner = StopScanner(stops)
    fed = shown = ""
    for piece in cut(text, sizes):
        fed += piece
        shown += scanner.feed(piece)
        held = fed.removeprefix(shown)
        if scanner.matched is None:
            assert not held or any(len(held) < len(s) and s.startswith(held) for s in stops)


@given(SHORT, STOPS)
def test_include_keeps_the_stop_itself(text: str, stops: list[str]) -> None:
    shown, matched = reference(text, stops)
    assert scan([text], stops, include=True) == (shown + (matched or ""), matched)


def test_a_stop_across_tokens_shows_nothing_of_itself() -> None:  # F11
    text, stop = "The quick brown fox", "own fox"
    for at in range(len(text)):
        for second in range(at, len(text)):
            pieces = [text[:at], text[at:second], text[second:]]
            assert scan(pieces, [stop]) == ("The quick br", stop)


def test_text_that_only_looks_like_a_stop_arrives_when_it_is_ruled_out() -> None:  # F13
    scanner = StopScanner(["\n<|endoftext|>"])
    assert [scanner.feed(piece) for piece in ("a", "\n", "b", "\n")] == ["a", "", "\nb", ""]
    assert scanner.close() == "\n"
    assert scanner.matched is None


def test_of_two_stops_that_end_together_the_longest_wins() -> None:
    assert scan(["xabc"], ["c", "abc", "bc"]) == ("x", "abc")


def test_nothing_is_shown_behind_a_stop() -> None:
    scanner = StopScanner(["b"])
    assert scanner.feed("abc") == "a"
    assert scanner.feed("def") == ""
    assert scanner.close() == ""
