"""Looks for a short way from where a grammar stands to the end of its answer.

A search over byte strings in which a byte that closes something is preferred to one that goes on
inside it: first the cheapest string is looked for, and if there are too many, one with few choices
against the preference (limited discrepancy search, Harvey and Ginsberg 1995). A way that is found
is legal, since the grammar itself accepted every byte of it; that it is the shortest is likely and
not promised. The outcome depends on the grammar's state, ``hint`` and ``limit`` alone, so it is the
same wherever a stream is resumed.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, groupby
from typing import Final, NamedTuple

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from turing_engine.grammar.vocabulary import Vocabulary

_TIERS: Final = (b"}]", b'"', b",:")
"""Bytes that close something; where one is legal, all others cost ``_DETOUR`` more."""
_TEXT: Final = 64
"""Where more bytes than this are legal, the place is inside a string and brackets are text."""
_DETOUR: Final = 8
_AGAINST: Final = 64
"""What a choice against the preference costs in bytes when it is choices that are counted."""
_PER_CLASS: Final = {"digit": 2, "lower": 16, "upper": 16, "sign": 16, "other": 8}
"""How many legal bytes of each class are tried; in a string that may end it is one of all."""
_IN_TEXT: Final = {"digit": 1, "lower": 1, "upper": 1, "sign": 16, "other": 0}
"""The same for a string that may not end yet: it may lack a sign, as an address lacks its @."""
_SIGNS: Final = b" @:/.,-_+#&=?"
_MOST_SPECIALS: Final = 8
"""How many of the legal special tokens are tried; such a token mostly ends a part of an answer."""


def shortest_way(
    parser: LLMatcher, vocabulary: Vocabulary, *, hint: Sequence[int] = (), limit: int
) -> list[int] | None:
    """Return ids that end the answer from ``parser``'s state on; ``None`` if none were found.

    The ends of ``hint``, a way from an earlier state, are tried wherever the search comes. At most
    ``limit`` states are looked at.
    """
    found = _Search(vocabulary, hint, greedy=False).run(parser, limit // 2)
    if found is None:
        found = _Search(vocabulary, hint, greedy=True).run(parser, limit // 2)
    if found is None:
        return None
    likely = _as_written(found, vocabulary)
    return likely if len(likely) < len(found) and vocabulary.ends(parser, likely) else found


def shortest_end(parser: LLMatcher, vocabulary: Vocabulary, way: Sequence[int]) -> list[int] | None:
    """Return the shortest end of ``way`` that ends the answer from ``parser``'s state on."""
    for start in range(len(way), -1, -1):
        if vocabulary.ends(parser, way[start:]):
            return list(way[start:])
    return None


def _as_written(way: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """Return ``way`` with its single bytes as the tokens that a model would write for them."""
    ids: list[int] = []
    for single, part in groupby(way, vocabulary.is_single):
        run = list(part)
        ids += vocabulary.ids(vocabulary.text(run)) if single else run
    return ids


class _Search:
    def __init__(self, vocabulary: Vocabulary, hint: Sequence[int], *, greedy: bool) -> None:
        self._vocabulary = vocabulary
        self._hint = hint
        self._greedy = greedy
        self._mask = np.zeros(-(-vocabulary.size // 32), np.int32)
        self._seen: set[tuple[int, bytes]] = set()
        self._order = count()
        self._heap: list[_State] = []

    def run(self, parser: LLMatcher, limit: int) -> list[int] | None:
        self._push(0, -1, [], parser.deep_copy())
        while self._heap and limit:
            limit -= 1
            state = heapq.heappop(self._heap)
            rest = shortest_end(state.parser, self._vocabulary, self._hint)
            if rest is not None:
                return state.path + rest
            self._expand(state)
        return None

    def _push(self, cost: int, parent: int, path: list[int], parser: LLMatcher) -> None:
        order = next(self._order)
        age = (-len(path) if self._greedy else 0, order)
        heapq.heappush(self._heap, _State(cost, age, parent, path, parser))

    def _expand(self, state: "_State") -> None:
        single = self._vocabulary.single
        forced = [single.get(byte, -1) for byte in state.parser.compute_ff_bytes()]
        if forced and -1 not in forced:
            self._follow(state, len(forced), state.parser, forced)
            return
        allowed = self._allowed(state.parser)
        # Bytes that leave the same choice behind them are alike: one of such siblings is enough.
        sign = (state.parent, self._mask.tobytes())
        if sign in self._seen:
            return
        self._seen.add(sign)
        tokens = [(single[byte], price) for byte, price in _priced(allowed)]
        for rank, (token, price) in enumerate([*self._specials(), *tokens]):
            cost = 1 + _AGAINST * min(rank, 1) if self._greedy else price
            self._follow(state, cost, state.parser.deep_copy(), [token])

    def _follow(self, state: "_State", price: int, parser: LLMatcher, ids: list[int]) -> None:
        if parser.consume_tokens(ids):
            self._push(state.cost + price, state.age[1], [*state.path, *ids], parser)

    def _allowed(self, parser: LLMatcher) -> bytes:
        """Return the bytes that may come next, and leave the whole mask in ``_mask``."""
        parser.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        legal = self._legal(self._vocabulary.single_ids)
        return bytes(self._vocabulary.single_bytes[legal].tolist())

    def _specials(self) -> list[tuple[int, int]]:
        """Return the special tokens that ``_mask`` allows, and what each costs."""
        ids = self._vocabulary.special_ids
        return [(token, 1) for token in ids[self._legal(ids)][:_MOST_SPECIALS].tolist()]

    def _legal(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        bits: NDArray[np.bool_] = (self._mask[ids >> 5] >> (ids & 31) & 1).astype(np.bool_)
        return bits


class _State(NamedTuple):
    """A place that the search can go on from; compares by cost, then by age, which is unique."""

    cost: int
    age: tuple[int, int]
    parent: int
    path: list[int]
    parser: LLMatcher


def _priced(allowed: bytes) -> Iterator[tuple[int, int]]:
    """Yield the bytes worth trying and what each costs."""
    text = len(allowed) > _TEXT
    tiers = (b'"',) if text else _TIERS
    closers = next((tier for tier in tiers if set(tier) & set(allowed)), b"")
    yield from ((byte, 1) for byte in closers if byte in allowed)
    price = 1 + _DETOUR if closers else 1
    others = sorted(set(allowed) - set(closers), key=_preference)
    if text:
        others = others[:1] if closers else sorted(others, key=_sign_first)
    most = _IN_TEXT if text else _PER_CLASS
    taken: Counter[str] = Counter()
    for byte in others:
        kind = _class_of(byte)
        taken[kind] += 1
        if taken[kind] <= most[kind]:
            yield byte, price


def _preference(byte: int) -> tuple[bool, bool, bool, int]:
    # Some readers take no number and no year that begins with a zero.
    return byte >= 128, byte == ord("0"), not chr(byte).isdigit(), byte


def _sign_first(byte: int) -> int:
    place = _SIGNS.find(byte)
    return place if place >= 0 else len(_SIGNS)


def _class_of(byte: int) -> str:
    letter = chr(byte)
    if byte in _SIGNS:
        return "sign"
    if byte >= 128 or not letter.isalnum():
        return "other"
    if letter.isdigit():
        return "digit"
    return "upper" if letter.isupper() else "lower"
