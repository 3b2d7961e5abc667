"""Text ⇄ token ids for one model, from its ``tokenizer.json`` and facts."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

import msgspec
import tokenizers

from turing_gateway.text.control import ControlTokens, is_control, unmark
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import ModelInfo

Json = dict[str, Any]

_SPACE = "▁"
"""SentencePiece writes a space as U+2581."""


class Tokenizer:
    """Encodes and decodes as Hugging Face's fast tokenizer of the same file does.

    Byte-level and SentencePiece-like BPE are supported, other kinds are ``Code.UNSUPPORTED`` and a
    file that does not load is ``Code.INVALID``. Safe to call from several threads.
    """

    def __init__(self, tokenizer_json: bytes, info: ModelInfo) -> None:
        spec = _parse(tokenizer_json)
        added: list[Json] = spec.get("added_tokens") or []
        control = [token for token in added if is_control(token)]
        plain = _without(spec, {token["content"] for token in control})
        self.control = ControlTokens(control)
        self.strips_space = _strips_space(spec)
        """Whether the first space of a text is the tokenizer's own and not shown."""
        self._bos = [info.bos_id] if info.add_bos and info.bos_id is not None else []
        self._added: dict[int, str] = {token["id"]: token["content"] for token in added}
        self._special = frozenset(token["id"] for token in added if token.get("special"))
        self._piece_bytes = _piece_bytes(spec)
        self._bytes: dict[int, bytes] = {}
        self._full = _load(spec)
        self._plain = _load(plain)
        self._inner = _load(_without_prefix(plain)) if _prefixes_first(plain) else self._plain

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the ids of ``text``.

        ``add_special`` puts the beginning-of-sequence token in front where the model wants one,
        ``parse_special`` turns texts of control tokens into these tokens.
        """
        ids = _encode(self._full if parse_special else self._plain, text)
        return [*self._bos, *ids] if add_special else ids

    def encode_marked(self, prompt: str) -> list[int]:
        """Return the ids of a rendered chat prompt whose user strings ``control.mark`` marked.

        Equal to ``encode(prompt, parse_special=True)`` where users wrote no control token's text.
        """
        ids: list[int] = []
        encoder = self._plain
        for part in self.control.split(prompt):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(_encode(encoder, unmark(part)))
            encoder = self._inner
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """Return the text of ``ids``; incomplete characters become U+FFFD."""
        return self._full.decode(list(ids), skip_special_tokens=skip_special)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that ``token`` stands for; a special token's are those of its name.

        An id without a token (padding of the embedding matrix) stands for nothing.
        """
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._find_bytes(token)
        return known

    def is_special(self, token: int) -> bool:
        """Whether ``skip_special`` leaves ``token`` out."""
        return token in self._special

    def special_ids(self, texts: Iterable[str]) -> dict[str, int]:
        """Return the ids of those ``texts`` that are special tokens."""
        wanted = set(texts)
        return {self._added[i]: i for i in self._special if self._added[i] in wanted}

    @property
    def added(self) -> Collection[str]:
        """The texts of all added tokens."""
        return self._added.values()

    def _find_bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        piece: str | None = self._full.id_to_token(token)
        return b"" if piece is None else self._piece_bytes(piece)


def _parse(data: bytes) -> Json:
    try:
        spec = msgspec.json.decode(data, type=Json)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid(str(error)) from None
    kind = spec.get("model", {}).get("type")
    if kind != "BPE":
        raise TuringError(Code.UNSUPPORTED, f"tokenizers of kind {kind} are not supported")
    # Files that were saved in training ask for truncation to their window.
    return spec | {"truncation": None, "padding": None}


def _load(spec: Json) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_buffer(msgspec.json.encode(spec))
    except Exception as error:  # the library raises nothing narrower
        raise _invalid(str(error)) from None


def _encode(encoder: tokenizers.Tokenizer, text: str) -> list[int]:
    # The batch call lets other threads run, the single one does not.
    ids: list[int] = encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def _invalid(message: str) -> TuringError:
    return TuringError(Code.INVALID, f"the model's tokenizer.json does not load: {message}")


# A tokenizer that cannot produce control tokens


def _without(spec: Json, texts: set[str]) -> Json:
    """Return ``spec`` without the tokens ``texts`` and without merges that make or use them."""
    model = spec["model"]
    gone = texts - {model.get("unk_token")}
    vocabulary = {token: index for token, index in model["vocab"].items() if token not in gone}
    merges = model["merges"]
    if len(vocabulary) < len(model["vocab"]):
        merges = [merge for merge in merges if not _touches(merge, texts)]
    added = [token for token in spec.get("added_tokens") or [] if token["content"] not in texts]
    # The library counts on from the vocabulary's size unless the vocabulary says which id.
    vocabulary |= {token["content"]: token["id"] for token in added}
    return spec | {
        "added_tokens": added,
        "model": model | {"vocab": vocabulary, "merges": merges},
    }


def _touches(merge: str | list[str], texts: set[str]) -> bool:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left + right in texts or left in texts or right in texts


def _prefixes_first(spec: Json) -> bool:
    return any(part.get("prepend_scheme") == "first" for part in _parts(spec, "pre_tokenizer"))


def _without_prefix(spec: Json) -> Json:
    """Return ``spec`` for text that does not begin the prompt: no space is put in front of it."""
    parts = [
        part | ({"prepend_scheme": "never"} if part.get("prepend_scheme") == "first" else {})
        for part in _parts(spec, "pre_tokenizer")
    ]
    return spec | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": parts}}


# What a token's bytes are


def _parts(spec: Json, stage: str) -> list[Json]:
    """Return the steps of a stage of a tokenizer.json, flat."""
    value = spec.get(stage)
    if not value:
        return []
    if value.get("type") != "Sequence":
        return [value]
    steps: list[Json] = next(v for k, v in value.items() if k != "type")
    return steps


def _strips_space(spec: Json) -> bool:
    for step in _parts(spec, "decoder"):
        if step["type"] == "Strip" and step.get("content") == " " and step.get("start"):
            return True
        if step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            return True
    return False


def _piece_bytes(spec: Json) -> Callable[[str], bytes]:
    steps = _parts(spec, "decoder")
    if any(step["type"] == "ByteLevel" for step in steps):
        return _byte_level_piece
    spaced = any(step["type"] == "Metaspace" or step.get("content") == " " for step in steps)
    if spaced:
        return _sentencepiece_piece
    names = ", ".join(step["type"] for step in steps) or "none"
    raise TuringError(Code.UNSUPPORTED, f"the tokenizer's decoder ({names}) is not supported")


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's character for each byte: itself if printable, else the next from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF: Final = _byte_alphabet()


def _byte_level_piece(piece: str) -> bytes:
    try:
        return bytes(_BYTE_OF[char] for char in piece)
    except KeyError:  # not written in the byte alphabet: the piece is plain text
        return piece.encode()


def _sentencepiece_piece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            pass
    return piece.replace(_SPACE, " ").encode()
