"""Token ids to text as they come, in whole characters."""

import codecs
from collections.abc import Collection

from turing_gateway.text.tokenizer import Tokenizer

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns the tokens of one answer into text, one after the other.

    Works on the tokens' bytes: a character whose last byte is still to come is held back, bytes
    that cannot become a character are one U+FFFD each. How tokens are grouped into calls never
    changes the text. ``strip_space`` drops the space that a SentencePiece vocabulary puts before
    the first word. ``visible`` are special tokens that are shown even when those are skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        visible: Collection[int] = (),
        strip_space: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._kept = frozenset(visible)
        self._decoder = _new_decoder("replace")
        self._strip_space = strip_space

    @property
    def pending(self) -> bool:
        """Whether bytes of an incomplete character are held back."""
        return bool(self._decoder.getstate()[0])

    def feed(self, token: int) -> tuple[str, bytes]:
        """Return the text that ``token`` completes, and the bytes it adds to the answer."""
        data = self._visible(token)
        if self._strip_space and data:
            data = data.removeprefix(b" ")
            self._strip_space = False
        return self._decoder.decode(data), data

    def _visible(self, token: int) -> bytes:
        hidden = self._skip_special and self._tokenizer.is_special(token)
        if hidden and token not in self._kept:
            return b""
        return self._tokenizer.token_bytes(token)
