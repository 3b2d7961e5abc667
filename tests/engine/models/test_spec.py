"""What a configuration becomes, and which ones are refused by the name of the field."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFWriter
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.checkpoints import CONFIGS, make_model, write_gguf
from turing_engine.models.gguf import GgufFile
from turing_engine.models.spec import (
    Rope,
    spec_from_config,
    spec_from_gguf,
    tensor_shapes,
)
from turing_kernels import ref
from turing_protocol.errors import Code, TuringError


def config(name: str, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = CONFIGS[name].to_dict()
    return fields | changes


@pytest.mark.parametrize("name", CONFIGS)
def test_tensor_shapes_are_those_of_the_real_model(name: str) -> None:
    spec = spec_from_config(config(name))
    ours = sorted(math.prod(shape) for shape in tensor_shapes(spec).values())
    model = make_model(name)
    assert ours == sorted(tensor.numel() for tensor in model.parameters())


def test_windows() -> None:
    assert spec_from_config(config("llama")).windows == (0, 0, 0)
    assert spec_from_config(config("mistral")).windows == (40, 40, 40)
    assert spec_from_config(config("mistral", sliding_window=None)).windows == (0, 0, 0)
    by_rule = config("qwen2", layer_types=None)
    assert spec_from_config(by_rule).windows == (0, 70, 70)
    assert spec_from_config(by_rule | {"use_sliding_window": False}).windows == (0, 0, 0)
    assert spec_from_config(config("gemma3")).windows == (24, 24, 0)
    by_pattern = config("gemma3", layer_types=None, num_hidden_layers=8)
    assert spec_from_config(by_pattern).windows == (24,) * 5 + (0,) + (24,) * 2


def test_gemma3_facts() -> None:
    spec = spec_from_config(config("gemma3"))
    assert spec.norm_offset == 1.0
    assert spec.embedding_scale == 8.0
    assert spec.attention_scale == 48**-0.5
    assert spec.logit_softcap == 30.0
    assert spec.rope == Rope(1e6, (8.0,) * 16)
    assert spec.local_rope == Rope(1e4)


def test_the_older_rope_fields_mean_the_same() -> None:
    new = spec_from_config(config("llama3-rope"))
    fields = config("llama3-rope")
    rope = fields.pop("rope_parameters")
    old = fields | {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    assert spec_from_config(old) == new
    gemma = config("gemma3")
    del gemma["rope_parameters"]
    gemma["rope_theta"] = 5e5
    gemma["rope_local_base_freq"] = 2e4
    gemma["rope_scaling"] = {"type": "linear", "factor": 4.0}
    spec = spec_from_config(gemma)
    assert (spec.rope, spec.local_rope) == (Rope(5e5, (4.0,) * 16), Rope(2e4))


def test_llama3_scaling_equals_transformers() -> None:
    spec = spec_from_config(config("llama3-rope"))
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](CONFIGS["llama3-rope"], torch.device("cpu"))
    ours = ref.rope_frequencies(spec.head_dim, spec.rope.theta, spec.rope.divisors)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)
    assert len(set(spec.rope.divisors)) > 2


def test_a_multimodal_checkpoint_is_read_for_its_text_half() -> None:
    text = config("gemma3")
    assert spec_from_config({"model_type": "gemma3", "text_config": text}) == spec_from_config(text)
    for key in ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"):
        del text[key]
    spec = spec_from_config({"model_type": "gemma3", "text_config": text})
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.vocab_size) == (8, 4, 256, 262_208)


REFUSED = [
    ("llama", {"model_type": "mixtral"}, Code.UNSUPPORTED, "model_type 'mixtral'"),
    ("llama", {"model_type": None}, Code.UNSUPPORTED, "model_type None"),
    ("llama", {"hidden_size": "64"}, Code.INVALID, "hidden_size is '64'"),
    ("llama", {"hidden_size": True}, Code.INVALID, "hidden_size is True"),
    ("llama", {"hidden_size": 0}, Code.INVALID, "hidden_size is 0"),
    ("llama", {"hidden_size": 2**40}, Code.INVALID, "hidden_size is 1099511627776"),
    ("llama", {"num_hidden_layers": 10**6}, Code.INVALID, "num_hidden_layers"),
    ("llama", {"num_key_value_heads": 3}, Code.INVALID, "4 attention heads cannot share 3"),
    ("llama", {"head_dim": 15}, Code.INVALID, "head size 15 is odd"),
    ("llama", {"rms_norm_eps": math.nan}, Code.INVALID, "rms_norm_eps"),
    ("llama", {"rms_norm_eps": -1.0}, Code.INVALID, "rms_norm_eps"),
    ("llama", {"hidden_act": "relu"}, Code.INVALID, "hidden_act is 'relu'"),
    ("llama", {"tie_word_embeddings": "yes"}, Code.INVALID, "tie_word_embeddings"),
    ("llama", {"rope_parameters": 7}, Code.INVALID, "rope_parameters is 7"),
    ("llama", {"rope_parameters": {"rope_type": "yarn"}}, Code.UNSUPPORTED, "rope type 'yarn'"),
    (
        "llama",
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        Code.UNSUPPORTED,
        "partial_rotary_factor",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "llama3", "low_freq_factor": 4, "high_freq_factor": 4}},
        Code.INVALID,
        "high_freq_factor is 4",
    ),
    ("llama", {"quantization_config": {"bits": 4}}, Code.UNSUPPORTED, "quantization_config"),
    (
        "qwen3",
        {"use_sliding_window": True, "layer_types": ["full_attention"]},
        Code.INVALID,
        "layer_types",
    ),
    ("gemma3", {"layer_types": ["full_attention"]}, Code.INVALID, "layer_types"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, Code.UNSUPPORTED, "attn_logit_softcapping"),
    ("gemma3", {"use_bidirectional_attention": True}, Code.UNSUPPORTED, "bidirectional"),
]


@pytest.mark.parametrize(("name", "changes", "code", "words"), REFUSED)
def test_refused_by_the_name_of_the_field(
    name: str, changes: dict[str, Any], code: Code, words: str
) -> None:
    with pytest.raises(TuringError, match=words) as caught:
        spec_from_config(config(name, **changes))
    assert caught.value.code is code
    assert caught.value.param == "model"


# ---- GGUF --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "llama-biased", "qwen3"])
def test_gguf_says_the_same_as_the_configuration(name: str, tmp_path: Path) -> None:
    spec = spec_from_gguf(GgufFile(write_gguf(make_model(name), tmp_path / "model.gguf")))
    expected = spec_from_config(config(name))
    assert spec.norm_eps == pytest.approx(expected.norm_eps)
    for field in spec.__struct_fields__:
        if field != "norm_eps":
            assert getattr(spec, field) == getattr(expected, field), field


def gguf_with(path: Path, arch: str = "llama", **facts: Any) -> GgufFile:
    """Write a file with the metadata of a small llama, changed by ``facts``, and its embedding."""
    writer = GGUFWriter(path, arch)
    fields = {
        "embedding_length": 64,
        "block_count": 7,
        "context_length": 128,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.sliding_window": 16,
    }
    for key, value in (fields | facts).items():
        if isinstance(value, str):
            writer.add_string(f"{arch}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        else:
            writer.add_uint32(f"{arch}.{key}", value)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tensor("token_embd.weight", torch.zeros(8, 64).numpy())
    if facts.get("rope.scaling.type") == "stored":
        del writer.kv_data[0][f"{arch}.rope.scaling.type"]
        writer.add_tensor("rope_freqs.weight", torch.arange(1.0, 9.0).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


def test_gguf_gemma3_facts(tmp_path: Path) -> None:
    facts = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    spec = spec_from_gguf(gguf_with(tmp_path / "m.gguf", "gemma3", **facts))
    assert spec.windows == (16,) * 5 + (0, 16)
    assert spec.rope == Rope(1e6, (8.0,) * 8)
    assert spec.local_rope == Rope(1e4)
    assert spec.norm_offset == 0.0
    assert spec.embedding_scale == 8.0
    assert spec.attention_scale == 0.25
    assert spec.tied_head


def test_gguf_stores_the_llama3_rule_as_a_tensor(tmp_path: Path) -> None:
    file = gguf_with(tmp_path / "m.gguf", **{"rope.scaling.type": "stored"})
    assert spec_from_gguf(file).rope == Rope(1e4, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0))


@pytest.mark.parametrize(
    ("arch", "facts", "words"),
    [
        ("falcon", {}, "architecture 'falcon'"),
        ("llama", {"expert_count": 8}, "expert_count = 8"),
        ("llama", {"embedding_length": "big"}, "embedding_length is 'big'"),
        ("llama", {"rope.scaling.type": "yarn"}, "rope.scaling.type is 'yarn'"),
        ("llama", {"rope.dimension_count": 8}, "rope.dimension_count is 8"),
        ("llama", {"attention.value_length": 8}, "attention.value_length is 8"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ],
)
def test_gguf_refused_by_the_name_of_the_key(
    arch: str, facts: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(TuringError, match=words):
        spec_from_gguf(gguf_with(tmp_path / "m.gguf", arch, **facts))
