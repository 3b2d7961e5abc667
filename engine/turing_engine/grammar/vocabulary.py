"""The model's tokens as grammars see them: byte strings, and the ids that end an answer."""

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer


class Vocabulary:
    """The tokenizer of ``tokenizer_json`` with ids up to ``size``.

    A kind of tokenizer that llguidance cannot read is a ``ValueError``.
    """

    def __init__(self, tokenizer_json: str, size: int, eos_ids: Sequence[int]) -> None:
        self.size = size
        ends = list(eos_ids) or None
        self.tokenizer = LLTokenizer(tokenizer_json, n_vocab=size, eos_token=ends)
        self.eos_ids = frozenset(self.tokenizer.eos_tokens)
        self._end = int(self.tokenizer.eos_token)
        self.single = self._single_bytes()
        """Byte → the id of the token that is this byte and nothing else."""
        self._singles = frozenset(self.single.values())
        self.single_bytes = np.array(list(self.single), np.uint8)
        self.single_ids = np.array(list(self.single.values()), np.int64)
        """The same as arrays."""
        special = set(filter(self.tokenizer.is_special_token, range(size))) - self.eos_ids
        self.special_ids = np.array(sorted(special), np.int64)
        """Special tokens but for those that end an answer."""

    def is_single(self, token: int) -> bool:
        """Return whether ``token`` stands for its one byte in ``single``."""
        return token in self._singles

    def text(self, ids: Sequence[int]) -> bytes:
        """Return the bytes of ``ids``."""
        return bytes(self.tokenizer.decode_bytes(list(ids)))

    def ids(self, text: bytes) -> list[int]:
        """Return the ids that a model would most likely write for ``text``."""
        return list(self.tokenizer.tokenize_bytes(text))

    def ends(self, parser: LLMatcher, ids: Sequence[int]) -> bool:
        """Return whether ``parser`` would accept ``ids`` and then the end of the answer."""
        if not ids:
            return bool(parser.is_accepting())
        return int(parser.validate_tokens([*ids, self._end])) == len(ids) + 1

    def _single_bytes(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for token in range(self.size):
            data = self.tokenizer.decode_bytes([token])
            if len(data) == 1 and not self.tokenizer.is_special_token(token):
                found.setdefault(data[0], token)
        return found
