"""Vocabularies of GGUF files as tokenizer.json."""

import json
import warnings
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer

from fakes.vocabularies import byte_level, gguf_metadata, sentencepiece
from turing_engine.locate import locate
from turing_engine.models import vocab
from turing_engine.models.gguf import GgufFile
from turing_protocol.errors import Code, TuringError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import AutoTokenizer

MIXED = [
    "Hello, World! It's 12 o'clock, 3.14 and 1234567 things",
    "Schöne Grüße aus Köln, naïve café, 日本語の文章です。 Привет мир! हिन्दी 🫠🥹龜é",
    "def f(x):\n\treturn {'a': [1, 2]}  # done\n\n\n    x_y -= 1\r\n",
    "HelloWorld camelCaseABCdef  don't I'LL we'Ve ½ ²³ “quoted”…",
    "x<|im_end|>y<|im_start|>z",
]


def smollm() -> dict[str, Any]:
    return GgufFile(locate(None).path).metadata


def byte_metadata(pre: str, **changes: Any) -> dict[str, Any]:
    spec = json.loads(byte_level().to_str())["model"]
    tokens = sorted(spec["vocab"], key=spec["vocab"].__getitem__)
    control = ["<|im_start|>", "<|im_end|>", "<think>"]
    base: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *control],
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3, 3, 4],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in spec["merges"]],
        "tokenizer.ggml.eos_token_id": len(tokens) + 1,
    }
    return base | changes


def build(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_buffer(vocab.tokenizer_json(metadata))


def write(path: Path, metadata: dict[str, Any]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_feed_forward_length(8)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def reference(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def test_smollm_ids_equal_transformers() -> None:
    ours, theirs = build(smollm()), reference(locate(None).path)
    # The reference joins a space with the number behind it; see the next test.
    for text in [*MIXED[:3], MIXED[3].replace(" ½ ²³", "½²³"), MIXED[4]]:
        assert ours.encode(text).ids == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


def test_smollm_digits_are_cut_off_before_spaces_are_joined() -> None:
    # Published tokenizer: Digits(individual_digits) runs first, so the spaces are one token.
    assert build(smollm()).encode("a   12").tokens == ["a", "ĠĠĠ", "1", "2"]


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken", "gpt-4o"])
def test_byte_level_ids_equal_transformers(tmp_path: Path, pre: str) -> None:
    metadata = byte_metadata(pre)
    ours, theirs = build(metadata), reference(write(tmp_path / f"{pre}.gguf", metadata))
    for text in MIXED:
        assert ours.encode(text).ids == theirs.encode(text, add_special_tokens=False)


def test_sentencepiece_ids_equal_transformers_and_the_trained_tokenizer(tmp_path: Path) -> None:
    trained = sentencepiece(["<|im_end|>"])
    metadata = gguf_metadata(trained)
    ours, theirs = build(metadata), reference(write(tmp_path / "sp.gguf", metadata))
    for text in MIXED[:4]:
        ids = ours.encode(text).ids
        assert ids == theirs.encode(text, add_special_tokens=False) == trained.encode(text).ids
        assert ours.decode(ids) == text
    # Like the published files and unlike transformers' conversion, every space is kept.
    assert ours.decode(ours.encode("  x").ids) == "  x"


def test_gemma_spaces_are_one_token_and_no_space_is_put_in_front() -> None:
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "  ", "   ", "▁", "a", "▁a", "\n\n"]
    metadata = {
        "general.architecture": "gemma3",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, 2, 4, 4, 1, 1, 1, 4],
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_space_prefix": False,
    }
    assert build(metadata).encode("a   a\n\n a").ids == [7, 5, 7, 9, 8]


def test_the_default_pre_tokenizer_and_whole_words() -> None:
    unnamed = byte_metadata("gpt-2")
    del unnamed["tokenizer.ggml.pre"]
    named = byte_metadata("default")
    assert build(unnamed).encode(MIXED[3]).ids == build(named).encode(MIXED[3]).ids
    tokens = [*"abc", "abc"]
    whole: dict[str, Any] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * 4}
    whole |= {"tokenizer.ggml.merges": [], "tokenizer.ggml.eos_token_id": 0}
    assert build(byte_metadata("llama-bpe", **whole)).encode("abc").ids == [3]
    assert build(byte_metadata("qwen2", **whole)).encode("abc").ids == [0, 1, 2]


def test_a_file_without_types_still_has_its_special_tokens() -> None:
    metadata = byte_metadata("qwen2")
    del metadata["tokenizer.ggml.token_type"]
    end = metadata["tokenizer.ggml.eos_token_id"]
    assert build(metadata).encode("a<|im_end|>").ids[-1] == end


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, Code.UNSUPPORTED, "'rwkv'"),
        ({"tokenizer.ggml.pre": "no-such"}, Code.UNSUPPORTED, "'no-such'"),
        ({"tokenizer.ggml.tokens": []}, Code.INVALID, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": "abc"}, Code.INVALID, "not a list"),
        ({"tokenizer.ggml.token_type": [1, 2]}, Code.INVALID, "2 token types"),
        ({"tokenizer.ggml.merges": ["no such"]}, Code.INVALID, "does not load"),
        ({"tokenizer.ggml.merges": ["nospace"]}, Code.INVALID, "does not load"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_says_why(
    changes: dict[str, Any], code: Code, words: str
) -> None:
    with pytest.raises(TuringError, match=words) as caught:
        vocab.tokenizer_json(byte_metadata("qwen2", **changes))
    assert (caught.value.code, caught.value.param) == (code, "model")


def test_a_token_may_not_be_there_twice() -> None:
    metadata = byte_metadata("qwen2")
    metadata["tokenizer.ggml.tokens"][1] = metadata["tokenizer.ggml.tokens"][0]
    with pytest.raises(TuringError, match="a token twice"):
        vocab.tokenizer_json(metadata)


def metadata_of(tokens: list[str], **entries: Any) -> dict[str, Any]:
    named = {f"tokenizer.ggml.{key}": value for key, value in entries.items()}
    types = {"tokenizer.ggml.token_type": [3] * len(tokens)}
    return {"tokenizer.ggml.tokens": tokens} | types | named


def test_end_ids_are_the_file_s_own_and_known_end_of_turn_tokens() -> None:
    tokens = ["<|endoftext|>", "<|eot_id|>", "<|im_end|>", "x"]
    assert vocab.end_ids(metadata_of(tokens, eos_token_id=0)) == (0, 2, 1)
    assert vocab.end_ids(metadata_of(tokens, eos_token_id=2, eot_token_id=1)) == (2, 1)
    assert vocab.end_ids(metadata_of(tokens, eos_token_id=99)) == (2, 1)
    assert vocab.end_ids(smollm()) == (2,)


def test_end_of_a_harmony_message_is_not_the_end_of_the_answer() -> None:
    tokens = ["<|return|>", "<|call|>", "<|end|>"]
    assert vocab.end_ids(metadata_of(tokens, eos_token_id=0)) == (0,)
    assert vocab.end_ids(metadata_of(tokens[1:], eos_token_id=0)) == (0, 1)


@pytest.mark.parametrize(
    ("entries", "adds"),
    [
        ({"add_bos_token": False, "model": "llama"}, False),
        ({"add_bos_token": True, "model": "gpt2", "pre": "qwen2"}, True),
        ({"model": "llama"}, True),
        ({"model": "gpt2", "pre": "llama-bpe"}, True),
        ({"model": "gpt2", "pre": "qwen2"}, False),
    ],
)
def test_whether_the_first_token_is_added(entries: dict[str, Any], adds: bool) -> None:
    assert vocab.adds_bos(metadata_of(["x"], **entries)) is adds
