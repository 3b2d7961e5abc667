"""Tiny random checkpoints of every family, as transformers writes them and as GGUF files."""

import atexit
import copy
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from transformers import (
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto import AutoModelForCausalLM
from transformers.utils import logging

_auto: Any = AutoModelForCausalLM
_logging: Any = logging
_logging.disable_progress_bar()

VOCAB = 300

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**_SIZES, tie_word_embeddings=True),
    "llama-biased": LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True, head_dim=24),
    "llama3-rope": LlamaConfig(
        **_SIZES,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "llama-linear-rope": LlamaConfig(
        **_SIZES,
        rope_parameters={"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    ),
    "mistral": MistralConfig(**_SIZES, sliding_window=40),
    "qwen2": Qwen2Config(**_SIZES, use_sliding_window=True, sliding_window=70, max_window_layers=1),
    "qwen3": Qwen3Config(**_SIZES, head_dim=32),
    "gemma3": Gemma3TextConfig(
        **_SIZES,
        head_dim=32,
        tie_word_embeddings=False,  # a tied random head repeats the last token for ever
        sliding_window=24,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        query_pre_attn_scalar=48,
        final_logit_softcapping=30.0,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
}


def prompt(length: int, salt: int = 0) -> list[int]:
    """Return ``length`` fixed ids without a pattern; another ``salt`` gives other ids."""
    ids: list[int] = np.random.default_rng(salt).integers(3, VOCAB, length).tolist()
    return ids


def make_model(name: str) -> PreTrainedModel:
    """Return the checkpoint ``name`` with weights that are random but the same every time."""
    torch.manual_seed(7)
    config = copy.deepcopy(CONFIGS[name])  # tests change the model's own
    config._attn_implementation = "eager"
    model: PreTrainedModel = _auto.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):  # biases and norms start at values that hide mistakes
                parameter.normal_(0.0, 0.3)
            elif "norm" in key:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


@cache
def checkpoint(name: str) -> tuple[Path, PreTrainedModel]:
    """Return a folder with the checkpoint ``name`` and its model; made once per process."""
    folder = Path(tempfile.mkdtemp(prefix=f"turing-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model = make_model(name)
    model.save_pretrained(folder)
    return folder, model


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Return transformers' logits ``[len(ids), vocab]``."""
    logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


@torch.inference_mode()
def reference_greedy(model: PreTrainedModel, ids: list[int], count: int) -> list[int]:
    """Return transformers' greedy continuation, end-of-sequence tokens included."""
    output = model(torch.tensor([ids]), use_cache=True)
    tokens = [int(output.logits[0, -1].argmax())]
    while len(tokens) < count:
        output = model(torch.tensor([tokens[-1:]]), cache=output.cache, use_cache=True)
        tokens.append(int(output.logits[0, -1].argmax()))
    return tokens


# ---- GGUF --------------------------------------------------------------------------------------

_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA_LAYER = _LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_gguf(model: PreTrainedModel, path: Path, *, kind: str = "F32") -> Path:
    """Write ``model`` as llama.cpp's converter does, matrices in storage type ``kind``."""
    config = model.config
    arch = {"mistral": "llama", "gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    writer = GGUFWriter(path, arch)
    _write_metadata(writer, config, arch)
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if arch == "llama" and ".q_proj." in key:
            values = _interleave(values, config.num_attention_heads)
        if arch == "llama" and ".k_proj." in key:
            values = _interleave(values, config.num_key_value_heads)
        if arch == "gemma3" and "norm" in key:
            values = values + 1
        name = _gguf_name(key, _GEMMA_LAYER if arch == "gemma3" else _LAYER)
        if values.ndim == 1 or kind == "F32":
            writer.add_tensor(name, np.ascontiguousarray(values))
        else:
            storage = GGMLQuantizationType[kind]
            writer.add_tensor(name, quants.quantize(values, storage), raw_dtype=storage)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(key: str, layer: dict[str, str]) -> str:
    stem, _, kind = key.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{_TOP[stem]}.{kind}"
    _, _, index, part = stem.split(".", 3)
    return f"blk.{index}.{layer[part]}.{kind}"


def _interleave(values: Any, heads: int) -> Any:
    """Put the two halves of each head's rows alternately, as GGUF's ``llama`` does."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _write_metadata(writer: GGUFWriter, config: PreTrainedConfig, arch: str) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if arch == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern(3)
