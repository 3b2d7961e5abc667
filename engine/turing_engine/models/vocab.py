"""The vocabulary of a GGUF file as a ``tokenizer.json`` that the ``tokenizers`` library loads.

A GGUF file names its tokenizer by llama.cpp's terms: a model (``gpt2`` is byte-level BPE, ``llama``
is SentencePiece BPE) and, for byte-level ones, the pre-tokenizer its merges were learned with.
Patterns: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp and the published
``tokenizer.json`` files; where the two differ (NFC of Qwen) the published file decides.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from tokenizers import Tokenizer

from turing_protocol.errors import Code, TuringError

Json = dict[str, Any]

END_OF_TURN: Final = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
"""Control tokens that end an answer though a file may name another end-of-sequence token."""


class TokenType(enum.IntEnum):
    """Values of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class PreTokenizer(NamedTuple):
    """How a byte-level vocabulary cuts text into words before its merges run.

    ``patterns`` are applied one after the other, each to the pieces that the former left.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """Take a word that is in the vocabulary whole, whatever the merges say."""
    nfc: bool = False


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)

_SPLIT_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_BPE = PreTokenizer((_LLAMA3,), ignore_merges=True)
PRE_TOKENIZERS: Final[dict[str, PreTokenizer]] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "phi-2": PreTokenizer((_GPT2,)),
    "smollm": _SPLIT_DIGITS,
    "starcoder": _SPLIT_DIGITS,
    "refact": _SPLIT_DIGITS,
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "llama-bpe": _LLAMA3_BPE,
    "llama3": _LLAMA3_BPE,
    "llama-v3": _LLAMA3_BPE,
    "falcon3": _LLAMA3_BPE,
    "pixtral": _LLAMA3_BPE,
    "lfm2": _LLAMA3_BPE,
    "dbrx": PreTokenizer((_LLAMA3,)),
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "glm4": PreTokenizer((_LLAMA3,)),
    "chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "qwen2": PreTokenizer((_QWEN2,), nfc=True),
    "deepseek-r1-qwen": PreTokenizer((_QWEN2,)),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True),
    "gpt-4o": PreTokenizer((_GPT4O,)),
    "llama4": PreTokenizer((_GPT4O,)),
    "deepseek-v3": PreTokenizer((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)),
}
"""What ``tokenizer.ggml.pre`` may name; a file without it means ``default``."""


class Vocabulary(NamedTuple):
    """The tokens of a file in order of their ids, with their types and SentencePiece scores."""

    tokens: list[str]
    types: list[int]
    scores: list[float]

    def special(self, index: int) -> bool:
        """Whether token ``index`` is a control token or the unknown token."""
        return self.types[index] in (TokenType.CONTROL, TokenType.UNKNOWN)


def tokenizer_json(metadata: Mapping[str, Any]) -> bytes:
    """Return the ``tokenizer.json`` of a file's vocabulary.

    ``metadata`` are the key-value pairs of the file. A tokenizer that is not supported is
    ``Code.UNSUPPORTED``, a vocabulary that contradicts itself is ``Code.INVALID``.
    """
    vocabulary = read_vocabulary(metadata)
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        parts = _byte_level(vocabulary, metadata)
    elif model == "llama":
        parts = _sentencepiece(vocabulary, metadata)
    else:
        raise TuringError(
            Code.UNSUPPORTED,
            f"tokenizer {model!r} is not supported: use a file with 'gpt2' or 'llama'",
            param="model",
        )
    return _checked({"version": "1.0", "truncation": None, "padding": None, **parts})


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Return the tokens of a file; lists that miss or contradict each other: ``Code.INVALID``."""
    tokens = _array(metadata, "tokens")
    if not tokens:
        raise TuringError(Code.INVALID, "the file has no tokenizer.ggml.tokens", param="model")
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    types = _array(metadata, "token_type") or _assumed_types(len(tokens), metadata)
    scores = _array(metadata, "scores") or [0.0] * len(tokens)
    if not len(tokens) == len(types) == len(scores):
        raise TuringError(
            Code.INVALID,
            f"the file has {len(tokens)} tokens, {len(types)} token types, {len(scores)} scores",
            param="model",
        )
    if len(set(tokens)) != len(tokens):
        raise TuringError(Code.INVALID, "the file's vocabulary has a token twice", param="model")
    return Vocabulary(tokens, types, scores)


def special_id(metadata: Mapping[str, Any], name: str) -> int | None:
    """Return ``tokenizer.ggml.<name>_token_id`` if the file gives one within its vocabulary."""
    found = metadata.get(f"tokenizer.ggml.{name}_token_id")
    inside = isinstance(found, int) and 0 <= found < len(_array(metadata, "tokens"))
    return found if inside else None


def adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether a plain prompt starts with the beginning-of-sequence token."""
    stated = metadata.get("tokenizer.ggml.add_bos_token")
    if isinstance(stated, bool):
        return stated
    implied = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2", "tekken")
    sentencepiece = metadata.get("tokenizer.ggml.model") == "llama"
    return sentencepiece or metadata.get("tokenizer.ggml.pre") in implied


def end_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Return every id that ends an answer: the file's own first, then known end-of-turn tokens."""
    vocabulary = read_vocabulary(metadata)
    named = [special_id(metadata, name) for name in ("eos", "eot", "eom")]
    control = {token: i for i, token in enumerate(vocabulary.tokens) if vocabulary.special(i)}
    harmony = "<|return|>" in control and "<|call|>" in control
    # In the harmony format <|end|> closes one message of an answer, not the answer.
    known = [t for t in END_OF_TURN if t in control and not (harmony and t == "<|end|>")]
    found = [i for i in named if i is not None] + [control[token] for token in known]
    return tuple(dict.fromkeys(found))


def _array(metadata: Mapping[str, Any], name: str) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{name}", [])
    if not isinstance(value, list):
        raise TuringError(
            Code.INVALID, f"tokenizer.ggml.{name} of the file is not a list", param="model"
        )
    return value


def _assumed_types(count: int, metadata: Mapping[str, Any]) -> list[int]:
    types = [int(TokenType.NORMAL)] * count
    for name in ("bos", "eos", "unknown", "padding", "eot"):
        found = special_id(metadata, name)
        if found is not None:
            types[found] = TokenType.CONTROL
    return types


def _checked(tokenizer: Json) -> bytes:
    data = msgspec.json.encode(tokenizer)
    try:
        Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises nothing narrower
        raise TuringError(
            Code.INVALID, f"the file's vocabulary does not load: {error}", param="model"
        ) from None
    return data


def _byte_level(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Json:
    name = metadata.get("tokenizer.ggml.pre", "default")
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise TuringError(
            Code.UNSUPPORTED, f"pre-tokenizer {name!r} is not supported: {known}", param="model"
        )
    merges = [_pair(merge) for merge in _array(metadata, "merges")]
    splits = [_split(pattern) for pattern in pre.patterns]
    return {
        "added_tokens": list(_added(vocabulary)),
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, _BYTES]},
        "post_processor": None,
        "decoder": _BYTES,
        "model": _bpe(vocabulary, merges, ignore_merges=pre.ignore_merges),
    }


_BYTES: Final[Json] = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}


def _split(pattern: str) -> Json:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _pair(merge: str) -> list[str]:
    # A part never is empty, so a space at index 0 belongs to the first part.
    cut = merge.find(" ", 1)
    return [merge[:cut], merge[cut + 1 :]]


def _bpe(vocabulary: Vocabulary, merges: list[list[str]], **options: Any) -> Json:
    return {
        "type": "BPE",
        "vocab": {token: index for index, token in enumerate(vocabulary.tokens)},
        "merges": merges,
        **options,
    }


def _added(vocabulary: Vocabulary) -> Iterator[Json]:
    """Yield the tokens that are matched in text before anything else."""
    for index, token in enumerate(vocabulary.tokens):
        special = vocabulary.special(index)
        if special or vocabulary.types[index] == TokenType.USER_DEFINED:
            yield {
                "id": index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": special,
            }


def _sentencepiece(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Json:
    gemma = str(metadata.get("general.architecture", "")).startswith("gemma")
    if gemma:
        vocabulary = _respelled(vocabulary)
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    unknown = special_id(metadata, "unknown")
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}
    normalizers = [prepend, replace] if prefix else [replace]
    return {
        "added_tokens": list(_added(vocabulary)),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": _decoders(strip=bool(prefix))},
        "model": _bpe(
            vocabulary,
            _derived_merges(vocabulary, in_file_order=gemma),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        ),
    }


def _decoders(*, strip: bool) -> list[Json]:
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if strip:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return decoders


def _respelled(vocabulary: Vocabulary) -> Vocabulary:
    """Write runs of spaces as SentencePiece does: the file stores them as plain spaces."""
    tokens, types = list(vocabulary.tokens), list(vocabulary.types)
    for index, token in enumerate(tokens):
        if token.isspace() and set(token) == {" "}:
            tokens[index], types[index] = "▁" * len(token), TokenType.NORMAL
    return Vocabulary(tokens, types, vocabulary.scores)


def _derived_merges(vocabulary: Vocabulary, *, in_file_order: bool) -> list[list[str]]:
    """Return the merges that a scored vocabulary implies, best first.

    SentencePiece joins the neighbours whose union scores best, so every way to cut a piece in two
    known ones is a merge with the score of the piece. Gemma's scores do not follow its merges, the
    order of its vocabulary does. Ties as in transformers' ``generate_merges``.
    """
    pieces = {
        token: index
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind in (TokenType.NORMAL, TokenType.USER_DEFINED)
    }
    ranks = [-float(i) for i in range(len(vocabulary.tokens))]
    rank = ranks if in_file_order else vocabulary.scores
    found: list[tuple[float, str, str]] = []
    for token, index in pieces.items():
        cuts = sorted(_cuts(token, pieces), key=lambda cut: (pieces[cut[0]], pieces[cut[1]]))
        found.extend((rank[index], left, right) for left, right in cuts)
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [[left, right] for _, left, right in found]


def _cuts(token: str, pieces: Mapping[str, int]) -> Iterable[tuple[str, str]]:
    halves: Sequence[tuple[str, str]] = [(token[:at], token[at:]) for at in range(1, len(token))]
    return (half for half in halves if half[0] in pieces and half[1] in pieces)
