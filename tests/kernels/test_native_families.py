"""Every decoder family against transformers, on tiny random checkpoints."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Gemma3TextConfig, LlamaConfig

from engine import checkpoints
from engine.checkpoints import checkpoint, prompt, reference_greedy, reference_logits, write_gguf
from kernels.natively import Floats, greedy, logits_behind, native_engine
from turing_kernels.native import NativeError

# The biased checkpoint has heads of 24, which have no native kernel; this one has heads of 32.
checkpoints.CONFIGS["llama-biased-32"] = LlamaConfig(
    vocab_size=checkpoints.VOCAB,
    hidden_size=96,
    intermediate_size=72,
    num_hidden_layers=2,
    num_attention_heads=3,
    num_key_value_heads=3,
    head_dim=32,
    attention_bias=True,
    mlp_bias=True,
    initializer_range=0.2,
)
# What GGUF has no keys for is left at the family's own rule: query scale, rope and softcap.
checkpoints.CONFIGS["gemma3-plain"] = Gemma3TextConfig(
    vocab_size=checkpoints.VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    tie_word_embeddings=False,
    sliding_window=24,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    query_pre_attn_scalar=32,
    rope_parameters={
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    initializer_range=0.2,
)
FAMILIES = sorted(set(checkpoints.CONFIGS) - {"llama-biased"})
GGUF = ("llama", "llama-biased-32", "qwen3", "gemma3-plain")

ENDS = [1, 7, 30, 64, 100, 129, 150]


def distance(found: Floats, wanted: Floats) -> float:
    """Return the relative distance of two sets of logits."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def wanted_logits(model: Any, ids: list[int]) -> Floats:
    """Return transformers' logits behind the prefixes that end at ``ENDS``."""
    logits: Floats = reference_logits(model, ids).numpy()
    return logits[[end - 1 for end in ENDS]]


@pytest.mark.parametrize("family", FAMILIES)
def test_exact_logits_and_greedy_text_are_those_of_transformers(family: str) -> None:
    folder, model = checkpoint(family)
    ids = prompt(150)
    with native_engine(folder, exact=True) as engine:
        logits = logits_behind(engine, ids, ENDS)
        np.testing.assert_allclose(logits, wanted_logits(model, ids), atol=2e-4)
        assert greedy(engine, ids[:50], 40) == reference_greedy(model, ids[:50], 40)


@pytest.mark.parametrize("family", GGUF)
def test_a_gguf_file_computes_what_the_folder_does(family: str, tmp_path: Path) -> None:
    _, model = checkpoint(family)
    ids = prompt(150)
    with native_engine(write_gguf(model, tmp_path / "model.gguf"), exact=True) as engine:
        logits = logits_behind(engine, ids, ENDS)
    np.testing.assert_allclose(logits, wanted_logits(model, ids), atol=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_pages_stay_close(family: str) -> None:
    folder, model = checkpoint(family)
    ids = prompt(150)
    with native_engine(folder) as engine:
        assert distance(logits_behind(engine, ids, ENDS), wanted_logits(model, ids)) < 0.03


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_activations_stay_close_to_fp32_ones(family: str) -> None:
    """Both meet the same rounded weights, so only the rounding of the rows differs."""
    folder, _ = checkpoint(family)
    ids = prompt(150)
    for quantize in ("w8", "w4"):
        with native_engine(folder, quantize=quantize, exact=True) as engine:
            wanted = logits_behind(engine, ids, ENDS)
        with native_engine(folder, quantize=quantize) as engine:
            assert distance(logits_behind(engine, ids, ENDS), wanted) < 0.12


@pytest.mark.parametrize("quantize", ["w8", "w4"])
def test_quantising_on_load_rounds_to_the_stated_levels(quantize: str, tmp_path: Path) -> None:
    """Blocks that are made of 16 levels from the start survive either rounding nearly unchanged."""
    _, model = checkpoint("llama")
    levels = np.arange(16, dtype=np.float32)
    rng = np.random.default_rng(3)
    state = model.state_dict()
    rounded = checkpoints.make_model("llama")
    for key, tensor in rounded.state_dict().items():
        if state[key].ndim == 2 and "embed" not in key:
            count = tensor.numel() // 32
            blocks = np.stack([rng.permutation(np.repeat(levels, 2)) for _ in range(count)])
            tensor.copy_(tensor.new_tensor(blocks.reshape(tensor.shape) / 64 - 0.125))
    rounded.save_pretrained(tmp_path)
    ids = prompt(150)
    with native_engine(tmp_path, quantize=quantize, exact=True) as engine:
        logits = logits_behind(engine, ids, ENDS)
    assert distance(logits, wanted_logits(rounded, ids)) < 0.02


def test_a_head_size_without_kernels_is_named() -> None:
    folder, _ = checkpoint("llama-biased")
    with pytest.raises(NativeError, match="head size of 24"), native_engine(folder):
        pass
