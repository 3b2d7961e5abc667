"""Token masks of one step, computed when the runner asks for them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from turing_engine.plan.grammar import Grammar

Words = NDArray[np.int32]
"""``[rows, words]``: id ``i`` of a row is legal where bit ``i % 32`` of word ``i // 32`` is 1."""


class Masks:
    """Which ids the constrained chunks of a plan may sample.

    A runner calls ``fill`` as late as it can: what it has given to the device by then is computed
    while the masks are.
    """

    def __init__(self, words: Words, rows: Sequence[tuple[int, Grammar, int]]) -> None:
        self._words = words[: len(rows)]
        self._rows = rows
        self.chunks = [index for index, _, _ in rows]
        """Indices into ``Plan.chunks``, rising, one for each row of the masks."""

    def fill(self) -> Words:
        """Compute and return the masks, a view of memory that later steps use again."""
        for words, (_, grammar, left) in zip(self._words, self._rows, strict=True):
            grammar.mask(words.data, left)
        return self._words


def make_words(rows: int, vocab_size: int) -> Words:
    """Return memory for the masks of ``rows`` chunks."""
    return np.zeros((rows, -(-vocab_size // 32)), np.int32)


def allowed(words: Words, vocab_size: int) -> NDArray[np.bool_]:
    """Return masks as one bool per id, ``[..., vocab_size]``."""
    bits = np.unpackbits(words.view(np.uint8), axis=-1, count=vocab_size, bitorder="little")
    return bits.view(np.bool_)
