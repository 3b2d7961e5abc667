"""Small real tokenizers, trained in a moment, of the kinds that models come with."""

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from turing_protocol.messages import ModelInfo

CORPUS = (
    "The quick brown fox jumps over the lazy dog. user assistant system tool",
    "def f(x): return {'a': [1, 2, 30], \"b\": None}  # comment\n\n\tif x:\n",
    "Schöne Grüße aus Köln, naïve café, 日本語の文章です。 Привет мир! हिन्दी",
    "In the beginning the end of the turn is the end of the user text",
) * 4
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of ``token``, which must be there."""
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


def model_info(**changes: Any) -> ModelInfo:
    """Return facts of no model in particular."""
    facts: dict[str, Any] = {
        "name": "tiny",
        "digest": "sha256:0",
        "architecture": "llama",
        "context": 512,
        "vocab_size": 4096,
        "eos_ids": (),
        "bos_id": None,
        "add_bos": False,
        "parameters": 1,
        "size_bytes": 1,
        "quantization": "F32",
        "kv_bytes_per_token": 64,
        "modified": 0.0,
    }
    return ModelInfo(**(facts | changes))


def byte_level(special: Sequence[str] = (), plain: Sequence[str] = ()) -> Tokenizer:
    """Return a byte-level BPE tokenizer like Qwen2's with these added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=480, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    return tokenizer


def sentencepiece(special: Sequence[str] = (), *, metaspace: bool = False) -> Tokenizer:
    """Return a SentencePiece-like BPE tokenizer with byte fallback, as Llama 2's.

    The space before the first word comes from the normalizer, or with ``metaspace`` (Llama in
    transformers 5) from the pre-tokenizer, which puts it at the start of the text only.
    """
    base = ["<unk>", "<s>", "</s>"]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = BpeTrainer(vocab_size=620, special_tokens=[*base, *BYTE_TOKENS], show_progress=False)
    trained.train_from_iterator(CORPUS, trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(model["vocab"], merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in (*base, *special)])
    return tokenizer


def gguf_metadata(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the ``tokenizer.ggml.*`` entries that describe a ``sentencepiece`` tokenizer."""
    tokens = sorted(tokenizer.get_vocab(), key=lambda token: tokenizer.token_to_id(token) or 0)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    kinds = {"<unk>": 2} | dict.fromkeys(added - {"<unk>"}, 3) | dict.fromkeys(BYTE_TOKENS, 6)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [kinds.get(token, 1) for token in tokens],
        "tokenizer.ggml.scores": [-float(index) for index in range(len(tokens))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
