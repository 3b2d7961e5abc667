"""Control tokens, and the marks that keep user text from ever becoming one.

A chat template joins its own control tokens (``<|im_end|>``) with text that users wrote. Before it
runs, every user string is marked: a private noncharacter is put into each text that could pass for
a control token. In the rendered prompt only the template's control tokens are intact; the prompt
is cut at those, the marks are taken out, and what lies between is encoded as plain text.
"""

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

MARK = "\ufdd0"
"""Stands inside marked text and is removed after rendering; Unicode never assigns it."""

_ESCAPE, _ESCAPED_MARK, _ESCAPED_ESCAPE = "\ufdd1", "\ufdd1\ufdd2", "\ufdd1\ufdd3"
_MARKUP = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_HTML = re.compile(
    r"</?(?:a|b|blockquote|br|caption|code|em|h[1-6]|i|img|li|ol|p|pre|s|strong|sub|sup|table"
    r"|tbody|td|tfoot|th|thead|tr|u|ul)>"
)
_FOLD = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class Span(NamedTuple):
    """An added token found at ``start … end`` of a text; ``which`` counts the tokens looked for."""

    which: int
    start: int
    end: int


def is_control(added: Mapping[str, Any]) -> bool:
    """Whether an ``added_tokens`` entry of a tokenizer.json steers the model.

    That are special tokens and what looks like markup (``<think>``, ``[INST]``), but not the tags
    of HTML that some vocabularies hold to write tables shorter.
    """
    text = added["content"]
    return bool(added.get("special")) or bool(_MARKUP.fullmatch(text) and not _HTML.match(text))


def unmark(text: str) -> str:
    """Return what was marked as its user wrote it."""
    text = text.replace(MARK, "")
    if _ESCAPE in text:
        text = text.replace(_ESCAPED_MARK, MARK).replace(_ESCAPED_ESCAPE, _ESCAPE)
    return text


class ControlTokens:
    """The control tokens of a vocabulary: marks their texts, and cuts prompts at them.

    ``added`` are the control entries of ``added_tokens``; they are found as ``tokenizers`` does:
    leftmost and longest, in linear time, with the white space their flags take in.
    """

    def __init__(self, added: Sequence[Mapping[str, Any]]) -> None:
        self.ids = tuple(int(token["id"]) for token in added)
        self._tokens = _Matcher([_added_token(token) for token in added])
        folded = dict.fromkeys(token["content"].translate(_FOLD) for token in added)
        # Templates may change case (``role | lower``), so texts are marked whatever their case is.
        self._texts = _Matcher([AddedToken(text, normalized=False) for text in folded])
        self._heads = frozenset(text[:at] for text in folded for at in range(1, len(text)))
        self._tails = frozenset(text[at:] for text in folded for at in range(1, len(text)))
        self._longest = max(map(len, folded), default=0)

    def mark(self, text: str) -> str:
        """Return ``text`` such that no control token can contain a part of it after rendering."""
        if MARK in text or _ESCAPE in text:
            text = text.replace(_ESCAPE, _ESCAPED_ESCAPE).replace(MARK, _ESCAPED_MARK)
        folded = text.translate(_FOLD)
        opens = any(folded[:size] in self._tails for size in range(1, self._longest))
        closes = any(folded[-size:] in self._heads for size in range(1, self._longest))
        marked = "".join(self._marked_pieces(text, folded))
        return f"{MARK if opens else ''}{marked}{MARK if closes else ''}"

    def split(self, prompt: str) -> Iterator[int | str]:
        """Yield the parts of a rendered prompt: ids of control tokens, and marked text between."""
        end = 0
        for span in self._tokens.find(prompt):
            if span.start > end:
                yield prompt[end : span.start]
            yield self.ids[span.which]
            end = span.end
        if end < len(prompt):
            yield prompt[end:]

    def _marked_pieces(self, text: str, folded: str) -> Iterator[str]:
        end = 0
        for span in self._texts.find(folded):
            yield text[end : span.start]
            # Behind every character, so that no other token's text can begin within this one.
            yield "".join(char + MARK for char in text[span.start : span.end])
            end = span.end
        yield text[end:]


class _Matcher:
    """Finds added tokens in a text with the matcher of the ``tokenizers`` library."""

    _BETWEEN = "\ufdd4"

    def __init__(self, tokens: Sequence[AddedToken]) -> None:
        # With no pre-tokenizer, all that lies between two matches is one (unknown) word.
        self._tokenizer = Tokenizer(WordLevel({self._BETWEEN: 0}, unk_token=self._BETWEEN))
        self._tokenizer.add_tokens(list(tokens))
        ids = [self._tokenizer.token_to_id(token.content) for token in tokens]
        self._index = {found: index for index, found in enumerate(ids)}

    def find(self, text: str) -> Iterator[Span]:
        # The batch call lets other threads run, the single one does not.
        found = self._tokenizer.encode_batch([text], add_special_tokens=False)[0]
        for token, (start, end) in zip(found.ids, found.offsets, strict=True):
            if token > 0:
                yield Span(self._index[token], start, end)


def _added_token(token: Mapping[str, Any]) -> AddedToken:
    return AddedToken(
        token["content"],
        single_word=token.get("single_word", False),
        lstrip=token.get("lstrip", False),
        rstrip=token.get("rstrip", False),
        normalized=False,
    )
