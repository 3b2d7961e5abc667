"""Masks of a step: computed when asked for, in the order of the rows."""

import numpy as np

from turing_engine.plan.grammar import Verdict
from turing_engine.run.masks import Masks, allowed, make_words


class Stub:
    """Allows one id, and keeps what it was told is left."""

    error = ""
    warnings = ()

    def __init__(self, token: int) -> None:
        self._token = token
        self.lefts: list[int] = []

    def mask(self, words: memoryview, left: int) -> None:
        self.lefts.append(left)
        row = np.frombuffer(words, np.uint32)
        row[:] = 0
        row[self._token // 32] = 1 << self._token % 32

    def accept(self, token: int, left: int) -> Verdict:
        raise AssertionError("masks accept nothing")


def test_rows_are_filled_on_demand_and_again() -> None:
    words = make_words(4, 70)
    stubs = [Stub(3), Stub(31), Stub(69)]
    masks = Masks(words, [(at * 2, stub, 10 + at) for at, stub in enumerate(stubs)])
    assert masks.chunks == [0, 2, 4]
    assert not any(stub.lefts for stub in stubs)
    rows = allowed(masks.fill(), 70)
    assert rows.shape == (3, 70)
    assert [row.nonzero()[0].tolist() for row in rows] == [[3], [31], [69]]
    assert [stub.lefts for stub in stubs] == [[10], [11], [12]]
    assert words[3].sum() == 0


def test_ids_beyond_the_vocabulary_are_cut() -> None:
    words = np.full((1, 2), -1, np.int32)
    assert allowed(words, 33).tolist() == [[True] * 33]
